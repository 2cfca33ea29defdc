/* run.c: `fa-cli run`. Makes or reads the input, runs the passes, checks and reports them. */
#include "client/cli/npy.h"
#include "client/cli/parallel.h"
#include "client/cli/run.h"
#include "client/cli/spawn.h"
#include "client/cli/times.h"

#include <stdlib.h>
#include <string.h>

struct run {
    struct run_options options;
    struct request_tensors tensors;
    struct fa_client *client;
    struct request_places places;
    struct run_context context;
    struct run_pass pass; /* the latest */
    /* With --check: the first pass's outputs and how far they are off. */
    float *first[REQUEST_TENSORS];
    struct request_check first_check;
    bool bad_check;           /* a pass failed its check, or has other bits than the first */
    bool may_be_rounding;     /* of those that failed, one by a finite error */
    double *times[RUN_TIMES]; /* with --repeat over 1 and no --json: one entry a pass */
};

static enum cli_exit make_room(struct run *run, struct cli_error *error)
{
    const struct run_options *options = &run->options;

    for (size_t i = REQUEST_O; options->check && options->repeat > 1 && i < REQUEST_TENSORS; i++) {
        run->first[i] = malloc(run->tensors.count[i] * sizeof(float) + 1);
        if (!run->first[i])
            return cli_fail(error, CLI_FAILED,
                            "no memory to compare the repeats; take a smaller shape");
    }
    for (size_t i = 0; options->repeat > 1 && !options->request.target.json && i < RUN_TIMES; i++) {
        run->times[i] = calloc(options->repeat, sizeof *run->times[i]);
        if (!run->times[i])
            return cli_fail(error, CLI_FAILED, "no memory for the times; take a smaller --repeat");
    }
    return CLI_OK;
}

/* Whether somebody looks at the outputs of the pass. */
static bool is_looked_at(const struct run *run, uint32_t repeat)
{
    const struct run_options *options = &run->options;

    return options->check || ((options->out || options->lse) && repeat + 1 == options->repeat);
}

/* One pass, timed. What came of it is in run->pass. */
static void forward(struct run *run, uint32_t repeat)
{
    const struct fa_forward_args args = request_args(&run->tensors, &run->options.request);
    struct run_pass *pass = &run->pass;
    struct fa_client *reader = is_looked_at(run, repeat) ? run->client : NULL;
    double start;

    *pass = (struct run_pass){0};
    pass->status = request_poison(&run->tensors, reader, &pass->error);
    if (pass->status != FA_OK)
        return;
    start = cli_now_us();
    pass->status = fa_forward(run->client, &args, &pass->result);
    pass->client_us = cli_now_us() - start;
    if (pass->status != FA_OK)
        pass->error = *fa_last_error_record(run->client);
    else if (reader)
        pass->status = request_download(&run->tensors, reader, &pass->error);
}

/* Whether the outputs are the first pass's to the last bit; keeps them when this is the first. */
static bool compare_with_first(struct run *run, bool first)
{
    bool same = true;

    for (size_t i = REQUEST_O; i < REQUEST_TENSORS; i++) {
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
    if (request_check(&run->tensors, &pass->check, error) != CLI_OK)
        return error->code;
    if (repeat == 0)
        run->first_check = pass->check;
    return CLI_OK;
}

static void note_times(struct run *run, uint32_t repeat)
{
    uint64_t phases[CLI_PHASES];

    if (!run->times[0])
        return;
    cli_phases_of(&run->pass.result, phases);
    for (size_t i = 0; i < CLI_PHASES; i++)
        run->times[i][repeat] = (double)phases[i];
    run->times[RUN_CLIENT][repeat] = run->pass.client_us;
}

/* Prints a pass that succeeded. Of repeats a person sees the first check, and those that differ. */
static enum cli_exit report(const struct run *run, uint32_t repeat, struct cli_error *error)
{
    const struct run_pass *pass = &run->pass;

    if (run->options.request.target.json)
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

static enum cli_exit fail_pass(const struct run *run, struct cli_error *error)
{
    if (run->options.request.target.json &&
        run_print_json(&run->context, &run->pass, error) != CLI_OK)
        return error->code;
    return request_fail(&run->options.request, run->client, &run->pass.error, error);
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
    if (pass->checked && request_may_be_rounding(&pass->check))
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
        forward(run, i);
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

    if (options->out && cli_npy_write(options->out, run->tensors.data[REQUEST_O], shape, 4, error))
        return error->code;
    if (options->lse &&
        cli_npy_write(options->lse, run->tensors.data[REQUEST_LSE], shape, 3, error))
        return error->code;
    return CLI_OK;
}

/* Puts the inputs into a region or device memory, when tensors go so. */
static enum cli_exit fill_places(struct run *run, struct cli_error *error)
{
    struct run_pass *pass = &run->pass; /* a failure is shown as a pass that is refused */

    *pass = (struct run_pass){0};
    pass->status =
        request_places_alloc(&run->places, &run->tensors, run->client, 1, NULL, &pass->error);
    if (pass->status == FA_OK)
        pass->status = request_upload(&run->tensors, run->client, &run->places, 0, &pass->error);
    return pass->status == FA_OK ? CLI_OK : fail_pass(run, error);
}

/* From the connection on. */
static enum cli_exit run_connected(struct run *run, struct cli_error *error)
{
    if (run->options.request.timeout_ms > 0)
        fa_client_set_timeout(run->client, run->options.request.timeout_ms);
    run->context =
        (struct run_context){&run->options, &run->tensors, fa_client_info(run->client)->backend};
    if (fill_places(run, error) != CLI_OK || run_passes(run, error) != CLI_OK ||
        write_outputs(run, error) != CLI_OK)
        return error->code;
    if (run->bad_check)
        return cli_fail(
            error, CLI_CHECK, "--check: the result is not what it should be; see above%s%s",
            run->may_be_rounding ? "; " : "", run->may_be_rounding ? REQUEST_ROUNDING_HINT : "");
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
    if (request_tensors_init(&run->tensors, &options->request, error) != CLI_OK)
        return error->code;
    return make_room(run, error);
}

enum cli_exit cli_run(int argc, char **argv, struct cli_error *error)
{
    struct run run = {0};
    enum cli_exit code = prepare(&run, argc, argv, error);

    if (code == CLI_OK)
        code = cli_connect(&run.client, &run.options.request.target, error);
    if (code == CLI_OK)
        code = run_connected(&run, error);
    code = cli_disconnect(run.client, code, error);
    request_places_release(&run.places, NULL, &run.pass.error);
    for (size_t i = 0; i < REQUEST_TENSORS; i++)
        free(run.first[i]);
    for (size_t i = 0; i < RUN_TIMES; i++)
        free(run.times[i]);
    request_tensors_release(&run.tensors);
    return code;
}
