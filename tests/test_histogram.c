/* The histogram against exact percentiles of the same values. */
#include "proto/fa_histogram.h"
#include "tests/helpers/test.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t permilles[] = {1, 10, 250, 499, 500, 501, 900, 990, 999, 1000};

static uint64_t percentile(const struct fa_histogram *histogram, uint32_t permille)
{
    uint64_t out;

    fa_histogram_percentiles(histogram, &permille, 1, &out);
    return out;
}

/* xorshift64*: any nonzero state. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static int ascending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Sorts values. Every percentile is within the bounds that fa_histogram.h gives. */
static void check_percentiles(const struct fa_histogram *histogram, uint64_t *values, size_t count)
{
    uint64_t sum = 0, got[COUNT(permilles)];

    qsort(values, count, sizeof *values, ascending);
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    ck_assert_uint_eq(histogram->count, count);
    ck_assert_uint_eq(histogram->sum, sum);
    ck_assert_uint_eq(histogram->max, values[count - 1]);
    ck_assert_uint_eq(histogram->min, values[0]);
    fa_histogram_percentiles(histogram, permilles, COUNT(permilles), got);
    for (size_t i = 0; i < COUNT(permilles); i++) {
        const uint64_t exact = values[(count * permilles[i] + 999) / 1000 - 1];

        ck_assert_msg(got[i] >= exact && got[i] - exact <= exact / 32 && got[i] <= histogram->max,
                      "%" PRIu32 "/1000 of %zu values is %" PRIu64 ", not %" PRIu64, permilles[i],
                      count, got[i], exact);
    }
}

/* --- Where values come from ------------------------------------------------------------------- */

static uint64_t uniform_small(uint64_t *state)
{
    return next_random(state) % 1000;
}

static uint64_t uniform_large(uint64_t *state)
{
    return next_random(state) & FA_HISTOGRAM_TOP;
}

/* Every octave alike, 0 included. */
static uint64_t log_uniform(uint64_t *state)
{
    const unsigned shift = 22 + (unsigned)(next_random(state) % 43);

    return shift > 63 ? 0 : next_random(state) >> shift;
}

static uint64_t zero(uint64_t *state)
{
    (void)state;
    return 0;
}

static uint64_t one(uint64_t *state)
{
    (void)state;
    return 1;
}

static uint64_t constant(uint64_t *state)
{
    (void)state;
    return 123456789;
}

static uint64_t top(uint64_t *state)
{
    (void)state;
    return FA_HISTOGRAM_TOP;
}

/* One in a thousand is very long. */
static uint64_t long_tail(uint64_t *state)
{
    return next_random(state) % 1000 == 0 ? UINT64_C(3000000000) : 20000 + uniform_small(state);
}

static uint64_t (*const sources[])(uint64_t *) = {
    uniform_small, uniform_large, log_uniform, zero, one, constant, top, long_tail};
static const size_t counts[] = {1, 2, 3, 10, 999, 1000, 1001, 50000};

START_TEST(percentiles_of_sets)
{
    static struct fa_histogram histogram;
    static uint64_t values[50000];
    uint64_t state = 1;

    for (size_t c = 0; c < COUNT(counts); c++) {
        memset(&histogram, 0, sizeof histogram);
        for (size_t i = 0; i < counts[c]; i++) {
            values[i] = sources[_i](&state);
            fa_histogram_add(&histogram, values[i]);
        }
        check_percentiles(&histogram, values, counts[c]);
    }
}
END_TEST

/* Around every power of two, where buckets change their width. */
START_TEST(single_values)
{
    static struct fa_histogram histogram;

    for (int bit = 0; bit < 42; bit++) {
        for (int64_t off = -2; off <= 2; off++) {
            uint64_t value = (UINT64_C(1) << bit) + (uint64_t)off;

            if (value > FA_HISTOGRAM_TOP) /* also below 0 */
                continue;
            memset(&histogram, 0, sizeof histogram);
            fa_histogram_add(&histogram, value);
            check_percentiles(&histogram, &value, 1);
        }
    }
}
END_TEST

/* A percentile comes from the bucket, not from max: 64 and 65 share one, 62 and 63 do not. */
START_TEST(bucket_widths)
{
    static struct fa_histogram histogram;
    static const uint64_t values[] = {62, 63, 64, 1000000};

    for (size_t i = 0; i < COUNT(values); i++)
        fa_histogram_add(&histogram, values[i]);
    ck_assert_uint_eq(percentile(&histogram, 250), 62);
    ck_assert_uint_eq(percentile(&histogram, 500), 63);
    ck_assert_uint_eq(percentile(&histogram, 750), 65);
    ck_assert_uint_eq(percentile(&histogram, 1000), 1000000);
}
END_TEST

START_TEST(empty)
{
    static struct fa_histogram histogram;

    for (size_t i = 0; i < COUNT(permilles); i++)
        ck_assert_uint_eq(percentile(&histogram, permilles[i]), 0);
    ck_assert_uint_le(sizeof histogram, 10000);
}
END_TEST

START_TEST(beyond_the_top)
{
    static struct fa_histogram histogram;

    fa_histogram_add(&histogram, FA_HISTOGRAM_TOP + 1);
    ck_assert_uint_eq(histogram.max, FA_HISTOGRAM_TOP + 1);
    ck_assert_uint_eq(histogram.sum, FA_HISTOGRAM_TOP + 1);
    ck_assert_uint_eq(percentile(&histogram, 1000), FA_HISTOGRAM_TOP);
    fa_histogram_add(&histogram, UINT64_MAX);
    ck_assert_uint_eq(histogram.count, 2);
    ck_assert_uint_eq(histogram.max, UINT64_MAX);
    ck_assert_uint_eq(histogram.sum, UINT64_MAX);
    ck_assert_uint_eq(percentile(&histogram, 1), FA_HISTOGRAM_TOP);
    ck_assert_uint_eq(percentile(&histogram, 1000), FA_HISTOGRAM_TOP);
}
END_TEST

/* A rank is not lost where count * permille exceeds 64 bits. */
START_TEST(many_values)
{
    static struct fa_histogram histogram;

    fa_histogram_add(&histogram, 10);
    fa_histogram_add(&histogram, 20);
    for (size_t i = 0; i < FA_HISTOGRAM_BUCKETS; i++)
        histogram.buckets[i] <<= 60;
    histogram.count <<= 60;
    ck_assert_uint_eq(percentile(&histogram, 500), 10);
    ck_assert_uint_eq(percentile(&histogram, 501), 20);
    ck_assert_uint_eq(percentile(&histogram, 1000), 20);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("histogram");
    TCase *tcase = tcase_create("histogram");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, percentiles_of_sets, 0, COUNT(sources));
    tcase_add_test(tcase, single_values);
    tcase_add_test(tcase, bucket_widths);
    tcase_add_test(tcase, empty);
    tcase_add_test(tcase, beyond_the_top);
    tcase_add_test(tcase, many_values);
    suite_add_tcase(suite, tcase);
    return suite;
}
