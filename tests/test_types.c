/* Where a tensor's elements are: spans and the nesting rule, against brute force and at the ends of
 * 64-bit arithmetic. */
#include "tests/helpers/test.h"

#include "proto/fa_types.h"

#include <stdint.h>
#include <string.h>

/* Visits every element; false when two share a place. *span: the furthest place, plus one. */
static bool visit(struct fa_extents e, struct fa_strides s, uint64_t *span)
{
    static uint8_t seen[4096];
    bool apart = true;

    memset(seen, 0, sizeof seen);
    *span = 0;
    for (uint32_t b = 0; b < e.batch; b++)
        for (uint32_t h = 0; h < e.heads; h++)
            for (uint32_t r = 0; r < e.rows; r++)
                for (uint32_t d = 0; d < e.width; d++) {
                    uint64_t at = (uint64_t)(b * s.batch + h * s.head + r * s.row + d);
                    apart &= !seen[at];
                    seen[at] = 1;
                    *span = at + 1 > *span ? at + 1 : *span;
                }
    return apart;
}

/* All shapes of up to 2x3x2x2 with all strides up to 8: spans are exact; strides that nest never
 * let two elements share a place, and the packed ones nest. */
START_TEST(small_tensors)
{
    int nesting = 0;

    for (uint32_t shape = 0; shape < 3 * 4 * 3 * 3; shape++) {
        struct fa_extents e = {shape % 3, shape / 3 % 4, shape / 12 % 3, shape / 36};
        struct fa_strides packed = fa_packed_strides(e);
        uint64_t span, count = (uint64_t)e.batch * e.heads * e.rows * e.width;

        ck_assert(fa_span(e, packed, &span));
        ck_assert_uint_eq(span, count);
        ck_assert_msg(fa_strides_nest(e, packed), "packed [%u, %u, %u, %u]", e.batch, e.heads,
                      e.rows, e.width);
        for (int steps = 0; steps < 9 * 9 * 9; steps++) {
            struct fa_strides s = {steps % 9, steps / 9 % 9, steps / 81};
            uint64_t furthest;
            bool apart = visit(e, s, &furthest);

            if (!fa_span(e, s, &span) || span != furthest)
                ck_abort_msg("span of [%u, %u, %u, %u] by %d", e.batch, e.heads, e.rows, e.width,
                             steps);
            if (fa_strides_nest(e, s) && !apart)
                ck_abort_msg("[%u, %u, %u, %u] by %d nests but overlaps", e.batch, e.heads, e.rows,
                             e.width, steps);
            nesting += fa_strides_nest(e, s);
        }
    }
    ck_assert_int_gt(nesting, 1000);
}
END_TEST

/* Permuted layouts and gaps nest; what interleaves without overlap does not. */
START_TEST(nesting_rule)
{
    const struct fa_extents e = {2, 3, 5, 4};

    ck_assert(fa_strides_nest(e, (struct fa_strides){60, 20, 4}));
    ck_assert(fa_strides_nest(e, (struct fa_strides){60, 4, 12}));
    ck_assert(fa_strides_nest(e, (struct fa_strides){4, 8, 24}));
    ck_assert(fa_strides_nest(e, (struct fa_strides){1000, 100, 7}));
    ck_assert(!fa_strides_nest(e, (struct fa_strides){60, 20, 3}));
    ck_assert(!fa_strides_nest(e, (struct fa_strides){60, 0, 4}));
    ck_assert(!fa_strides_nest(e, (struct fa_strides){59, 20, 4}));
    ck_assert(!fa_strides_nest(e, (struct fa_strides){INT64_MAX, INT64_MAX, INT64_MAX}));
    /* Extents of 1 need no stride. */
    ck_assert(fa_strides_nest((struct fa_extents){1, 3, 1, 4}, (struct fa_strides){0, 4, 1}));
}
END_TEST

START_TEST(span_refusals)
{
    const uint32_t most = UINT32_MAX;
    const struct fa_extents e = {2, 2, 2, 2};
    uint64_t span = 77;

    ck_assert(!fa_span(e, (struct fa_strides){-1, 4, 2}, &span));
    ck_assert(!fa_span(e, (struct fa_strides){8, -1, 2}, &span));
    ck_assert(!fa_span(e, (struct fa_strides){8, 4, INT64_MIN}, &span));
    ck_assert(!fa_span(e, (struct fa_strides){INT64_MAX, 0, 0}, &span));
    ck_assert(!fa_span(e, (struct fa_strides){INT64_MAX / 8, 0, 0}, &span));
    ck_assert(!fa_span((struct fa_extents){most, most, most, most},
                       fa_packed_strides((struct fa_extents){most, most, most, most}), &span));
    ck_assert(!fa_span((struct fa_extents){most, most, 1, 1},
                       (struct fa_strides){INT64_MAX / most, INT64_MAX / most, 0}, &span));
    ck_assert_uint_eq(span, 77);
    ck_assert(
        fa_span((struct fa_extents){0, most, most, most}, (struct fa_strides){0, 0, 0}, &span));
    ck_assert_uint_eq(span, 0);
    ck_assert(fa_span((struct fa_extents){1, 1, 1, 1},
                      (struct fa_strides){INT64_MAX, INT64_MAX, INT64_MAX}, &span));
    ck_assert_uint_eq(span, 1);
    ck_assert(
        fa_span((struct fa_extents){2, 1, 1, 1}, (struct fa_strides){1ll << 59, 0, 0}, &span));
    ck_assert_uint_eq(span, (1ull << 59) + 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("types");
    TCase *tcase = tcase_create("types");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, small_tensors);
    tcase_add_test(tcase, nesting_rule);
    tcase_add_test(tcase, span_refusals);
    suite_add_tcase(suite, tcase);
    return suite;
}
