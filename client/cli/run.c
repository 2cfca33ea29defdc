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
    struct cli_progress progress;
    double start;

    run->pass = (struct run_pass){0};
    run_tensors_poison(&run->tensors);
    cli_progress_begin(&progress, "waiting for the daemon", 0);
    start = cli_now_us();
    run->pass.status = fa_forward(run->client, &args, &run->pass.result);
    run->pass.client_us = cli_now_us() - start;
    cli_progress_end(&progress);
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

static enum cli_exit fail_pass(struct run *run, struct cli_error *error)
{
    if (run->options.target.json && run_print_json(&run->context, &run->pass, error) != CLI_OK)
        return error->code;
    return cli_fail(error, CLI_FAILED, "%s", fa_last_error(run->client));
}

/* All passes. bad_check: one of them failed its check. */
static enum cli_exit run_passes(struct run *run, bool *bad_check, struct cli_error *error)
{
    for (uint32_t i = 0; i < run->options.repeat; i++) {
        forward(run);
        if (run->pass.status != FA_OK)
            return fail_pass(run, error);
        note_times(run, i);
        if (run->options.check && check(run, i, error) != CLI_OK)
            return error->code;
        if (report(run, i, error) != CLI_OK)
            return error->code;
        *bad_check |= run->pass.checked && !(run->pass.check.passed && run->pass.same_bits);
    }
    if (run->times[0])
        run_print_spread(&run->context, run->times, run->options.repeat);
    return CLI_OK;
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
    bool bad_check = false;

    if (run->options.timeout_ms > 0)
        fa_client_set_timeout(run->client, run->options.timeout_ms);
    run->context =
        (struct run_context){&run->options, &run->tensors, fa_client_info(run->client)->backend};
    if (run_passes(run, &bad_check, error) != CLI_OK || write_outputs(run, error) != CLI_OK)
        return error->code;
    if (bad_check)
        return cli_fail(error, CLI_CHECK,
                        "--check: the result is not what it should be; see above");
    return CLI_OK;
}

static enum cli_exit prepare(struct run *run, int argc, char **argv, struct cli_error *error)
{
    const struct run_options *options = &run->options;

    if (run_parse(argc, argv, &run->options, error) != CLI_OK)
        return error->code;
    if (options->out && cli_npy_writable(options->out, error) != CLI_OK)
        return error->code;
    if (options->lse && cli_npy_writable(options->lse, error) != CLI_OK)
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
