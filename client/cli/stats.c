/* stats.c: `fa-cli stats`, what the daemon has done since its start and what it holds. */
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/spawn.h"
#include "client/cli/times.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const struct cli_option options[] = {CLI_TARGET_OPTIONS};

static const struct fa_latency *latency_of(const struct fa_version_stats *version, size_t phase)
{
    const struct fa_latency *const phases[CLI_PHASES] = {
        [CLI_QUEUE] = &version->queue,
        [CLI_TRANSFER] = &version->transfer,
        [CLI_KERNEL] = &version->kernel,
        [CLI_TOTAL] = &version->total,
    };

    return phases[phase];
}

/* --- JSON ------------------------------------------------------------------------------------- */

static bool add_latency(cJSON *object, const char *name, const struct fa_latency *latency)
{
    cJSON *entry = cJSON_AddObjectToObject(object, name);
    const bool some = latency->count > 0;

    return entry && cli_json_integer(entry, "count", latency->count) &&
           cli_json_us(entry, "mean", some ? latency->mean_us : NAN) &&
           cli_json_us(entry, "p50", some ? latency->p50_us : NAN) &&
           cli_json_us(entry, "p90", some ? latency->p90_us : NAN) &&
           cli_json_us(entry, "p99", some ? latency->p99_us : NAN) &&
           cli_json_us(entry, "p999", some ? latency->p999_us : NAN) &&
           cli_json_us(entry, "max", some ? latency->max_us : NAN);
}

static bool add_counters(cJSON *object, const struct fa_counters *counters)
{
    return cli_json_integer(object, "requests", counters->requests) &&
           cli_json_integer(object, "errors", counters->errors) &&
           cli_json_by_status(object, "by_status", counters->by_status, FA_STATUS_COUNTS) &&
           cli_json_integer(object, "received_bytes", counters->received_bytes) &&
           cli_json_integer(object, "sent_bytes", counters->sent_bytes);
}

static bool add_limit(cJSON *object, const char *name, uint64_t limit)
{
    return limit > 0 ? cli_json_integer(object, name, limit) : cli_json_text(object, name, NULL);
}

static bool add_usage(cJSON *object, const char *name, const struct fa_usage *usage)
{
    cJSON *entry = cJSON_AddObjectToObject(object, name);

    return entry && cli_json_integer(entry, "connections", usage->connections) &&
           add_limit(entry, "connections_limit", usage->connections_limit) &&
           cli_json_integer(entry, "jobs", usage->jobs) &&
           add_limit(entry, "jobs_limit", usage->jobs_limit) &&
           cli_json_integer(entry, "staged_bytes", usage->staged_bytes) &&
           add_limit(entry, "staged_limit", usage->staged_limit) &&
           cli_json_integer(entry, "mapped_bytes", usage->mapped_bytes) &&
           add_limit(entry, "mapped_limit", usage->mapped_limit) &&
           cli_json_integer(entry, "regions", usage->regions) &&
           add_limit(entry, "regions_limit", usage->regions_limit);
}

static bool add_phases(cJSON *object, const struct fa_version_stats *version)
{
    bool built = true;

    for (size_t i = 0; built && i < CLI_PHASES; i++)
        built = add_latency(object, cli_phases[i].field, latency_of(version, i));
    return built;
}

static bool add_versions(cJSON *object, const struct fa_stats *stats)
{
    cJSON *array = cJSON_AddArrayToObject(object, "versions");
    bool built = array != NULL;

    for (size_t i = 0; built && i < stats->version_count; i++) {
        const struct fa_version_stats *version = &stats->versions[i];
        cJSON *entry = cJSON_CreateObject();

        built = cJSON_AddItemToArray(array, entry) &&
                cli_json_text(entry, "version", version->version[0] ? version->version : NULL) &&
                cli_json_text(entry, "dtype", fa_dtype_name(version->dtype)) &&
                add_counters(entry, &version->counters) && add_phases(entry, version);
    }
    return built;
}

/* Clients, or users, which have neither connection nor pid. */
static bool add_parties(cJSON *object, const char *name, const struct fa_client_stats *parties,
                        size_t count, bool users)
{
    cJSON *array = cJSON_AddArrayToObject(object, name);
    bool built = array != NULL;

    for (size_t i = 0; built && i < count; i++) {
        const struct fa_client_stats *party = &parties[i];
        cJSON *entry = cJSON_CreateObject();

        built = cJSON_AddItemToArray(array, entry) &&
                (users || cli_json_integer(entry, "connection", party->connection)) &&
                cli_json_integer(entry, "uid", party->uid) &&
                (users || cli_json_integer(entry, "pid", party->pid)) &&
                add_counters(entry, &party->counters) &&
                add_latency(entry, "total_us", &party->total) &&
                add_usage(entry, "usage", &party->usage);
    }
    return built;
}

static enum cli_exit print_json(const struct fa_stats *stats, struct cli_error *error)
{
    cJSON *object = cJSON_CreateObject();
    bool built = object && cli_json_integer(object, "uptime_us", stats->uptime_us) &&
                 cli_json_integer(object, "log_lines_held", stats->log_lines_held) &&
                 add_usage(object, "usage", &stats->daemon) && add_versions(object, stats) &&
                 add_parties(object, "clients", stats->clients, stats->client_count, false) &&
                 add_parties(object, "users", stats->users, stats->user_count, true);

    return cli_json_print(object, built, error);
}

/* --- For a person ----------------------------------------------------------------------------- */

struct words {
    char text[32];
};

static struct words bytes(uint64_t count)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double scaled = (double)count;
    struct words out;
    size_t unit = 0;

    while (scaled >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
        scaled /= 1024;
        unit++;
    }
    snprintf(out.text, sizeof out.text, "%.*f %s", unit > 0 && scaled < 100 ? 1 : 0, scaled,
             units[unit]);
    return out;
}

/* Microseconds; a dash when there was none. */
static struct words time_of(const struct fa_latency *latency, double us)
{
    struct words out;

    if (latency->count == 0)
        snprintf(out.text, sizeof out.text, "-");
    else
        snprintf(out.text, sizeof out.text, "%.1f", us);
    return out;
}

static void print_uptime(uint64_t us)
{
    const uint64_t s = us / 1000000, days = s / 86400;

    printf("uptime       ");
    if (days > 0)
        printf("%" PRIu64 " day%s ", days, days == 1 ? "" : "s");
    if (s >= 3600)
        printf("%" PRIu64 " h ", s / 3600 % 24);
    if (s >= 60)
        printf("%" PRIu64 " min ", s / 60 % 60);
    printf("%" PRIu64 " s\n", s % 60);
}

static struct words plain(uint64_t count)
{
    struct words out;

    snprintf(out.text, sizeof out.text, "%" PRIu64, count);
    return out;
}

static void print_use(const char *name, struct words (*format)(uint64_t), uint64_t used,
                      uint64_t limit, const char *what)
{
    printf("  %-11s%s", name, format(used).text);
    if (limit > 0)
        printf(" of %s", format(limit).text);
    printf(" (%s)\n", what);
}

static void print_daemon(const struct fa_stats *stats)
{
    const struct fa_usage *usage = &stats->daemon;

    print_uptime(stats->uptime_us);
    if (stats->log_lines_held > 0)
        printf("log          %" PRIu64 " left out: there were too many lines a second\n",
               stats->log_lines_held);
    puts("\nin use, of the daemon's limits");
    print_use("clients", plain, usage->connections, usage->connections_limit, "connections");
    print_use("in flight", plain, usage->jobs, usage->jobs_limit, "requests not yet answered");
    print_use("staged", bytes, usage->staged_bytes, usage->staged_limit,
              "payloads, inline outputs and scratch");
    print_use("mapped", bytes, usage->mapped_bytes, usage->mapped_limit,
              "shared memory and regions");
    print_use("regions", plain, usage->regions, usage->regions_limit, "registered or allocated");
}

static void print_phase(const char *name, const struct fa_latency *latency)
{
    printf("    %-9s %11s %11s %11s %11s %11s %11s\n", name,
           time_of(latency, latency->mean_us).text, time_of(latency, latency->p50_us).text,
           time_of(latency, latency->p90_us).text, time_of(latency, latency->p99_us).text,
           time_of(latency, latency->p999_us).text, time_of(latency, latency->max_us).text);
}

/* " (INVALID_ARGUMENT 3, CANCELLED 1)", or nothing. */
static void print_errors(const struct fa_counters *counters)
{
    const char *between = " (";

    for (int status = 0; status < FA_STATUS_COUNTS; status++) {
        if (counters->by_status[status] == 0)
            continue;
        printf("%s%s %" PRIu64, between, fa_status_name((enum fa_status)status),
               counters->by_status[status]);
        between = ", ";
    }
    if (counters->errors > 0)
        putchar(')');
}

static void print_version(const struct fa_version_stats *version)
{
    const struct fa_counters *counters = &version->counters;

    if (version->version[0])
        printf("  %s %s: ", version->version,
               version->dtype ? fa_dtype_name(version->dtype) : "of any type");
    else
        printf("  refused before a version was chosen: ");
    printf("%" PRIu64 " request%s, ", counters->requests, counters->requests == 1 ? "" : "s");
    printf("%" PRIu64 " error%s", counters->errors, counters->errors == 1 ? "" : "s");
    print_errors(counters);
    printf(", %s received, ", bytes(counters->received_bytes).text);
    printf("%s sent\n", bytes(counters->sent_bytes).text);
    if (version->total.count == 0)
        return;
    for (size_t i = 0; i < CLI_PHASES; i++)
        print_phase(cli_phases[i].name, latency_of(version, i));
}

static void print_versions(const struct fa_stats *stats)
{
    if (stats->version_count == 0) {
        puts("\nforward passes by version: none yet");
        return;
    }
    puts("\nforward passes by version; times in us, of those that succeeded (p99: 99 % took no "
         "longer)\n"
         "  queue: waiting for its turn; transfer: reading and moving data; kernel: computing;\n"
         "  total: in the daemon");
    printf("%14s%11s %11s %11s %11s %11s %11s\n", "", "mean", "p50", "p90", "p99", "p99.9", "max");
    for (size_t i = 0; i < stats->version_count; i++)
        print_version(&stats->versions[i]);
}

/* The columns that clients and users share. Times are the total in the daemon. */
static void print_party_head(void)
{
    printf(" %9s %7s %9s %9s %10s %10s %10s %9s %9s %9s %7s\n", "requests", "errors", "received",
           "sent", "p50 us", "p99 us", "max us", "in flight", "staged", "mapped", "regions");
}

static void print_party(const struct fa_client_stats *party)
{
    const struct fa_counters *counters = &party->counters;
    const struct fa_latency *total = &party->total;
    const struct fa_usage *usage = &party->usage;

    printf(" %9" PRIu64 " %7" PRIu64 " %9s %9s", counters->requests, counters->errors,
           bytes(counters->received_bytes).text, bytes(counters->sent_bytes).text);
    printf(" %10s %10s %10s", time_of(total, total->p50_us).text,
           time_of(total, total->p99_us).text, time_of(total, total->max_us).text);
    printf(" %9" PRIu64 " %9s %9s %7" PRIu64 "\n", usage->jobs, bytes(usage->staged_bytes).text,
           bytes(usage->mapped_bytes).text, usage->regions);
}

static void print_parties(const struct fa_stats *stats)
{
    puts("\nclients connected now (those of your uid; root sees all); times are totals, as above");
    printf("  %10s %7s %7s", "connection", "uid", "pid");
    print_party_head();
    for (size_t i = 0; i < stats->client_count; i++) {
        const struct fa_client_stats *client = &stats->clients[i];

        printf("  %10" PRIu64 " %7" PRIu32 " %7" PRIu32, client->connection, client->uid,
               client->pid);
        print_party(client);
    }
    puts(
        "\nusers, clients that are gone included (you; root sees all); times are totals, as above");
    printf("  %10s %7s %7s", "", "uid", "clients");
    print_party_head();
    for (size_t i = 0; i < stats->user_count; i++) {
        printf("  %10s %7" PRIu32 " %7" PRIu64, "", stats->users[i].uid,
               stats->users[i].usage.connections);
        print_party(&stats->users[i]);
    }
}

/* --- The command ------------------------------------------------------------------------------ */

static enum cli_exit show(struct fa_client *client, bool json, struct cli_error *error)
{
    struct fa_stats *stats;
    enum cli_exit code = CLI_OK;

    if (fa_stats(client, &stats) != FA_OK)
        return cli_fail(error, CLI_FAILED, "%s", fa_last_error(client));
    if (json) {
        code = print_json(stats, error);
    } else {
        print_daemon(stats);
        print_versions(stats);
        print_parties(stats);
    }
    fa_stats_free(stats);
    return code;
}

static enum cli_exit run(int argc, char **argv, struct cli_error *error)
{
    struct cli_target given;
    struct fa_client *client = NULL;
    uint32_t bits;
    enum cli_exit code =
        cli_parse(&cli_stats_command, argc, argv, &given, sizeof given, &bits, error);

    if (code == CLI_OK)
        code = cli_connect(&client, &given, error);
    if (code == CLI_OK)
        code = show(client, given.json, error);
    return cli_disconnect(client, code, error);
}

static const struct cli_field fields[] = {
    {"uptime_us", "since the daemon's start, in microseconds"},
    {"log_lines_held", "log lines that were left out because there were too many a second"},
    {"usage", "what the daemon holds now, an object; its fields (each limit null: none):"},
    {"  connections", "open connections; connections_limit"},
    {"  jobs", "requests in flight; jobs_limit"},
    {"  staged_bytes", "payloads, inline outputs and scratch; staged_limit"},
    {"  mapped_bytes", "shared memory and regions; mapped_limit"},
    {"  regions", "regions registered or allocated; regions_limit"},
    {"versions", "an array, of each version and type that ran; their fields:"},
    {"  version", "its name; null: of requests refused before one was chosen"},
    {"  dtype", "its data type; null when the version is"},
    {"  requests", "forward passes answered, whatever the answer"},
    {"  errors", "those that did not succeed"},
    {"  by_status", "an object: their number for each status that occurred"},
    {"  received_bytes", "inline inputs, in bytes"},
    {"  sent_bytes", "inline outputs, in bytes"},
    {"  queue_us",
     "waiting for its turn: an object of the successes' count, and in microseconds mean, "
     "p50, p90, p99, p999 (each at most 1/32 above the true one), max; null without any"},
    {"  transfer_us", "reading the payload and moving data to and from the device: the same"},
    {"  kernel_us", "computing: the same"},
    {"  total_us", "in the daemon: the same"},
    {"clients", "an array of those connected now: of your uid, for root of all; their fields:"},
    {"  connection", "its number, as in the daemon's log"},
    {"  uid", "the user's id"},
    {"  pid", "the process that connected"},
    {"  requests ...", "requests to sent_bytes, total_us: as above, of this client"},
    {"  usage", "what it holds: as above"},
    {"users", "an array: as clients, without connection and pid; with all that are gone"},
};

const struct cli_command cli_stats_command = {
    .name = "stats",
    .title = "Say what the daemon has done, how long it took, and what it holds",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = run,
};
