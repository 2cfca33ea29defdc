/* fa_histogram.h: a set of times in fixed memory (10 KB), for percentiles. Shared by the daemon's
 * statistics and fa-cli's.
 *
 * Log-linear: every octave has 32 buckets of equal width, so that a percentile is at most 1/32
 * above the true one. Values are nanoseconds from 0 to FA_HISTOGRAM_TOP, about 73 minutes. One
 * that is larger counts as FA_HISTOGRAM_TOP in percentiles; sum, min
 * and max have it as it is. */
#ifndef FA_HISTOGRAM_H
#define FA_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#define FA_HISTOGRAM_TOP ((UINT64_C(1) << 42) - 1)

/* Values below 64 have a bucket each; then 32 buckets for each of the octaves 2^6 to 2^41. */
#define FA_HISTOGRAM_BUCKETS (64 + 36 * 32)

/* All zeroes is an empty one. */
struct fa_histogram {
    uint64_t count;
    uint64_t sum;      /* saturates */
    uint64_t min, max; /* 0 when empty */
    uint64_t buckets[FA_HISTOGRAM_BUCKETS];
};

void fa_histogram_add(struct fa_histogram *histogram, uint64_t value);

/* For each of permilles (1 to 1000, ascending) the smallest value that so many thousandths of all
 * values do not exceed: never below the true one, at most 1/32 above it, and at most max. 0 when
 * empty. */
void fa_histogram_percentiles(const struct fa_histogram *histogram, const uint32_t *permilles,
                              size_t count, uint64_t *out);

#endif
