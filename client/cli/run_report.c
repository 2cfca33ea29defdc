#include "client/cli/run.h"
#include "client/cli/json.h"
#include "client/cli/times.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* --- JSON ------------------------------------------------------------------------------------ */

/* What ran, and how long. */
static bool add_result(cJSON *object, const struct run_context *context,
                       const struct run_pass *pass)
{
    uint64_t phases[CLI_PHASES];
    bool built = true;

    cli_phases_of(&pass->result, phases);
    for (size_t i = 0; built && i < CLI_PHASES; i++)
        built = cli_json_integer(object, cli_phases[i].field, phases[i]);
    return built && cli_json_us(object, "client_us", pass->client_us) &&
           cli_json_real(object, "tflops",
                         request_tflops(&context->tensors->problem, (double)phases[CLI_KERNEL]));
}

static bool add_check(cJSON *object, const struct run_pass *pass)
{
    const struct request_check *check = &pass->check;

    return cli_json_real(object, "rel_l2", check->rel_l2) &&
           cli_json_real(object, "max_row_error", check->max_row) &&
           cli_json_real(object, "max_lse_error", check->max_lse) &&
           cli_json_integer(object, "rows_checked", check->rows) &&
           cJSON_AddBoolToObject(object, "passed", check->passed) &&
           cJSON_AddBoolToObject(object, "same_bits", pass->same_bits);
}

enum cli_exit run_print_json(const struct run_context *context, const struct run_pass *pass,
                             struct cli_error *error)
{
    const struct fa_forward_result *result = &pass->result;
    const bool ok = pass->status == FA_OK;
    cJSON *object = cJSON_CreateObject();
    bool built = object && cli_json_text(object, "status", fa_status_name(pass->status)) &&
                 cli_json_text(object, "version",
                               ok ? result->version : context->options->request.version) &&
                 cli_json_text(object, "kernel", ok ? result->kernel : NULL) &&
                 cJSON_AddBoolToObject(object, "redirected", ok && result->redirected) &&
                 cli_json_text(object, "redirect_reason",
                               ok && result->redirected ? result->redirect_reason : NULL) &&
                 cli_json_text(object, "backend", context->backend) &&
                 cli_json_text(object, "device", ok ? result->device : NULL) &&
                 request_add_json(object, &context->options->request, &context->tensors->problem);

    if (ok) {
        built = built && add_result(object, context, pass);
        if (pass->checked)
            built = built && add_check(object, pass);
    } else {
        built = built && cli_json_text(object, "field", pass->error.field) &&
                cli_json_text(object, "text", pass->error.text);
    }
    return cli_json_print(object, built, error);
}

/* --- For a person ---------------------------------------------------------------------------- */

void run_print_what(const struct run_context *context, const struct run_pass *pass)
{
    const struct request_options *options = &context->options->request;
    char transport[80];

    request_ways_text(options, transport, sizeof transport);
    request_print_what(options, &context->tensors->problem, &pass->result, context->backend);
    printf("input     ");
    request_print_input(options);
    printf(", sent %s\n", transport);
}

static void print_speed(const struct fa_problem *problem, double kernel_us)
{
    double tflops = request_tflops(problem, kernel_us);

    if (isfinite(tflops))
        printf("speed     %.4g TFLOP/s in the kernel (%.4g GFLOP)\n", tflops,
               (double)fa_problem_flops(problem) * 1e-9);
}

void run_print_times(const struct run_context *context, const struct run_pass *pass)
{
    const struct fa_forward_result *result = &pass->result;

    printf("latency   queue %" PRIu64 " us, transfer %" PRIu64 " us, kernel %" PRIu64
           " us; total %" PRIu64 " us in the daemon, %.0f us round trip\n",
           result->queue_us, result->transfer_us, result->kernel_us, result->total_us,
           pass->client_us);
    print_speed(&context->tensors->problem, (double)result->kernel_us);
}

void run_print_check(const struct request_check *check)
{
    printf(
        "check     %s: relative L2 %.3g, largest row error %.3g (may be %g), LSE error %.3g (may "
        "be %g)\n",
        check->passed ? "PASS" : "FAIL", check->rel_l2, check->max_row, REQUEST_ROW_TOLERANCE,
        check->max_lse, REQUEST_LSE_TOLERANCE);
    if (request_may_be_rounding(check))
        puts("          " REQUEST_ROUNDING_HINT);
    if (check->rows == check->total)
        printf("          all %" PRIu64 " rows against float64\n", check->total);
    else
        printf("          a sample of %" PRIu64 " of %" PRIu64
               " rows against float64 (large shape)\n",
               check->rows, check->total);
}

void run_print_spread(const struct run_context *context, double *times[RUN_TIMES], size_t count)
{
    struct cli_spread spread;
    double kernel_p50 = 0;

    printf("latency   of %zu, in us      min          p50          p99\n", count);
    for (size_t i = 0; i < RUN_TIMES; i++) {
        spread = cli_spread_of(times[i], count);
        printf("  %-12s %14.0f %12.0f %12.0f\n",
               i == RUN_CLIENT ? "round trip" : cli_phases[i].name, spread.min, spread.p50,
               spread.p99);
        if (i == CLI_KERNEL)
            kernel_p50 = spread.p50;
    }
    print_speed(&context->tensors->problem, kernel_p50);
}
