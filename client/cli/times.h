/* times.h: the clock, the times that the daemon gives with each pass, and the spread of repeated
 * ones. All are in microseconds. */
#ifndef CLI_TIMES_H
#define CLI_TIMES_H

#include "client/fa.h"

#include <stddef.h>
#include <stdint.h>

/* The monotonic clock. */
double cli_now_us(void);

/* The phases of a pass in the daemon, in the order in which they are shown. */
enum { CLI_QUEUE, CLI_TRANSFER, CLI_KERNEL, CLI_TOTAL, CLI_PHASES };

struct cli_phase {
    const char *name;
    const char *field; /* of JSON */
};

extern const struct cli_phase cli_phases[CLI_PHASES];

void cli_phases_of(const struct fa_forward_result *result, uint64_t out[CLI_PHASES]);

/* Ascending. */
void cli_sort(double *values, size_t count);

/* By nearest rank, of ascending values: one of them. count > 0. */
double cli_percentile(const double *sorted, size_t count, size_t percent);

struct cli_spread {
    double min, p50, p99, max;
};

/* Sorts values. Percentiles as of cli_percentile. count > 0. */
struct cli_spread cli_spread_of(double *values, size_t count);

#endif
