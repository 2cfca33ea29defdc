#include "client/cli/request.h"
#include "client/cli/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool request_add_json(cJSON *object, const struct request_options *options,
                      const struct fa_problem *problem)
{
    const int shape[] = {(int)problem->batch, (int)problem->heads, (int)problem->q_len,
                         (int)problem->head_dim};
    cJSON *array = cJSON_CreateIntArray(shape, 4);
    char transport[80];
    bool random = options->inputs[REQUEST_Q] == NULL;

    request_ways_text(options, transport, sizeof transport);
    return cli_json_text(object, "dtype", fa_dtype_name(problem->dtype)) && array &&
           cJSON_AddItemToObject(object, "shape", array) &&
           cli_json_integer(object, "kv_len", problem->kv_len) &&
           cli_json_integer(object, "kv_heads", problem->kv_heads) &&
           cli_json_text(object, "mask", fa_mask_name(problem->mask)) &&
           cli_json_real(object, "scale", problem->scale) &&
           cli_json_text(object, "transport", transport) &&
           cli_json_text(object, "priority", fa_priority_name(options->priority)) &&
           (options->deadline_us ? cli_json_integer(object, "deadline_us", options->deadline_us)
                                 : cli_json_text(object, "deadline_us", NULL)) &&
           (random ? cli_json_integer(object, "seed", options->seed)
                   : cli_json_text(object, "seed", NULL));
}

double request_tflops(const struct fa_problem *problem, double kernel_us)
{
    return kernel_us > 0 ? (double)fa_problem_flops(problem) / (kernel_us * 1e6) : NAN;
}

void request_print_what(const struct request_options *options, const struct fa_problem *problem,
                        const struct fa_forward_result *result, const char *backend)
{
    printf("ran       %s, kernel %s, on %s (backend %s)\n", result->version, result->kernel,
           result->device, backend);
    if (result->redirected)
        printf("redirect  from %s: %s\n", options->version, result->redirect_reason);
    printf("shape     B=%" PRIu32 " H=%" PRIu32 " S=%" PRIu32 " D=%" PRIu32 ", %" PRIu32
           " key%s in %" PRIu32 " kv head%s, %s, mask %s, scale %.7g\n",
           problem->batch, problem->heads, problem->q_len, problem->head_dim, problem->kv_len,
           problem->kv_len == 1 ? "" : "s", problem->kv_heads, problem->kv_heads == 1 ? "" : "s",
           fa_dtype_name(problem->dtype), fa_mask_name(problem->mask), problem->scale);
}

void request_print_input(const struct request_options *options)
{
    if (options->inputs[REQUEST_Q])
        printf("%s, %s, %s", options->inputs[REQUEST_Q], options->inputs[REQUEST_K],
               options->inputs[REQUEST_V]);
    else
        printf("random, seed %" PRIu64, options->seed);
}

void request_version_names(const struct fa_info *info, char *out, size_t size)
{
    size_t length = (size_t)snprintf(out, size, "auto");

    for (size_t i = 0; i < info->version_count && length < size; i++)
        length += (size_t)snprintf(out + length, size - length, ", %s", info->versions[i].name);
}

/* The daemon does not know --version's value. */
static enum cli_exit refuse_version(const char *version, const struct fa_info *info,
                                    struct cli_error *error)
{
    char names[400];

    request_version_names(info, names, sizeof names);
    return cli_fail(error, CLI_USAGE, "--version '%.64s': there is none of that name; there are %s",
                    version, names);
}

enum cli_exit request_fail(const struct request_options *options, const struct fa_client *client,
                           const struct fa_error *wrong, struct cli_error *error)
{
    char line[sizeof *wrong + 32];

    if (wrong->status == FA_INVALID_ARGUMENT && !strcmp(wrong->field, "version"))
        return refuse_version(options->version, fa_client_info(client), error);
    if (wrong->status == FA_TIMEOUT)
        return cli_fail(error, CLI_FAILED,
                        "TIMEOUT: the daemon did not answer in %g s; give a longer --timeout, or "
                        "none",
                        options->timeout_ms * 1e-3);
    fa_error_format(wrong, line, sizeof line);
    if (wrong->status == FA_RESOURCE_EXHAUSTED && !strcmp(wrong->field, "payload"))
        return cli_fail(error, CLI_FAILED, "%s; use --transport memfd", line);
    return cli_fail(error, CLI_FAILED, "%s", line);
}
