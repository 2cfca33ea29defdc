/* bench.c: `fa-cli bench`. For each length: every version's result, all of them checked, then all
 * of them timed in turns, one pass in flight at a time. */
#include "client/cli/bench.h"
#include "client/cli/parallel.h"
#include "client/cli/spawn.h"
#include "client/cuda_ffma.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct bench_options options;
    struct fa_client *client;
    struct bench_context context;
    struct bench_entry entries[BENCH_VERSIONS_MAX];
    size_t count;
    struct ffma *ffma;    /* NULL: it is not measured, */
    struct fa_error lack; /* on a GPU because of this */
    double *ffma_tflops;  /* repetitions of it */
    /* Of the length that is measured: */
    struct request_tensors tensors;
    struct request_places places;
    bool refused, wrong;  /* an entry was, at any length, */
    bool may_be_rounding; /* one that was wrong, by a finite error */
};

/* --- Which versions -------------------------------------------------------------------------- */

static enum cli_exit add_entry(struct bench *bench, const char *version, struct cli_error *error)
{
    struct bench_entry *entry = &bench->entries[bench->count];

    for (size_t i = 0; i < bench->count; i++)
        if (!strcmp(bench->entries[i].version, version))
            return CLI_OK;
    if (bench->count == BENCH_VERSIONS_MAX)
        return cli_fail(error, CLI_USAGE, "bench: at most %u versions at once", BENCH_VERSIONS_MAX);
    snprintf(entry->version, sizeof entry->version, "%s", version);
    entry->kernel_us = calloc(bench->options.repetitions, sizeof *entry->kernel_us);
    entry->client_us = calloc(bench->options.repetitions, sizeof *entry->client_us);
    bench->count++;
    if (!entry->kernel_us || !entry->client_us)
        return cli_fail(error, CLI_FAILED, "no memory for the times; take fewer --repetitions");
    return CLI_OK;
}

static enum cli_exit add_all(struct bench *bench, struct cli_error *error)
{
    const struct fa_info *info = fa_client_info(bench->client);

    for (size_t i = 0; i < info->version_count; i++)
        if (add_entry(bench, info->versions[i].name, error) != CLI_OK)
            return error->code;
    return CLI_OK;
}

static bool is_known(const struct fa_info *info, const char *version)
{
    bool known = !strcmp(version, "auto");

    for (size_t i = 0; i < info->version_count; i++)
        known |= !strcmp(version, info->versions[i].name);
    return known;
}

static enum cli_exit choose_versions(struct bench *bench, struct cli_error *error)
{
    const struct fa_info *info = fa_client_info(bench->client);
    char names[400];

    for (uint32_t i = 0; i < bench->options.versions.count; i++) {
        const char *word = bench->options.versions.of[i];
        const bool all = !strcmp(word, "all");

        if (!all && !is_known(info, word)) {
            request_version_names(info, names, sizeof names);
            return cli_fail(error, CLI_USAGE,
                            "bench: '%.64s': there is none of that name; there are all, %s", word,
                            names);
        }
        if ((all ? add_all(bench, error) : add_entry(bench, word, error)) != CLI_OK)
            return error->code;
    }
    return CLI_OK;
}

/* The first of the daemon's GPUs that this process sees, with the FFMA loop on it; else the first
 * of its devices. */
static void choose_device(struct bench *bench)
{
    const struct fa_info *info = bench->context.info;

    if (info->device_count > 0)
        bench->context.device = &info->devices[0];
    if (strcmp(info->backend, "cuda") != 0)
        return;
    bench->lack.status = FA_NOT_FOUND;
    for (size_t i = 0; i < info->device_count && bench->lack.status == FA_NOT_FOUND; i++) {
        bench->ffma = ffma_begin(info->devices[i].uuid, &bench->lack);
        if (bench->ffma) {
            bench->context.device = &info->devices[i];
            return;
        }
    }
    bench->context.lack = &bench->lack;
}

/* --- One pass -------------------------------------------------------------------------------- */

/* False: it failed, as *entry says. */
static bool forward(struct bench *bench, struct bench_entry *entry,
                    struct fa_forward_result *result, double *client_us)
{
    struct fa_forward_args args = request_args(&bench->tensors, &bench->options.request);
    double start;

    args.version = entry->version;
    start = cli_now_us();
    entry->status = fa_forward(bench->client, &args, result);
    *client_us = cli_now_us() - start;
    if (entry->status != FA_OK)
        entry->error = *fa_last_error_record(bench->client);
    return entry->status == FA_OK;
}

static enum cli_exit fail(struct bench *bench, const struct fa_error *wrong,
                          struct cli_error *error)
{
    return request_fail(&bench->options.request, bench->client, wrong, error);
}

/* Notes a pass that failed: the entry is refused, unless that is the end of all. */
static enum cli_exit refuse(struct bench *bench, const struct bench_entry *entry,
                            struct cli_error *error)
{
    bench->refused = true;
    if (entry->status != FA_TIMEOUT && entry->status != FA_SHUTTING_DOWN &&
        entry->status != FA_DEVICE_LOST && fa_client_fd(bench->client) >= 0)
        return CLI_OK;
    return fail(bench, &entry->error, error);
}

/* --- Checking -------------------------------------------------------------------------------- */

/* The pass whose output is checked; it is kept. */
static enum cli_exit first_pass(struct bench *bench, struct bench_entry *entry,
                                struct cli_error *error)
{
    const size_t bytes = bench->tensors.count[REQUEST_O] * sizeof(float);
    struct fa_error wrong = {0};
    double client_us;

    entry->o = malloc(bytes + 1);
    if (!entry->o)
        return cli_fail(error, CLI_FAILED, "no memory for the results; take fewer versions");
    if (request_poison(&bench->tensors, bench->client, &wrong) != FA_OK)
        return fail(bench, &wrong, error);
    if (!forward(bench, entry, &entry->result, &client_us))
        return refuse(bench, entry, error);
    if (request_download(&bench->tensors, bench->client, &wrong) != FA_OK)
        return fail(bench, &wrong, error);
    memcpy(entry->o, bench->tensors.data[REQUEST_O], bytes);
    return CLI_OK;
}

static enum cli_exit check(struct bench *bench, struct cli_error *error)
{
    struct request_output outputs[BENCH_VERSIONS_MAX];
    struct request_check checks[BENCH_VERSIONS_MAX];
    const uint64_t bytes = bench->tensors.count[REQUEST_O] * sizeof(float);
    size_t count = 0;

    if (bytes > request_available_bytes() / bench->count)
        return cli_fail(error, CLI_FAILED, "no memory for %zu results at once; take fewer versions",
                        bench->count);
    for (size_t i = 0; i < bench->count; i++)
        if (first_pass(bench, &bench->entries[i], error) != CLI_OK)
            return error->code;
    for (size_t i = 0; i < bench->count; i++)
        if (bench->entries[i].status == FA_OK)
            outputs[count++] = (struct request_output){bench->entries[i].o, NULL};
    if (count > 0 &&
        request_check_outputs(&bench->tensors, outputs, count, checks, error) != CLI_OK)
        return error->code;
    count = 0;
    for (size_t i = 0; i < bench->count; i++) {
        struct bench_entry *entry = &bench->entries[i];

        if (entry->status != FA_OK)
            continue;
        entry->check = checks[count++];
        bench->wrong |= !entry->check.passed;
        bench->may_be_rounding |= request_may_be_rounding(&entry->check);
    }
    return CLI_OK;
}

/* --- Timing ---------------------------------------------------------------------------------- */

static enum cli_exit take_turns(struct bench *bench, uint32_t round, struct cli_error *error)
{
    const uint32_t warmup = bench->options.warmup;

    for (size_t i = 0; i < bench->count; i++) {
        struct bench_entry *entry = &bench->entries[i];
        struct fa_forward_result result;
        double client_us;

        if (!bench_was_timed(entry))
            continue;
        if (!forward(bench, entry, &result, &client_us)) {
            if (refuse(bench, entry, error) != CLI_OK)
                return error->code;
            continue;
        }
        if (round >= warmup) {
            entry->kernel_us[round - warmup] = (double)result.kernel_us;
            entry->client_us[round - warmup] = client_us;
        }
    }
    return CLI_OK;
}

/* One that fails is the last. */
static void run_ffma(struct bench *bench, uint32_t round)
{
    const double tflops = bench->ffma ? ffma_tflops(bench->ffma, &bench->lack) : NAN;

    if (bench->ffma && isnan(tflops)) {
        ffma_end(bench->ffma);
        bench->ffma = NULL;
        bench->context.lack = &bench->lack;
    }
    if (round >= bench->options.warmup)
        bench->ffma_tflops[round - bench->options.warmup] = tflops;
}

static enum cli_exit time_all(struct bench *bench, struct cli_error *error)
{
    const struct bench_options *options = &bench->options;
    const uint32_t rounds = options->warmup + options->repetitions;
    struct cli_progress progress;
    enum cli_exit code = CLI_OK;

    cli_progress_begin(&progress, "timing", rounds);
    for (uint32_t round = 0; round < rounds && code == CLI_OK; round++) {
        code = take_turns(bench, round, error);
        run_ffma(bench, round);
        atomic_fetch_add(&progress.done, 1);
    }
    cli_progress_end(&progress);
    for (size_t i = 0; i < bench->count && code == CLI_OK; i++) {
        cli_sort(bench->entries[i].kernel_us, options->repetitions);
        cli_sort(bench->entries[i].client_us, options->repetitions);
    }
    if (bench->ffma)
        cli_sort(bench->ffma_tflops, options->repetitions);
    return code;
}

/* --- One length ------------------------------------------------------------------------------ */

static enum cli_exit report(struct bench *bench, struct cli_error *error)
{
    const uint32_t count = bench->options.repetitions;
    struct bench_context *context = &bench->context;

    context->v0_us = context->ffma_tflops = NAN;
    if (bench->ffma)
        context->ffma_tflops = cli_percentile(bench->ffma_tflops, count, 50);
    for (size_t i = 0; i < bench->count; i++)
        if (bench_was_timed(&bench->entries[i]) && !strcmp(bench->entries[i].version, "v0"))
            context->v0_us = cli_percentile(bench->entries[i].kernel_us, count, 50);
    for (size_t i = 0; i < bench->count; i++)
        if (bench_print(context, &bench->entries[i], error) != CLI_OK)
            return error->code;
    return CLI_OK;
}

static enum cli_exit measure(struct bench *bench, struct cli_error *error)
{
    const struct fa_device *device = bench->context.device;
    struct fa_error wrong = {0};

    if (bench->context.info->device_count > 1 && bench->tensors.region_bytes == 0 &&
        bench->tensors.device_bytes == 0)
        return cli_fail(error, CLI_USAGE,
                        "bench: the daemon has several devices, which take turns at tensors of the "
                        "host's: use --transport region or ipc, or a daemon on one (fad --device)");
    if (request_places_alloc(&bench->places, &bench->tensors, bench->client, 1,
                             device ? device->uuid : NULL, &wrong) != FA_OK ||
        request_upload(&bench->tensors, bench->client, &bench->places, 0, &wrong) != FA_OK)
        return fail(bench, &wrong, error);
    if (check(bench, error) != CLI_OK || time_all(bench, error) != CLI_OK ||
        report(bench, error) != CLI_OK)
        return error->code;
    if (request_places_release(&bench->places, bench->client, &wrong) != FA_OK)
        return fail(bench, &wrong, error);
    return CLI_OK;
}

static enum cli_exit bench_length(struct bench *bench, uint32_t length, struct cli_error *error)
{
    struct request_options *options = &bench->options.request;
    enum cli_exit code;

    options->shape.length = length;
    code = request_tensors_init(&bench->tensors, options, error);
    if (code == CLI_OK)
        code = measure(bench, error);
    for (size_t i = 0; i < bench->count; i++) {
        free(bench->entries[i].o);
        bench->entries[i].o = NULL;
    }
    request_tensors_release(&bench->tensors);
    return code;
}

/* --- All ------------------------------------------------------------------------------------- */

static enum cli_exit bench_connected(struct bench *bench, struct cli_error *error)
{
    const struct bench_options *options = &bench->options;

    if (options->request.timeout_ms > 0)
        fa_client_set_timeout(bench->client, options->request.timeout_ms);
    if (choose_versions(bench, error) != CLI_OK)
        return error->code;
    bench->ffma_tflops = calloc(options->repetitions, sizeof *bench->ffma_tflops);
    if (!bench->ffma_tflops)
        return cli_fail(error, CLI_FAILED, "no memory for the times; take fewer --repetitions");
    bench->context = (struct bench_context){.options = options,
                                            .problem = &bench->tensors.problem,
                                            .info = fa_client_info(bench->client)};
    choose_device(bench);
    if (!options->request.target.json && bench_print_header(&bench->context, error) != CLI_OK)
        return error->code;
    for (uint32_t i = 0; i < options->lengths.count; i++)
        if (bench_length(bench, options->lengths.of[i], error) != CLI_OK)
            return error->code;
    if (bench->wrong)
        return cli_fail(error, CLI_CHECK, "a result is not what it should be; see above%s%s",
                        bench->may_be_rounding ? "; " : "",
                        bench->may_be_rounding ? REQUEST_ROUNDING_HINT : "");
    if (bench->refused)
        return cli_fail(error, CLI_FAILED, "a version was refused; see above");
    return CLI_OK;
}

enum cli_exit cli_bench(int argc, char **argv, struct cli_error *error)
{
    struct bench bench = {0};
    struct fa_error unwanted;
    enum cli_exit code = bench_parse(argc, argv, &bench.options, error);

    if (code == CLI_OK)
        code = cli_connect(&bench.client, &bench.options.request.target, error);
    if (code == CLI_OK)
        code = bench_connected(&bench, error);
    code = cli_disconnect(bench.client, code, error);
    request_places_release(&bench.places, NULL, &unwanted);
    ffma_end(bench.ffma);
    free(bench.ffma_tflops);
    for (size_t i = 0; i < bench.count; i++) {
        free(bench.entries[i].kernel_us);
        free(bench.entries[i].client_us);
    }
    return code;
}
