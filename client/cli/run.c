/* run.c: `fa-cli run`. Makes or reads the input, runs the passes, checks and reports them. */
#include "client/cli/npy.h"
#include "client/cli/parallel.h"
#include "client/cli/run.h"
#include "client/cli/spawn.h"
#include "client/cli/stats.h"

#include <stdlib.h>
#include <string.h>

struct run {
    struct run_options options;
    struct run_tensors tensors;
    struct fa_client *client;
    struct run_context context;
    struct run_pass pass; /* the latest */
    /* With --check: the first pass's outputs and how far they are off. */
    float *first[RUN_TENSORS];
    struct run_check first_check;
    bool bad_check;            /* a pass failed its check, or has other bits than the first */
    bool may_be_rounding;      /* of those that failed, one by a finite error */
    double *times[RUN_PHASES]; /* with --repeat over 1 and no --json: one entry a pass */
};

static enum cli_exit make_room(struct run *run, struct cli_error *error)
{
    const struct run_options *options = &run->options;

    for (size_t i = RUN_O; options->check && options->repeat > 1 && i < RUN_TENSORS; i++) {
        run->first[i] = malloc(run->tensors.count[i] * sizeof(float) + 1);
        if (!run->first[i])
            return cli_fail(error, CLI_FAILED,
                            "no memory to compare the repeats; take a smaller shape");
    }
    for (size_t i = 0; options->repeat > 1 && !options->target.json && i < RUN_PHASES; i++) {
        run->times[i] = calloc(options->repeat, sizeof *run->times[i]);
        if (!run->times[i])
            return cli_fail(error, CLI_FAILED, "no memory for the times; take a smaller --repeat");
    }
    return CLI_OK;
}

static struct fa_tensor tensor(const struct run_tensors *tensors, enum run_tensor which)
{
    return (struct fa_tensor){.data = tensors->data[which],
                              .shared = tensors->in_shared[which] ? &tensors->shared : NULL};
}

/* One pass, timed. What came of it is in run->pass. */
static void forward(struct run *run)
{
    const struct run_options *options = &run->options;
    const struct fa_problem *problem = &run->tensors.problem;
    const struct fa_forward_args args = {
        .batch = problem->batch,
        .heads = problem->heads,
        .kv_heads = problem->kv_heads,
        .q_len = problem->q_len,
        .kv_len = problem->kv_len,
        .head_dim = problem->head_dim,
        .dtype = problem->dtype,
        .mask = problem->mask,
        .scale = options->scale_given ? &options->scale : NULL,
        .version = options->version,
        .q = tensor(&run->tensors, RUN_Q),
        .k = tensor(&run->tensors, RUN_K),
        .v = tensor(&run->tensors, RUN_V),
        .o = tensor(&run->tensors, RUN_O),
        .lse = run->tensors.data[RUN_LSE] ? tensor(&run->tensors, RUN_LSE) : (struct fa_tensor){0}};
    double start;

    run->pass = (struct run_pass){0};
    run_tensors_poison(&run->tensors);
    start = cli_now_us();
    run->pass.status = fa_forward(run->client, &args, &run->pass.result);
    run->pass.client_us = cli_now_us() - start;
    if (run->pass.status != FA_OK)
        run->pass.error = *fa_last_error_record(run->client);
}

/* Whether the outputs are the first pass's to the last bit; keeps them when this is the first. */
static bool compare_with_first(struct run *run, bool first)
{
    bool same = true;

    for (size_t i = RUN_O; i < RUN_TENSORS; i++) {
        size_t bytes = run->tensors.count[i] * sizeof(float);

        if (!run->first[i])
            continue;
        if (first)
            memcpy(run->first[i], run->tensors.data[i], bytes);
        else
            same &= memcmp(run->first[i], run->tensors.data[i], bytes) == 0;
    }
    return same;
}

/* Equal outputs are checked once. */
static enum cli_exit check(struct run *run, uint32_t repeat, struct cli_error *error)
{
    struct run_pass *pass = &run->pass;

    pass->checked = true;
    pass->same_bits = compare_with_first(run, repeat == 0);
    if (repeat > 0 && pass->same_bits) {
        pass->check = run->first_check;
        return CLI_OK;
    }
    if (run_check(&run->tensors, &pass->check, error) != CLI_OK)
        return error->code;
    if (repeat == 0)
        run->first_check = pass->check;
    return CLI_OK;
}

static void note_times(struct run *run, uint32_t repeat)
{
    const struct fa_forward_result *result = &run->pass.result;
    const double times[RUN_PHASES] = {
        [RUN_QUEUE] = (double)result->queue_us,   [RUN_TRANSFER] = (double)result->transfer_us,
        [RUN_KERNEL] = (double)result->kernel_us, [RUN_TOTAL] = (double)result->total_us,
        [RUN_CLIENT] = run->pass.client_us,
    };

    for (size_t i = 0; i < RUN_PHASES; i++)
        if (run->times[i])
            run->times[i][repeat] = times[i];
}

/* Prints a pass that succeeded. Of repeats a person sees the first check, and those that differ. */
static enum cli_exit report(const struct run *run, uint32_t repeat, struct cli_error *error)
{
    const struct run_pass *pass = &run->pass;

    if (run->options.target.json)
        return run_print_json(&run->context, pass, error);
    if (repeat == 0)
        run_print_what(&run->context, pass);
    if (run->options.repeat == 1)
        run_print_times(&run->context, pass);
    if (pass->checked && !pass->same_bits)
        printf("check     repeat %u differs from the first in its bits\n", repeat + 1);
    if (pass->checked && (repeat == 0 || !pass->same_bits))
        run_print_check(&pass->check);
    return CLI_OK;
}

/* The daemon does not know --version's value. */
static enum cli_exit refuse_version(const struct run *run, struct cli_error *error)
{
    const struct fa_info *info = fa_client_info(run->client);
    char names[400] = "auto";
    size_t length = strlen(names);

    for (size_t i = 0; i < info->version_count && length < sizeof names; i++)
        length +=
            (size_t)snprintf(names + length, sizeof names - length, ", %s", info->versions[i].name);
    return cli_fail(error, CLI_USAGE, "--version '%.64s': there is none of that name; there are %s",
                    run->options.version, names);
}

static enum cli_exit fail_pass(const struct run *run, struct cli_error *error)
{
    const struct fa_error *wrong = &run->pass.error;

    if (run->options.target.json && run_print_json(&run->context, &run->pass, error) != CLI_OK)
        return error->code;
    if (wrong->status == FA_INVALID_ARGUMENT && !strcmp(wrong->field, "version"))
        return refuse_version(run, error);
    if (wrong->status == FA_TIMEOUT)
        return cli_fail(error, CLI_FAILED,
                        "TIMEOUT: the daemon did not answer in %g s; give a longer --timeout, or "
                        "none",
                        run->options.timeout_ms * 1e-3);
    if (wrong->status == FA_RESOURCE_EXHAUSTED && !strcmp(wrong->field, "payload"))
        return cli_fail(error, CLI_FAILED, "%s; use --transport memfd", fa_last_error(run->client));
    return cli_fail(error, CLI_FAILED, "%s", fa_last_error(run->client));
}

/* What follows a pass: its check and its report. */
static enum cli_exit finish_pass(struct run *run, uint32_t repeat, struct cli_error *error)
{
    struct run_pass *pass = &run->pass;

    if (pass->status != FA_OK)
        return fail_pass(run, error);
    note_times(run, repeat);
    if (run->options.check && check(run, repeat, error) != CLI_OK)
        return error->code;
    if (pass->checked && !(pass->check.passed && pass->same_bits))
        run->bad_check = true;
    if (pass->checked && run_may_be_rounding(&pass->check))
        run->may_be_rounding = true;
    return report(run, repeat, error);
}

static enum cli_exit run_passes(struct run *run, struct cli_error *error)
{
    const uint32_t repeat = run->options.repeat;
    struct cli_progress progress;
    enum cli_exit code = CLI_OK;

    cli_progress_begin(&progress, repeat > 1 ? "repeating the pass" : "waiting for the daemon",
                       repeat > 1 ? repeat : 0);
    for (uint32_t i = 0; i < repeat && code == CLI_OK; i++) {
        forward(run);
        atomic_fetch_add(&progress.done, 1);
        cli_progress_hide(&progress);
        code = finish_pass(run, i, error);
        cli_progress_show(&progress);
    }
    cli_progress_end(&progress);
    if (code == CLI_OK && run->times[0])
        run_print_spread(&run->context, run->times, repeat);
    return code;
}

static enum cli_exit write_outputs(const struct run *run, struct cli_error *error)
{
    const struct run_options *options = &run->options;
    const struct fa_problem *problem = &run->tensors.problem;
    const uint64_t shape[] = {problem->batch, problem->heads, problem->q_len, problem->head_dim};

    if (options->out && cli_npy_write(options->out, run->tensors.data[RUN_O], shape, 4, error))
        return error->code;
    if (options->lse && cli_npy_write(options->lse, run->tensors.data[RUN_LSE], shape, 3, error))
        return error->code;
    return CLI_OK;
}

/* From the connection on. */
static enum cli_exit run_connected(struct run *run, struct cli_error *error)
{
    if (run->options.timeout_ms > 0)
        fa_client_set_timeout(run->client, run->options.timeout_ms);
    run->context =
        (struct run_context){&run->options, &run->tensors, fa_client_info(run->client)->backend};
    if (run_passes(run, error) != CLI_OK || write_outputs(run, error) != CLI_OK)
        return error->code;
    if (run->bad_check)
        return cli_fail(
            error, CLI_CHECK, "--check: the result is not what it should be; see above%s%s",
            run->may_be_rounding ? "; " : "", run->may_be_rounding ? RUN_ROUNDING_HINT : "");
    return CLI_OK;
}

/* Whether the output files can be written, asked before the work. */
static enum cli_exit check_outputs(const struct run_options *options, struct cli_error *error)
{
    const char *const names[] = {"--out", "--lse"};
    const char *const paths[] = {options->out, options->lse};

    for (size_t i = 0; i < 2; i++) {
        if (!paths[i])
            continue;
        if (cli_npy_is_stdout(paths[i]))
            return cli_fail(error, CLI_USAGE,
                            "%s %s: the report goes to standard output; name another file",
                            names[i], paths[i]);
        if (cli_npy_writable(paths[i], error) != CLI_OK)
            return error->code;
    }
    if (options->out && options->lse && cli_npy_same_file(options->out, options->lse))
        return cli_fail(error, CLI_USAGE,
                        "--out %s and --lse %s are the same file; name another for one",
                        options->out, options->lse);
    return CLI_OK;
}

static enum cli_exit prepare(struct run *run, int argc, char **argv, struct cli_error *error)
{
    const struct run_options *options = &run->options;

    if (run_parse(argc, argv, &run->options, error) != CLI_OK)
        return error->code;
    if (check_outputs(options, error) != CLI_OK)
        return error->code;
    if (run_tensors_init(&run->tensors, options, error) != CLI_OK)
        return error->code;
    return make_room(run, error);
}

enum cli_exit cli_run(int argc, char **argv, struct cli_error *error)
{
    struct run run = {0};
    enum cli_exit code = prepare(&run, argc, argv, error);

    if (code == CLI_OK)
        code = cli_connect(&run.client, &run.options.target, error);
    if (code == CLI_OK)
        code = run_connected(&run, error);
    code = cli_disconnect(run.client, code, error);
    for (size_t i = 0; i < RUN_TENSORS; i++)
        free(run.first[i]);
    for (size_t i = 0; i < RUN_PHASES; i++)
        free(run.times[i]);
    run_tensors_release(&run.tensors);
    return code;
}
