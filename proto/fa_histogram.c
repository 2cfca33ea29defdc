#include "proto/fa_histogram.h"

#include <assert.h>

/* A value's 6 leading bits choose the bucket in its octave. */
#define LEADING_BITS 6
#define STEPS        (1u << (LEADING_BITS - 1))

static unsigned octave_shift(uint64_t value)
{
    const unsigned bits = 64 - (unsigned)__builtin_clzll(value | 1);

    return bits > LEADING_BITS ? bits - LEADING_BITS : 0;
}

static size_t bucket_of(uint64_t value)
{
    const unsigned shift = octave_shift(value);

    return (size_t)shift * STEPS + (size_t)(value >> shift);
}

/* The largest value that falls into the bucket. */
static uint64_t bucket_top(size_t bucket)
{
    const unsigned shift = bucket < 2 * STEPS ? 0 : (unsigned)(bucket / STEPS) - 1;

    return ((uint64_t)(bucket - (size_t)shift * STEPS + 1) << shift) - 1;
}

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

void fa_histogram_add(struct fa_histogram *histogram, uint64_t value)
{
    if (histogram->count++ == 0 || value < histogram->min)
        histogram->min = value;
    histogram->sum = add_saturating(histogram->sum, value);
    if (value > histogram->max)
        histogram->max = value;
    histogram->buckets[bucket_of(value < FA_HISTOGRAM_TOP ? value : FA_HISTOGRAM_TOP)]++;
}

/* How many of count values permille thousandths are, rounded up, without overflow. */
static uint64_t rank_of(uint64_t count, uint32_t permille)
{
    return count / 1000 * permille + (count % 1000 * permille + 999) / 1000;
}

void fa_histogram_percentiles(const struct fa_histogram *histogram, const uint32_t *permilles,
                              size_t count, uint64_t *out)
{
    uint64_t seen = histogram->buckets[0];
    size_t bucket = 0;

    for (size_t i = 0; i < count; i++) {
        const uint64_t rank = rank_of(histogram->count, permilles[i]);

        assert(permilles[i] >= 1 && permilles[i] <= 1000);
        assert(i == 0 || permilles[i] >= permilles[i - 1]);
        while (seen < rank)
            seen += histogram->buckets[++bucket];
        out[i] = bucket_top(bucket) < histogram->max ? bucket_top(bucket) : histogram->max;
    }
}
