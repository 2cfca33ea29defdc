/* ping.c: `fa-cli ping`, round trips to the daemon's loop and back. */
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/spawn.h"
#include "client/cli/times.h"

#include <stdlib.h>

struct ping_options {
    struct cli_target target; /* first */
    uint32_t count;
};

static const struct cli_option options[] = {
    {"count", "N", "10", "round trips", cli_parse_count, offsetof(struct ping_options, count)},
    CLI_TARGET_OPTIONS,
};

static enum cli_exit print_json(const struct cli_spread *spread, uint32_t count,
                                struct cli_error *error)
{
    cJSON *object = cJSON_CreateObject();
    bool built =
        object && cli_json_integer(object, "count", count) &&
        cli_json_us(object, "min_us", spread->min) && cli_json_us(object, "p50_us", spread->p50) &&
        cli_json_us(object, "p99_us", spread->p99) && cli_json_us(object, "max_us", spread->max);

    return cli_json_print(object, built, error);
}

static enum cli_exit ping(struct fa_client *client, const struct ping_options *given,
                          struct cli_error *error)
{
    double *times = calloc(given->count, sizeof *times);
    struct cli_spread spread;

    if (!times)
        return cli_fail(error, CLI_FAILED, "no memory for the times; take a smaller --count");
    for (uint32_t i = 0; i < given->count; i++) {
        double start = cli_now_us();

        if (fa_ping(client) != FA_OK) {
            free(times);
            return cli_fail(error, CLI_FAILED, "%s", fa_last_error(client));
        }
        times[i] = cli_now_us() - start;
    }
    spread = cli_spread_of(times, given->count);
    free(times);
    if (given->target.json)
        return print_json(&spread, given->count, error);
    printf("%u round trips: min %.1f us, p50 %.1f us, p99 %.1f us, max %.1f us\n", given->count,
           spread.min, spread.p50, spread.p99, spread.max);
    return CLI_OK;
}

static enum cli_exit run(int argc, char **argv, struct cli_error *error)
{
    struct ping_options given;
    struct fa_client *client = NULL;
    uint32_t bits;
    enum cli_exit code =
        cli_parse(&cli_ping_command, argc, argv, &given, sizeof given, &bits, error);

    if (code == CLI_OK)
        code = cli_connect(&client, &given.target, error);
    if (code == CLI_OK)
        code = ping(client, &given, error);
    return cli_disconnect(client, code, error);
}

static const struct cli_field fields[] = {
    {"count", "round trips"},
    {"min_us", "the shortest round trip, in microseconds"},
    {"p50_us", "the median, in microseconds"},
    {"p99_us", "99 of 100 took no longer; in microseconds"},
    {"max_us", "the longest, in microseconds"},
};

const struct cli_command cli_ping_command = {
    .name = "ping",
    .title = "Time round trips to the daemon",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = run,
};
