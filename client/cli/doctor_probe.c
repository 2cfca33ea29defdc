#include "client/cli/doctor.h"
#include "client/cli/request.h"
#include "client/cli/times.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enough for a median; the first, which meets new memory, is the one that is checked. */
#define PASSES 11

/* A daemon that takes longer for a pass this small hangs, as far as a user can tell. */
#define TIMEOUT_MS 10000

const char *const doctor_way_names[DOCTOR_WAYS] = {"inline", "memfd", "region", "cuda-ipc"};

/* The pass: a few rows of two heads, of which no length is a multiple of a tile. */
static struct request_options options_for(enum request_way way)
{
    struct request_options options = {
        .shape = {1, 2, 47, 64}, .seed = 1, .version = "auto", .wants_lse = true};

    for (size_t i = 0; i < REQUEST_TENSORS; i++)
        options.ways.of[i] = way;
    return options;
}

/* --- In this process ------------------------------------------------------------------------- */

static enum fa_status run_here(const struct request_tensors *tensors, struct doctor_probe *out)
{
    const struct fa_target target = {FA_CPU, 0};
    const struct fa_tensors given = {tensors->data[REQUEST_Q], tensors->data[REQUEST_K],
                                     tensors->data[REQUEST_V], tensors->data[REQUEST_O],
                                     tensors->data[REQUEST_LSE]};
    struct fa_launch launch = {.problem = &tensors->problem, .tensors = &given, .problem_count = 1};
    struct fa_choice choice;
    struct fa_error error;
    enum fa_status status = fa_choose("auto", &target, &tensors->problem, &choice, &error);

    if (status != FA_OK)
        return status;
    snprintf(out->kernel, sizeof out->kernel, "%s", choice.kernel->name);
    launch.range.count = choice.kernel->units(&tensors->problem);
    launch.state = aligned_alloc(64, choice.kernel->state(&tensors->problem) + 64);
    launch.scratch =
        aligned_alloc(64, choice.kernel->scratch(&tensors->problem, launch.range.count) + 64);
    status = FA_RESOURCE_EXHAUSTED;
    if (launch.state && launch.scratch) {
        memset(launch.state, 0, choice.kernel->state(&tensors->problem));
        status = choice.kernel->launch(&launch);
    }
    free(launch.state);
    free(launch.scratch);
    return status;
}

void doctor_probe_cpu(struct doctor_probe *out)
{
    const struct request_options options = options_for(REQUEST_INLINE);
    struct request_tensors tensors;
    struct request_check check = {0};
    struct cli_error error = {0};
    struct fa_error ignored;
    enum fa_status status = FA_RESOURCE_EXHAUSTED;

    *out = (struct doctor_probe){0};
    if (request_tensors_init(&tensors, &options, &error) == CLI_OK) {
        request_poison(&tensors, NULL, &ignored);
        status = run_here(&tensors, out);
        if (status == FA_OK)
            request_check(&tensors, &check, &error);
    }
    request_tensors_release(&tensors);
    out->cpu_works = check.passed;
    if (!out->cpu_works)
        snprintf(out->cpu_error, sizeof out->cpu_error, "%.200s",
                 error.text[0]     ? error.text
                 : status != FA_OK ? fa_status_text(status)
                                   : "its result is wrong");
}

/* --- Through the daemon ---------------------------------------------------------------------- */

/* One pass, checked. */
static enum fa_status check_pass(struct fa_client *client, struct request_tensors *tensors,
                                 const struct fa_forward_args *args, struct request_check *check,
                                 struct fa_error *wrong)
{
    struct cli_error error = {0};
    enum fa_status status = request_poison(tensors, client, wrong);

    if (status != FA_OK)
        return status;
    status = fa_forward(client, args, NULL);
    *wrong = *fa_last_error_record(client);
    if (status == FA_OK)
        status = request_download(tensors, client, wrong);
    if (status == FA_OK && (request_check(tensors, check, &error) != CLI_OK || !check->passed))
        return fa_error_set(wrong, FA_INTERNAL, NULL, "%.200s",
                            error.text[0] ? error.text : "the result is wrong");
    return status;
}

static enum fa_status time_passes(struct fa_client *client, const struct fa_forward_args *args,
                                  double *us)
{
    double times[PASSES];
    enum fa_status status = FA_OK;

    for (size_t i = 0; i < PASSES && status == FA_OK; i++) {
        const double start = cli_now_us();

        status = fa_forward(client, args, NULL);
        times[i] = cli_now_us() - start;
    }
    if (status == FA_OK)
        *us = cli_spread_of(times, PASSES).p50;
    return status;
}

/* With tensors that are made; *places are to be released. */
static enum fa_status try_passes(struct fa_client *client, struct request_tensors *tensors,
                                 const struct request_options *options,
                                 struct request_places *places, struct doctor_way_result *out)
{
    struct request_check check = {0};
    struct fa_forward_args args;
    struct fa_error wrong = {0};
    enum fa_status status = request_places_alloc(places, tensors, client, 1, NULL, &wrong);

    if (status == FA_OK)
        status = request_upload(tensors, client, places, 0, &wrong);
    args = request_args(tensors, options);
    if (status == FA_OK)
        status = check_pass(client, tensors, &args, &check, &wrong);
    if (status == FA_OK) {
        status = time_passes(client, &args, &out->us);
        wrong = *fa_last_error_record(client);
    }
    if (status != FA_OK)
        fa_error_format(&wrong, out->text, sizeof out->text);
    return status;
}

static void probe_way(struct fa_client *client, enum request_way way, struct doctor_way_result *out)
{
    const struct request_options options = options_for(way);
    struct request_tensors tensors;
    struct request_places places = {0};
    struct cli_error error = {0};
    struct fa_error ignored;

    out->outcome = DOCTOR_FAILS;
    if (request_tensors_init(&tensors, &options, &error) != CLI_OK)
        snprintf(out->text, sizeof out->text, "%.300s", error.text);
    else if (try_passes(client, &tensors, &options, &places, out) == FA_OK)
        out->outcome = DOCTOR_WORKS;
    request_places_release(&places, client, &ignored);
    request_tensors_release(&tensors);
}

/* What is known to stand in the way is told; only where nothing is, it is tried. */
static void doctor_probe_ipc(struct fa_client *client, const struct doctor_cuda *cuda,
                             const struct doctor_daemon *daemon, struct doctor_way_result *out)
{
    const char *lack = cuda->ipc_lack[0] ? cuda->ipc_lack : daemon->ipc_lack;

    if (!lack[0]) {
        probe_way(client, REQUEST_IPC, out);
        return;
    }
    out->outcome = DOCTOR_IMPOSSIBLE;
    snprintf(out->text, sizeof out->text, "%s", lack);
}

/* --- All ways -------------------------------------------------------------------------------- */

static void not_offered(const struct doctor_cuda *cuda, const struct fa_info *info,
                        enum doctor_way way, struct doctor_way_result *out)
{
    out->outcome = DOCTOR_NOT_OFFERED;
    if (way == DOCTOR_IPC && cuda->ipc_lack[0])
        snprintf(out->text, sizeof out->text, "%s", cuda->ipc_lack);
    else if (way == DOCTOR_IPC && strcmp(info->backend, "cpu") == 0)
        snprintf(out->text, sizeof out->text, "the daemon serves on the CPU");
    else
        snprintf(out->text, sizeof out->text, "the daemon, on backend %s, does not offer it",
                 info->backend);
}

static void tell(const struct doctor_way_result *result, const char *name,
                 struct doctor_findings *findings)
{
    switch (result->outcome) {
    case DOCTOR_WORKS:
        doctor_add(findings, name, DOCTOR_OK, "%.0f us a small pass, and its result is right",
                   result->us);
        break;
    case DOCTOR_FAILS:
        doctor_add(findings, name, DOCTOR_LACK, "%s", result->text);
        doctor_advise(findings, "see the daemon's log");
        break;
    case DOCTOR_IMPOSSIBLE:
        doctor_add(findings, name, DOCTOR_NOTE,
                   "not from this process: %s; the other ways need no CUDA", result->text);
        break;
    case DOCTOR_NOT_OFFERED:
        doctor_add(findings, name, DOCTOR_NOTE, "not offered: %s", result->text);
        break;
    case DOCTOR_UNTRIED:
        break;
    }
}

void doctor_probe_ways(struct doctor_probe *out, const struct doctor_cuda *cuda,
                       const struct doctor_daemon *daemon, struct doctor_findings *findings)
{
    static const enum request_way ways[] = {[DOCTOR_INLINE] = REQUEST_INLINE,
                                            [DOCTOR_MEMFD] = REQUEST_MEMFD,
                                            [DOCTOR_REGION] = REQUEST_REGION};
    struct fa_client *client = daemon->client;

    if (!client)
        return;
    fa_client_set_timeout(client, TIMEOUT_MS);
    for (enum doctor_way i = 0; i < DOCTOR_WAYS; i++) {
        struct doctor_way_result *result = &out->ways[i];

        /* A failure may have closed the connection; where that cannot be mended, this one fails,
         * too, and says so. */
        if (fa_client_fd(client) < 0)
            fa_client_reconnect(client);
        if (!fa_info_has_transport(fa_client_info(client), doctor_way_names[i]))
            not_offered(cuda, fa_client_info(client), i, result);
        else if (i == DOCTOR_IPC)
            doctor_probe_ipc(client, cuda, daemon, result);
        else
            probe_way(client, ways[i], result);
        tell(result, doctor_way_names[i], findings);
    }
}
