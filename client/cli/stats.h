/* stats.h: the spread of repeated times, and numbers for JSON. */
#ifndef CLI_STATS_H
#define CLI_STATS_H

#include "client/cli/cli.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

struct cli_spread {
    double min, p50, p99, max;
};

/* Sorts values. Percentiles by nearest rank: each is one of the values. count > 0. */
struct cli_spread cli_spread_of(double *values, size_t count);

/* The monotonic clock, in microseconds. */
double cli_now_us(void);

/* Adds what JSON can hold: null for NaN and the infinities; 64-bit integers to the last digit. */
bool cli_json_real(cJSON *object, const char *name, double value);
/* Microseconds, to the nanosecond that the clock has. */
bool cli_json_us(cJSON *object, const char *name, double us);
bool cli_json_integer(cJSON *object, const char *name, uint64_t value);
/* NULL becomes null. */
bool cli_json_text(cJSON *object, const char *name, const char *value);

/* Prints the object on one line of stdout and deletes it. built false: the object lacks parts for
 * want of memory. */
enum cli_exit cli_json_print(cJSON *object, bool built, struct cli_error *error);

#endif
