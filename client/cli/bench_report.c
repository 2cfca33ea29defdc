#include "client/cli/bench.h"
#include "client/cli/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

bool bench_was_timed(const struct bench_entry *entry)
{
    return entry->status == FA_OK && entry->check.passed;
}

static double median(const struct bench_context *context, const double *times)
{
    return cli_percentile(times, context->options->repetitions, 50);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static bool add_times(cJSON *object, const struct bench_context *context,
                      const struct bench_entry *entry)
{
    const struct bench_options *options = context->options;
    const double kernel_us = median(context, entry->kernel_us);

    return cli_json_integer(object, "repetitions", options->repetitions) &&
           cli_json_integer(object, "warmup", options->warmup) &&
           cli_json_us(object, "kernel_us", kernel_us) &&
           cli_json_us(object, "kernel_p20_us",
                       cli_percentile(entry->kernel_us, options->repetitions, 20)) &&
           cli_json_us(object, "kernel_p80_us",
                       cli_percentile(entry->kernel_us, options->repetitions, 80)) &&
           cli_json_real(object, "tflops", request_tflops(context->problem, kernel_us)) &&
           cli_json_real(object, "ffma_tflops", context->ffma_tflops) &&
           cli_json_real(object, "change_from_v0", kernel_us / context->v0_us - 1) &&
           cli_json_us(object, "client_us", median(context, entry->client_us));
}

static bool add_check(cJSON *object, const struct bench_entry *entry)
{
    const struct request_check *check = &entry->check;

    return cJSON_AddBoolToObject(object, "passed", check->passed) &&
           cli_json_real(object, "rel_l2", check->rel_l2) &&
           cli_json_real(object, "max_row_error", check->max_row) &&
           cli_json_integer(object, "rows_checked", check->rows);
}

static enum cli_exit print_json(const struct bench_context *context,
                                const struct bench_entry *entry, struct cli_error *error)
{
    const struct fa_forward_result *result = &entry->result;
    const bool ok = entry->status == FA_OK;
    cJSON *object = cJSON_CreateObject();
    bool built = object && cli_json_text(object, "status", fa_status_name(entry->status)) &&
                 cli_json_text(object, "version", entry->version) &&
                 cli_json_text(object, "kernel", ok ? result->kernel : NULL) &&
                 cli_json_text(object, "redirect_reason",
                               ok && result->redirected ? result->redirect_reason : NULL) &&
                 cli_json_text(object, "backend", context->info->backend) &&
                 cli_json_text(object, "device", ok ? result->device : NULL) &&
                 request_add_json(object, &context->options->request, context->problem);

    if (ok)
        built = built && add_check(object, entry);
    else
        built = built && cli_json_text(object, "field", entry->error.field) &&
                cli_json_text(object, "text", entry->error.text);
    if (bench_was_timed(entry))
        built = built && add_times(object, context, entry);
    built = built && cli_json_text(object, "ffma_text", context->lack ? context->lack->text : NULL);
    return cli_json_print(object, built, error);
}

/* --- For a person ---------------------------------------------------------------------------- */

/* What was printed shall be there, whatever comes: a length may take minutes. */
static enum cli_exit flush(struct cli_error *error)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    return cli_fail(error, CLI_FAILED, "standard output could not be written");
}

static void print_lack(const struct fa_error *lack)
{
    char line[sizeof *lack + 32];

    fa_error_format(lack, line, sizeof line);
    printf("ffma    none beside them: %s\n", line);
}

enum cli_exit bench_print_header(const struct bench_context *context, struct cli_error *error)
{
    const struct bench_options *options = context->options;
    char transport[80];

    request_ways_text(&options->request, transport, sizeof transport);
    printf("bench   on %s (backend %s): medians of %" PRIu32
           " passes of each in turns, in us, after "
           "%" PRIu32 " warm-up%s\ninput   ",
           context->device ? context->device->name : "no device", context->info->backend,
           options->repetitions, options->warmup, options->warmup == 1 ? "" : "s");
    request_print_input(&options->request);
    printf(", sent %s\n", transport);
    if (context->lack)
        print_lack(context->lack);
    puts("version kernel          B,H/G,S,D            N mask                   kernel       p20"
         "       p80  TFLOP/s  %FFMA    vs v0  round trip  relative L2");
    return flush(error);
}

/* The value's text in a column; "-" for what is not known. */
static void print_known(int width, const char *text, double value)
{
    printf(" %*s", width, isfinite(value) ? text : "-");
}

static void print_times(const struct bench_context *context, const struct bench_entry *entry)
{
    const size_t count = context->options->repetitions;
    const double kernel_us = median(context, entry->kernel_us);
    const double tflops = request_tflops(context->problem, kernel_us);
    const double ffma_percent = 100 * tflops / context->ffma_tflops;
    const double change_percent = 100 * (kernel_us / context->v0_us - 1);
    char text[32];

    printf(" %9.0f %9.0f %9.0f", kernel_us, cli_percentile(entry->kernel_us, count, 20),
           cli_percentile(entry->kernel_us, count, 80));
    snprintf(text, sizeof text, tflops < 0.01 ? "%.2e" : "%.4g", tflops);
    print_known(8, text, tflops);
    snprintf(text, sizeof text, "%.1f", ffma_percent);
    print_known(6, text, ffma_percent);
    snprintf(text, sizeof text, "%+.1f%%", change_percent);
    print_known(8, text, change_percent);
    printf(" %11.0f  %.2e\n", median(context, entry->client_us), entry->check.rel_l2);
}

static void print_line(const struct bench_context *context, const struct bench_entry *entry)
{
    const struct fa_problem *problem = context->problem;
    const bool ok = entry->status == FA_OK;
    char heads[24] = "", shape[64], line[sizeof entry->error + 32];

    if (problem->kv_heads != problem->heads)
        snprintf(heads, sizeof heads, "/%" PRIu32, problem->kv_heads);
    snprintf(shape, sizeof shape, "%" PRIu32 ",%" PRIu32 "%s,%" PRIu32 ",%" PRIu32, problem->batch,
             problem->heads, heads, problem->q_len, problem->head_dim);
    printf("%-7s %-15s %-15s %6" PRIu32 " %-19s", entry->version, ok ? entry->result.kernel : "-",
           shape, problem->kv_len, fa_mask_name(problem->mask));
    if (bench_was_timed(entry)) {
        print_times(context, entry);
    } else if (ok) {
        printf(" WRONG: relative L2 %.3g, largest row error %.3g (may be %g); not timed\n",
               entry->check.rel_l2, entry->check.max_row, REQUEST_ROW_TOLERANCE);
    } else {
        fa_error_format(&entry->error, line, sizeof line);
        printf(" refused: %s\n", line);
    }
}

enum cli_exit bench_print(const struct bench_context *context, const struct bench_entry *entry,
                          struct cli_error *error)
{
    if (context->options->request.target.json)
        return print_json(context, entry, error);
    print_line(context, entry);
    return flush(error);
}
