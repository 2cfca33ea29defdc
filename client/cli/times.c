#include "client/cli/times.h"

#include <stdlib.h>
#include <time.h>

double cli_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

const struct cli_phase cli_phases[CLI_PHASES] = {
    [CLI_QUEUE] = {"queue", "queue_us"},
    [CLI_TRANSFER] = {"transfer", "transfer_us"},
    [CLI_KERNEL] = {"kernel", "kernel_us"},
    [CLI_TOTAL] = {"total", "total_us"},
};

void cli_phases_of(const struct fa_forward_result *result, uint64_t out[CLI_PHASES])
{
    out[CLI_QUEUE] = result->queue_us;
    out[CLI_TRANSFER] = result->transfer_us;
    out[CLI_KERNEL] = result->kernel_us;
    out[CLI_TOTAL] = result->total_us;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

void cli_sort(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
}

/* The smallest value that at least percent of them do not exceed. */
double cli_percentile(const double *sorted, size_t count, size_t percent)
{
    return sorted[(count * percent + 99) / 100 - 1];
}

struct cli_spread cli_spread_of(double *values, size_t count)
{
    cli_sort(values, count);
    return (struct cli_spread){values[0], cli_percentile(values, count, 50),
                               cli_percentile(values, count, 99), values[count - 1]};
}
