/* NaN, infinities, and the ends of what a float holds: without influence where masked, as in float
 * arithmetic where seen. Every kernel of the place. */
#include "tests/helpers/attend.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float intruders[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
enum { INTRUDERS = sizeof intruders / sizeof intruders[0] };

static void set_key(const struct attend *attend, uint32_t key, float k, float v)
{
    for (uint32_t h = 0; h < attend->problem.kv_heads; h++)
        for (uint32_t d = 0; d < attend->problem.head_dim; d++) {
            attend_at(attend->tensors.k, attend->problem.k, 0, h, key)[d] = k;
            attend_at(attend->tensors.v, attend->problem.v, 0, h, key)[d] = v;
        }
}

/* ck_assert_msg writes to a pipe even when all is well: too slow for every row. */
static void expect(bool met, const struct fa_kernel *kernel, size_t row, uint32_t key,
                   const char *what)
{
    if (!met)
        ck_abort_msg("%s: row %zu %s, key %u", kernel->name, row, what, key);
}

/* One key of a causal problem is replaced: the rows that do not see it keep their bits, the others
 * become NaN where it is NaN. With 40 <= key some rows of its tile, strip and block see it. */
static void check_intruder(enum fa_mask mask, uint32_t head_dim, double scale, uint32_t key,
                           float intruder)
{
    struct fa_problem problem = attend_problem(1, 2, 1, 150, 150, head_dim, mask);
    struct attend attend;
    size_t count, size;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    problem.scale = scale;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *before, *after;
        const size_t row_size = problem.head_dim + 1;
        if (!attend_covers(kernels[i], &problem))
            continue;
        set_key(&attend, key, 1, 1);
        attend_run(&attend, kernels[i]);
        before = attend_outputs(&attend, &size);
        set_key(&attend, key, intruder, intruder);
        attend_run(&attend, kernels[i]);
        after = attend_outputs(&attend, &size);
        for (size_t row = 0; row < 300; row++) {
            const float *now = after + row * row_size;
            size_t nans = 0;
            for (size_t d = 0; d < row_size; d++)
                nans += isnan(now[d]);
            if (row % 150 < key)
                expect(memcmp(now, before + row * row_size, row_size * sizeof *now) == 0,
                       kernels[i], row, key, "was reached");
            else if (isnan(intruder))
                expect(nans == row_size, kernels[i], row, key, "lost a NaN");
        }
        free(before);
        free(after);
    }
    attend_release(&attend);
}

START_TEST(a_masked_key_has_no_influence)
{
    static const uint32_t keys[] = {1, 40, 63, 64, 100, 149};
    static const double scales[] = {0.2, -0.2, 0, 3e38};

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
            const float intruder = intruders[_i / place_head_dims];
            const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 20);
            check_intruder(FA_MASK_CAUSAL_TOP_LEFT, head_dim, scales[s], keys[k], intruder);
            check_intruder(FA_MASK_CAUSAL_BOTTOM_RIGHT, head_dim, scales[s], keys[k], intruder);
        }
}
END_TEST

/* Keys that no row sees, beside and beyond the ones that exist. */
START_TEST(nothing_past_the_last_key_is_used)
{
    struct fa_problem problem =
        attend_problem(1, 2, 2, 70, 128, attend_head_dim(_i, 80), FA_MASK_NONE);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    attend.problem.kv_len = 107;
    for (uint32_t key = 107; key < 128; key++)
        set_key(&attend, key, NAN, NAN);
    attend_check(&attend);
    attend.problem.mask = FA_MASK_CAUSAL_BOTTOM_RIGHT;
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

/* Seen by every row: NaN in v reaches its column alone, NaN in k everything. */
START_TEST(seen_nan_propagates)
{
    struct fa_problem problem =
        attend_problem(1, 1, 1, 40, 600, attend_head_dim(_i, 16), FA_MASK_NONE);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    attend_at(attend.tensors.v, problem.v, 0, 0, 17)[3] = NAN;
    attend_at(attend.tensors.v, problem.v, 0, 0, 550)[5] = INFINITY;
    attend_at(attend.tensors.v, problem.v, 0, 0, 551)[5] = INFINITY;
    attend_at(attend.tensors.v, problem.v, 0, 0, 552)[6] = -INFINITY;
    attend_check(&attend); /* where the oracle has NaN or inf, so must they */
    attend_at(attend.tensors.q, problem.q, 0, 0, 9)[0] = NAN; /* one row alone */
    attend_check(&attend);
    attend_at(attend.tensors.k, problem.k, 0, 0, 599)[0] = NAN;
    attend_check(&attend);
    ck_assert(isnan(*attend_at(attend.tensors.o, problem.o, 0, 0, 0)));
    ck_assert(isnan(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 0)));
    attend_release(&attend);
}
END_TEST

/* A score of -inf is weight 0; of nothing else, it is as if the row saw no key. A score of +inf is
 * inf - inf, NaN. */
START_TEST(infinite_scores)
{
    static const double scales[] = {0.25, -0.25, 1e-46, -1e-60};
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 16);
    struct fa_problem problem = attend_problem(1, 1, 1, 40, 600, head_dim, FA_MASK_NONE);
    struct attend attend;

    problem.scale = scales[_i / place_head_dims];
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (uint32_t i = 0; i < 40; i++)
        for (uint32_t d = 0; d < head_dim; d++) {
            float *q = attend_at(attend.tensors.q, problem.q, 0, 0, i);
            q[d] = problem.scale > 0 ? fabsf(q[d]) : -fabsf(q[d]);
        }
    for (uint32_t key = 0; key < 600; key++)
        if (key % 3 == 0 || key < 100 || key >= 480)
            for (uint32_t d = 0; d < head_dim; d++)
                attend_at(attend.tensors.k, problem.k, 0, 0, key)[d] = -INFINITY;
    attend_check(&attend);
    ck_assert(isfinite(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 0)));

    for (uint32_t key = 0; key < 600; key++)
        for (uint32_t d = 0; d < head_dim; d++)
            attend_at(attend.tensors.k, problem.k, 0, 0, key)[d] = -INFINITY;
    attend_check(&attend);
    ck_assert(*attend_at(attend.tensors.o, problem.o, 0, 0, 7) == 0);
    ck_assert(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 7) == -INFINITY);

    for (uint32_t d = 0; d < head_dim; d++)
        attend_at(attend.tensors.k, problem.k, 0, 0, 300)[d] = INFINITY;
    attend_check(&attend);
    ck_assert(isnan(*attend_at(attend.tensors.o, problem.o, 0, 0, 7)));
    attend_release(&attend);
}
END_TEST

static void make_q_positive(const struct attend *attend)
{
    for (uint32_t h = 0; h < attend->problem.heads; h++)
        for (uint32_t i = 0; i < attend->problem.q_len; i++)
            for (uint32_t d = 0; d < attend->problem.head_dim; d++) {
                float *q = attend_at(attend->tensors.q, attend->problem.q, 0, h, i);
                q[d] = fabsf(q[d]);
            }
}

/* Every kernel against the oracle, and both against what the contract says: the first `empty` rows
 * of a head count as rows that see no key, the others are NaN in the first `nans` columns. */
static void check_each(const struct attend *attend, uint32_t empty, uint32_t nans)
{
    const struct fa_problem *problem = &attend->problem;
    size_t count, size;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        float *outputs;
        if (!attend_covers(kernels[i], problem))
            continue;
        attend_run(attend, kernels[i]);
        outputs = attend_outputs(attend, &size);
        for (size_t row = 0; row < size / (problem->head_dim + 1); row++) {
            const float *o = outputs + row * (problem->head_dim + 1), lse = o[problem->head_dim];
            const bool is_empty = row % problem->q_len < empty;
            bool right = is_empty ? lse == -INFINITY : isfinite(lse);
            for (uint32_t d = 0; d < problem->head_dim; d++)
                right = right && (is_empty ? o[d] == 0 : d < nans ? isnan(o[d]) : isfinite(o[d]));
            expect(right, kernels[i], row, problem->kv_len, "is not what weights of 0 make it");
        }
        free(outputs);
    }
    attend_check(attend);
}

/* Under a causal mask the first rows see scores of -inf only, whatever v holds there: their o is 0.
 * Later rows see it with weight 0, and 0 * NaN is NaN. One tile has rows of both kinds. */
START_TEST(no_score_above_minus_infinity)
{
    static const uint32_t lengths[] = {150, 33000}; /* the second's keys are in several units */
    const uint32_t kv_len = lengths[_i / place_head_dims];
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 5), dead = 70;
    const float intruder[] = {NAN, INFINITY, -INFINITY};
    struct fa_problem problem =
        attend_problem(1, 2, 1, 150, kv_len, head_dim, FA_MASK_CAUSAL_TOP_LEFT);
    struct attend attend;

    attend_init(&attend, &problem, (struct attend_data){1, 1, 1}, 0);
    make_q_positive(&attend);
    for (uint32_t key = 0; key < dead; key++)
        set_key(&attend, key, -INFINITY, 1);
    for (uint32_t d = 0; d < 3; d++)
        attend_at(attend.tensors.v, problem.v, 0, 0, 11 * d)[d] = intruder[d];
    check_each(&attend, dead, 3);
    problem.mask = attend.problem.mask = FA_MASK_NONE; /* now every row sees all, or nothing */
    check_each(&attend, 0, 3);
    for (uint32_t key = dead; key < kv_len; key++)
        set_key(&attend, key, -INFINITY, 1);
    attend_at(attend.tensors.v, problem.v, 0, 0, kv_len - 1)[3] = NAN;
    check_each(&attend, problem.q_len, 0);
    attend_release(&attend);
}
END_TEST

/* Keys of weight 0 and v = NaN before all others: a tile of keys, a chunk, a unit of them. The
 * NaN must survive the first score above -inf, which starts the row's sums anew. */
START_TEST(weights_of_zero_before_others)
{
    static const uint32_t dead[] = {64, 128, 480, 2048, 7680, 16384};
    const uint32_t kv_len = _i / place_head_dims == 0 ? 600 : 33000;
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 5);
    struct fa_problem problem = attend_problem(1, 2, 1, 40, kv_len, head_dim, FA_MASK_NONE);
    struct attend attend;

    attend_init(&attend, &problem, (struct attend_data){1, 1, 1}, 0);
    make_q_positive(&attend);
    for (size_t i = 0; i < sizeof dead / sizeof dead[0] && dead[i] < kv_len; i++) {
        for (uint32_t key = 0; key < dead[i]; key++) {
            set_key(&attend, key, -INFINITY, 1);
            attend_at(attend.tensors.v, problem.v, 0, 0, key)[1] = NAN;
            attend_at(attend.tensors.v, problem.v, 0, 0, key)[2] = INFINITY;
        }
        attend_at(attend.tensors.v, problem.v, 0, 0, dead[i] - 1)[0] = NAN; /* the last alone */
        check_each(&attend, 0, 3);
        attend_at(attend.tensors.v, problem.v, 0, 0, dead[i] - 1)[0] = 1;
    }
    attend_release(&attend);
}
END_TEST

/* Keys in several units of a tile: units without a score above -inf between others, at the start
 * and everywhere; NaN and +inf in one of them. */
START_TEST(spans_of_the_keys)
{
    const uint32_t rows = _i / place_head_dims == 0 ? 40 : 1;
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 4);
    struct fa_problem problem = attend_problem(1, 1, 1, rows, 33000, head_dim, FA_MASK_NONE);
    struct attend attend;

    attend_init(&attend, &problem, (struct attend_data){1, 1, 1}, 0);
    for (uint32_t i = 0; i < problem.q_len; i++)
        for (uint32_t d = 0; d < head_dim; d++) {
            float *q = attend_at(attend.tensors.q, problem.q, 0, 0, i);
            q[d] = fabsf(q[d]);
        }
    for (uint32_t key = 10000; key < 20000; key++)
        set_key(&attend, key, -INFINITY, 1);
    attend_check(&attend);
    for (uint32_t key = 0; key < 10000; key++)
        set_key(&attend, key, -INFINITY, 1);
    attend_check(&attend);
    ck_assert(isfinite(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 0)));
    attend_at(attend.tensors.v, problem.v, 0, 0, 25000)[2] = NAN;
    attend_check(&attend);
    ck_assert(isnan(attend_at(attend.tensors.o, problem.o, 0, 0, 0)[2]));
    ck_assert(isfinite(attend_at(attend.tensors.o, problem.o, 0, 0, 0)[3]));
    for (uint32_t key = 20000; key < 33000; key++)
        set_key(&attend, key, -INFINITY, 1);
    attend_check(&attend);
    ck_assert(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 0) == -INFINITY);
    set_key(&attend, 15000, INFINITY, 1);
    attend_check(&attend);
    ck_assert(isnan(attend_at(attend.tensors.o, problem.o, 0, 0, 0)[3]));
    attend_release(&attend);
}
END_TEST

/* All scores lie far below 0, under a mask by which most units of a tile see no key. */
START_TEST(spans_that_no_row_sees)
{
    const uint32_t head_dim = attend_head_dim(_i, 4);
    struct fa_problem problem =
        attend_problem(1, 1, 1, 5, 33000, head_dim, FA_MASK_CAUSAL_TOP_LEFT);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t d = 0; d < head_dim; d++) {
            attend_at(attend.tensors.q, problem.q, 0, 0, i)[d] = 128;
            attend_at(attend.tensors.k, problem.k, 0, 0, i)[d] = -128 - (float)(i * d) / 256;
        }
    set_key(&attend, 5, NAN, NAN);
    set_key(&attend, 32999, NAN, NAN);
    attend_check(&attend);
    ck_assert(*attend_at(attend.tensors.lse, problem.lse, 0, 0, 4) < -10000);
    attend_release(&attend);
}
END_TEST

/* More rows than keys, aligned at the end: the first rows see nothing, beside rows that do. */
START_TEST(rows_that_see_no_key)
{
    const uint32_t head_dim = attend_head_dim(_i, 24);
    struct fa_problem problem =
        attend_problem(1, 2, 2, 90, 50, head_dim, FA_MASK_CAUSAL_BOTTOM_RIGHT);
    struct attend attend;
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    attend_check(&attend);
    set_key(&attend, 0, NAN, NAN);
    for (size_t i = 0; i < count; i++) {
        if (!attend_covers(kernels[i], &problem))
            continue;
        attend_run(&attend, kernels[i]);
        for (uint32_t row = 0; row < 40; row++) {
            ck_assert(*attend_at(attend.tensors.lse, problem.lse, 0, 1, row) == -INFINITY);
            for (uint32_t d = 0; d < head_dim; d++)
                ck_assert(attend_at(attend.tensors.o, problem.o, 0, 1, row)[d] == 0);
        }
        ck_assert(isnan(*attend_at(attend.tensors.o, problem.o, 0, 1, 40)));
    }
    attend_release(&attend);
}
END_TEST

/* Scales that a float can barely hold, or not at all, and scores that make something of them. */
START_TEST(tiny_scales_of_huge_scores)
{
    static const double scales[] = {1e-38, -1e-40, 1e-44, 1e-46};
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 4);
    const float spread = 2e37f / sqrtf((float)head_dim); /* for scores that a float holds */
    const struct attend_data data = {.q_spread = spread, .v_mean = 0, .v_spread = 1};
    struct fa_problem problem = attend_problem(1, 2, 1, 40, 500, head_dim, FA_MASK_NONE);

    problem.scale = scales[_i / place_head_dims];
    attend_check_problem(&problem, data);
}
END_TEST

/* Scores are exact multiples of 1/8 below -5e4, so that a sentinel for "masked" would show. */
START_TEST(all_logits_below_minus_50000)
{
    const uint32_t head_dim = attend_head_dim(_i % place_head_dims, 16);
    struct fa_problem problem =
        attend_problem(1, 1, 1, 60, 200, head_dim, (enum fa_mask)(_i / place_head_dims));
    struct attend attend;

    problem.scale = 8.0 / head_dim;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (uint32_t i = 0; i < 60; i++)
        for (uint32_t d = 0; d < head_dim; d++)
            attend_at(attend.tensors.q, problem.q, 0, 0, i)[d] = 128;
    for (uint32_t j = 0; j < 200; j++)
        for (uint32_t d = 0; d < head_dim; d++)
            attend_at(attend.tensors.k, problem.k, 0, 0, j)[d] =
                -64 - (d == 0 ? (float)(j * 7 % 16) / 64 : 0);
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("nonfinite");
    TCase *tests = tcase_create("nonfinite");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_masked_key_has_no_influence, 0, INTRUDERS * place_head_dims);
    tcase_add_loop_test(tests, nothing_past_the_last_key_is_used, 0, place_head_dims);
    tcase_add_loop_test(tests, seen_nan_propagates, 0, place_head_dims);
    tcase_add_loop_test(tests, infinite_scores, 0, 4 * place_head_dims);
    tcase_add_loop_test(tests, no_score_above_minus_infinity, 0, 2 * place_head_dims);
    tcase_add_loop_test(tests, weights_of_zero_before_others, 0, 2 * place_head_dims);
    tcase_add_loop_test(tests, spans_of_the_keys, 0, 2 * place_head_dims);
    tcase_add_loop_test(tests, spans_that_no_row_sees, 0, place_head_dims);
    tcase_add_loop_test(tests, rows_that_see_no_key, 0, place_head_dims);
    tcase_add_loop_test(tests, tiny_scales_of_huge_scores, 0, 4 * place_head_dims);
    tcase_add_loop_test(tests, all_logits_below_minus_50000, 0, 3 * place_head_dims);
    return suite;
}
