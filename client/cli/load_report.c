#include "client/cli/load.h"
#include "client/cli/json.h"
#include "client/cli/times.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const end_names[] = {
    [LOAD_COMPLETE] = "complete",
    [LOAD_INTERRUPTED] = "interrupted",
    [LOAD_LOST] = "lost",
    [LOAD_TIMED_OUT] = "timeout",
};

/* --- What follows from the results ----------------------------------------------------------- */

uint32_t load_compared(const struct load *load)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < load->options.clients; i++)
        count += load->clients[i].compared;
    return count;
}

uint32_t load_different(const struct load *load)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < load->options.clients; i++)
        count += load->clients[i].compared && !load->clients[i].same_bits;
    return count;
}

/* So many of those that were answered in the measurement a second; NaN when none was. */
static double per_second(const struct load_results *results, uint64_t count)
{
    return results->answered > 0 ? (double)count / results->seconds : NAN;
}

static double gflops(const struct load *load)
{
    return per_second(&load->results, load->results.answered) *
           (double)fa_problem_flops(&load->tensors.problem) * 1e-9;
}

/* What the slowest and the fastest client had answered. */
static void find_extremes(const struct load *load, uint64_t *slowest, uint64_t *fastest)
{
    *slowest = UINT64_MAX;
    *fastest = 0;
    for (uint32_t i = 0; i < load->options.clients; i++) {
        uint64_t count = load->clients[i].answered;

        *slowest = count < *slowest ? count : *slowest;
        *fastest = count > *fastest ? count : *fastest;
    }
}

/* The columns of a distribution, in microseconds. */
enum { MIN, P50, P90, P99, P999, MAX, COLUMNS };
static const char *const column_titles[COLUMNS] = {"min", "p50", "p90", "p99", "p99.9", "max"};
static const char *const column_names[COLUMNS] = {"min", "p50", "p90", "p99", "p999", "max"};

/* What a histogram counts in, in microseconds. */
#define NANOSECONDS  1e-3
#define MICROSECONDS 1.0

/* NaN when there is nothing. */
static void columns_of(const struct fa_histogram *histogram, double unit, double out[COLUMNS])
{
    static const uint32_t permilles[] = {500, 900, 990, 999};
    uint64_t values[COLUMNS] = {histogram->min};

    fa_histogram_percentiles(histogram, permilles, 4, &values[P50]);
    values[MAX] = histogram->max;
    for (size_t i = 0; i < COLUMNS; i++)
        out[i] = histogram->count > 0 ? (double)values[i] * unit : NAN;
}

/* --- JSON ------------------------------------------------------------------------------------ */

static bool add_distribution(cJSON *object, const char *name, const struct fa_histogram *histogram,
                             double unit)
{
    cJSON *inner = cJSON_AddObjectToObject(object, name);
    double columns[COLUMNS];
    bool built = inner != NULL;

    columns_of(histogram, unit, columns);
    for (size_t i = 0; built && i < COLUMNS; i++)
        built = cli_json_us(inner, column_names[i], columns[i]);
    return built &&
           cli_json_us(inner, "mean", (double)histogram->sum / (double)histogram->count * unit);
}

/* "field: text" */
static void example_text(const struct fa_error *example, char *out, size_t size)
{
    snprintf(out, size, "%s%s%s", example->field, *example->field ? ": " : "", example->text);
}

static bool add_statuses(cJSON *object, const struct load_results *results)
{
    bool built =
        cli_json_by_status(object, "by_status", results->by_status, LOAD_STATUSES) &&
        cli_json_by_status(object, "warmup_by_status", results->warmup_by_status, LOAD_STATUSES);
    cJSON *examples = built ? cJSON_AddObjectToObject(object, "examples") : NULL;

    built = examples != NULL;
    for (size_t i = 0; built && i < LOAD_STATUSES; i++) {
        const struct fa_error *example = &results->examples[i];
        char text[sizeof *example];

        if (example->status == FA_OK)
            continue;
        example_text(example, text, sizeof text);
        built = cli_json_text(examples, fa_status_name(example->status), text);
    }
    return built;
}

/* What ran, and how the load was. */
static bool add_load(cJSON *object, const struct load *load)
{
    const struct load_options *options = &load->options;
    const struct fa_forward_result *reference = &load->reference;

    return cli_json_text(object, "version", reference->version) &&
           cli_json_text(object, "kernel", reference->kernel) &&
           cJSON_AddBoolToObject(object, "redirected", reference->redirected) &&
           cli_json_text(object, "backend", fa_client_info(load->clients[0].client)->backend) &&
           cli_json_text(object, "device", reference->device) &&
           request_add_json(object, &options->request, &load->tensors.problem) &&
           cli_json_integer(object, "clients", options->clients) &&
           cli_json_integer(object, "inflight", options->inflight) &&
           cli_json_real(object, "rate", options->rate > 0 ? options->rate : NAN) &&
           cli_json_real(object, "warmup_s", options->warmup) &&
           cli_json_real(object, "duration_s", options->duration);
}

static bool add_counts(cJSON *object, const struct load *load)
{
    const struct load_results *results = &load->results;

    return cli_json_text(object, "ended", end_names[results->end]) &&
           cli_json_real(object, "seconds", rint(results->seconds * 1e6) / 1e6) &&
           cli_json_integer(object, "answered", results->answered) &&
           cli_json_integer(object, "requests", results->requests) &&
           cli_json_integer(object, "failed", results->failed) &&
           cli_json_integer(object, "unanswered", results->unanswered) &&
           cli_json_integer(object, "warmup_failed", results->warmup_failed) &&
           add_statuses(object, results) &&
           cli_json_real(object, "requests_per_s", per_second(results, results->answered)) &&
           cli_json_real(object, "gflops", gflops(load));
}

static bool add_latencies(cJSON *object, const struct load_results *results)
{
    bool built = add_distribution(object, "latency_us", &results->latency, NANOSECONDS);

    for (size_t i = 0; built && i < CLI_PHASES; i++)
        built = add_distribution(object, cli_phases[i].field, &results->phases[i], MICROSECONDS);
    return built && cJSON_AddBoolToObject(object, "latency_omits_unsent", results->unsent > 0);
}

static bool add_clients(cJSON *object, const struct load *load)
{
    cJSON *array = cJSON_AddArrayToObject(object, "client_answered");
    uint64_t slowest, fastest;
    bool built = array != NULL;

    for (uint32_t i = 0; built && i < load->options.clients; i++)
        built = cJSON_AddItemToArray(
            array, cJSON_CreateNumber((double)load->clients[i].answered)); /* below 2^53 */
    find_extremes(load, &slowest, &fastest);
    return built && cli_json_real(object, "slowest_per_s", per_second(&load->results, slowest)) &&
           cli_json_real(object, "fastest_per_s", per_second(&load->results, fastest));
}

static bool add_pace(cJSON *object, const struct load *load)
{
    const struct load_results *results = &load->results;

    if (load->options.rate > 0)
        return cli_json_integer(object, "scheduled", results->scheduled) &&
               cli_json_integer(object, "unsent", results->unsent) &&
               cli_json_integer(object, "late", results->late) &&
               cli_json_us(object, "late_max_us", results->late_max_us);
    return cJSON_AddNullToObject(object, "scheduled") && cJSON_AddNullToObject(object, "unsent") &&
           cJSON_AddNullToObject(object, "late") && cJSON_AddNullToObject(object, "late_max_us");
}

enum cli_exit load_print_json(const struct load *load, struct cli_error *error)
{
    cJSON *object = cJSON_CreateObject();
    bool built = object && add_load(object, load) && add_counts(object, load) &&
                 add_latencies(object, &load->results) && add_clients(object, load) &&
                 add_pace(object, load) &&
                 cli_json_integer(object, "compared", load_compared(load)) &&
                 cli_json_integer(object, "different", load_different(load)) &&
                 cli_json_real(object, "rel_l2", load->checked ? load->check.rel_l2 : NAN);

    return cli_json_print(object, built, error);
}

/* --- For a person ---------------------------------------------------------------------------- */

static void print_load(const struct load_options *options)
{
    char transport[80];

    request_ways_text(&options->request, transport, sizeof transport);
    printf("load      %" PRIu32 " client%s, ", options->clients, options->clients == 1 ? "" : "s");
    if (options->rate > 0)
        printf("%g requests/s in all, at most %" PRIu32 " in flight each", options->rate,
               options->inflight);
    else
        printf("%" PRIu32 " in flight each", options->inflight);
    printf("; sent %s, priority %s", transport, fa_priority_name(options->request.priority));
    if (options->request.deadline_us > 0)
        printf(", deadline %" PRIu64 " us", options->request.deadline_us);
    printf("; %g s after %g s of warm-up\n", options->duration, options->warmup);
}

static void print_speed(const struct load *load)
{
    const struct load_results *results = &load->results;

    if (results->seconds == 0) {
        puts("requests  none: the load ended in its warm-up");
    } else if (results->answered == 0 && results->failed > 0) {
        printf("requests  none OK in %.3f s\n", results->seconds);
    } else if (results->answered == 0) {
        printf("requests  none was answered in the measurement, which took %.3f s; take a longer "
               "--duration\n",
               results->seconds);
    } else {
        printf("requests  %" PRIu64 " OK in %.3f s: %.1f requests/s", results->answered,
               results->seconds, per_second(results, results->answered));
        if (load->options.rate > 0)
            printf(" (asked %g/s)", load->options.rate);
        printf(", %.4g GFLOP/s\n", gflops(load));
    }
}

static void print_status(const struct load_results *results, enum fa_status status)
{
    const struct fa_error *example = &results->examples[status];
    const uint64_t count = results->by_status[status], warmup = results->warmup_by_status[status];
    char text[sizeof *example];

    if (example->status == FA_OK)
        return;
    example_text(example, text, sizeof text);
    printf("  %-19s", fa_status_name(status));
    if (count > 0)
        printf(" %9" PRIu64, count);
    if (warmup > 0)
        printf(" %9" PRIu64 " in the warm-up", warmup);
    printf(", such as: %s\n", text);
}

static void print_counts(const struct load *load)
{
    const struct load_results *results = &load->results;

    if (results->end == LOAD_INTERRUPTED)
        puts("ended     early, by Ctrl-C");
    if (results->end == LOAD_LOST)
        puts("ended     early: the daemon went away");
    if (results->end == LOAD_TIMED_OUT)
        puts("ended     early: a request was not answered in time");
    print_speed(load);
    if (results->failed > 0)
        printf("failed    %" PRIu64 " of %" PRIu64 "\n", results->failed, results->requests);
    if (results->warmup_failed > 0)
        printf("failed    %" PRIu64 " in the warm-up\n", results->warmup_failed);
    for (size_t i = 0; i < LOAD_STATUSES; i++)
        print_status(results, (enum fa_status)i);
    if (results->unanswered > 0)
        printf("waiting   %" PRIu64 " requests were not answered when waiting ended\n",
               results->unanswered);
}

static void print_row(const char *name, const struct fa_histogram *histogram, double unit)
{
    double columns[COLUMNS];

    columns_of(histogram, unit, columns);
    printf("  %-12s", name);
    for (size_t i = 0; i < COLUMNS; i++)
        printf(" %10.0f", columns[i]);
    putchar('\n');
}

static void print_latencies(const struct load_results *results)
{
    if (results->latency.count == 0)
        return;
    printf("latency   in us");
    for (size_t i = 0; i < COLUMNS; i++)
        printf(" %10s", column_titles[i]);
    putchar('\n');
    print_row("here", &results->latency, NANOSECONDS);
    for (size_t i = 0; i < CLI_PHASES; i++)
        print_row(cli_phases[i].name, &results->phases[i], MICROSECONDS);
    if (results->unsent > 0)
        printf("          without the %" PRIu64
               " that were never sent: with them, latencies would be longer\n",
               results->unsent);
}

static void print_pace(const struct load_results *results)
{
    printf("pace      %" PRIu64 " were due; %" PRIu64
           " were sent over %d ms late or never, by up to %.1f ms\n",
           results->scheduled, results->late, LOAD_LATE_US / 1000, results->late_max_us * 1e-3);
    if (results->unsent > 0)
        printf("          %" PRIu64
               " of them were never sent, since --inflight were in flight: the daemon is slower "
               "than --rate\n",
               results->unsent);
}

static void print_check(const struct load *load)
{
    const uint32_t compared = load_compared(load), different = load_different(load);

    if (compared == 0)
        printf("check     none compared with a pass alone");
    else if (different > 0)
        printf("check     FAIL: of %" PRIu32 " client%s %" PRIu32
               " got a result that differs from a pass alone",
               compared, compared == 1 ? "" : "s", different);
    else
        printf("check     the last results of %" PRIu32 " of %" PRIu32
               " client%s: the bits of a pass alone",
               compared, load->options.clients, load->options.clients == 1 ? "" : "s");
    if (load->checked)
        printf(", whose relative L2 error is %.3g", load->check.rel_l2);
    putchar('\n');
}

void load_print(const struct load *load)
{
    const struct load_options *options = &load->options;
    const struct load_results *results = &load->results;
    uint64_t slowest, fastest;

    request_print_what(&options->request, &load->tensors.problem, &load->reference,
                       fa_client_info(load->clients[0].client)->backend);
    print_load(options);
    print_counts(load);
    print_latencies(results);
    if (options->rate > 0)
        print_pace(results);
    find_extremes(load, &slowest, &fastest);
    if (options->clients > 1 && results->answered > 0)
        printf("fairness  the slowest client had %.1f requests/s, the fastest %.1f\n",
               per_second(results, slowest), per_second(results, fastest));
    print_check(load);
}
