/* Few query rows over many keys, as in a decoding step: every kernel of the place, some of which
 * have code of their own for it, that shares keys between the query heads of a group. */
#include "tests/helpers/attend.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                     FA_MASK_CAUSAL_TOP_LEFT};
enum { MASKS = sizeof masks / sizeof masks[0] };

/* Few values about 0 may sum to next to nothing, and have no digits left. */
static const struct attend_data about_one = {.q_spread = 1, .v_mean = 1, .v_spread = 1};

/* --- Against the oracle ---------------------------------------------------------------------- */

/* q_len, and query heads of a key/value head: 1 to 8 rows of each number, and 9. */
static const uint32_t rows[][2] = {{1, 1}, {1, 2}, {2, 1}, {3, 1}, {1, 3}, {1, 4}, {2, 2}, {5, 1},
                                   {3, 2}, {1, 7}, {1, 8}, {2, 4}, {4, 2}, {8, 1}, {3, 3}, {9, 1}};
enum { ROWS = sizeof rows / sizeof rows[0] };

START_TEST(rows_and_groups)
{
    for (int w = 0; w < ATTEND_HEAD_DIMS; w++)
        for (int mask = 0; mask < MASKS; mask++) {
            struct fa_problem problem = attend_problem(2, 2 * rows[_i][1], 2, rows[_i][0], 300,
                                                       attend_head_dim(w, 200), masks[mask]);
            attend_check_problem(&problem, about_one);
        }
}
END_TEST

/* Around the keys of tiles, spans, and where keys become several spans. */
static const uint32_t keys[] = {1,   2,   7,   8,   9,    15,   16,   17,   31,    32,   33,
                                63,  64,  65,  127, 128,  129,  255,  256,  257,   385,  511,
                                513, 640, 769, 900, 1024, 1025, 4097, 8191, 20000, 40000};
enum { KEYS = sizeof keys / sizeof keys[0] };

START_TEST(keys_of_any_number)
{
    static const uint32_t shapes[][2] = {{1, 1}, {1, 4}, {4, 2}};

    for (int i = 0; i < 3; i++)
        for (int w = 0; w < ATTEND_HEAD_DIMS; w++) {
            struct fa_problem problem =
                attend_problem(1, 2 * shapes[i][1], 2, shapes[i][0], keys[_i],
                               attend_head_dim(w, 136), masks[(_i + i) % 2]);
            attend_check_problem(&problem, about_one);
        }
}
END_TEST

START_TEST(many_keys)
{
    static const uint32_t shapes[][4] = {{1, 1, 65536, 128},
                                         {4, 1, 65536, 64},
                                         {8, 1, 65537, 40},
                                         {1, 3, 70001, 200},
                                         {2, 2, 200000, 3}};
    struct fa_problem problem = attend_problem(1, shapes[_i][0], 1, shapes[_i][1], shapes[_i][2],
                                               shapes[_i][3], FA_MASK_CAUSAL_BOTTOM_RIGHT);
    attend_check_problem(&problem, about_one);
}
END_TEST

static const uint32_t head_dims[] = {1,  2,   3,   4,   7,   16,  32,  40,  63, 65,
                                     80, 100, 127, 129, 160, 192, 200, 255, 256};
enum { HEAD_DIMS = sizeof head_dims / sizeof head_dims[0] };

START_TEST(head_dims_of_any_size)
{
    static const uint32_t shapes[][2] = {{1, 1}, {4, 1}, {4, 2}};

    for (int i = 0; i < 3; i++)
        for (int mask = 0; mask < MASKS; mask++) {
            struct fa_problem problem =
                attend_problem(2, shapes[i][0], 1, shapes[i][1], 333, head_dims[_i], masks[mask]);
            attend_check_problem(&problem, about_one);
        }
}
END_TEST

START_TEST(no_keys)
{
    struct fa_problem problem = attend_problem(
        3, 4, 2, 3, 0, attend_head_dim(_i % ATTEND_HEAD_DIMS, 150), masks[_i / ATTEND_HEAD_DIMS]);
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

/* More rows than keys: the first rows see nothing. */
START_TEST(rows_that_see_no_key)
{
    for (uint32_t kv_len = 1; kv_len < 8; kv_len++) {
        struct fa_problem problem = attend_problem(2, 3, 3, 8, kv_len, attend_head_dim(_i, 24),
                                                   FA_MASK_CAUSAL_BOTTOM_RIGHT);
        attend_check_problem(&problem, about_one);
    }
}
END_TEST

START_TEST(scales_of_any_sign)
{
    static const double scales[] = {0, -0.0, -0.3, 1, 1e-46, -1e-60};
    struct fa_problem problem =
        attend_problem(1, 4, 2, 2, 700, attend_head_dim(_i % ATTEND_HEAD_DIMS, 16), FA_MASK_NONE);

    problem.scale = scales[_i / ATTEND_HEAD_DIMS];
    attend_check_problem(&problem, (struct attend_data){.q_spread = 0.1f, 1, 1});
}
END_TEST

/* --- What a row does not see ----------------------------------------------------------------- */

static void set_key(const struct attend *attend, uint32_t key, float value)
{
    for (uint32_t h = 0; h < attend->problem.kv_heads; h++)
        for (uint32_t d = 0; d < attend->problem.head_dim; d++) {
            attend_at(attend->tensors.k, attend->problem.k, 0, h, key)[d] = value;
            attend_at(attend->tensors.v, attend->problem.v, 0, h, key)[d] = value;
        }
}

/* Rows before `seeing` have their bits of `before`; the others are NaN. */
static void check_rows(const struct attend *attend, const struct fa_kernel *kernel,
                       const float *before, uint32_t seeing)
{
    const struct fa_problem *p = &attend->problem;
    const size_t row_size = p->head_dim + 1;
    size_t size;
    float *after = attend_outputs(attend, &size);

    for (size_t row = 0; row < p->heads * p->q_len; row++) {
        const float *now = after + row * row_size;
        bool right = true;
        if (row % p->q_len < seeing)
            right = memcmp(now, before + row * row_size, row_size * sizeof *now) == 0;
        for (size_t d = 0; d < row_size && row % p->q_len >= seeing; d++)
            right = right && isnan(now[d]);
        if (!right)
            ck_abort_msg("%s: row %zu, seen from row %u on, %u keys", kernel->name, row, seeing,
                         p->kv_len);
    }
    free(after);
}

/* NaN in each key that some rows see and others do not, with the border between two tiles, and two
 * spans, among the rows. */
START_TEST(nan_in_a_masked_key)
{
    static const uint32_t lengths[] = {8, 20, 131, 259, 388, 1028};
    const uint32_t kv_len = lengths[_i / ATTEND_HEAD_DIMS];
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 180);
    size_t count, size;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (int mask = 1; mask < MASKS; mask++) {
        struct fa_problem problem = attend_problem(1, 2, 2, 8, kv_len, head_dim, masks[mask]);
        const uint32_t first = masks[mask] == FA_MASK_CAUSAL_TOP_LEFT ? 0 : kv_len - 8;
        struct attend attend;
        attend_init(&attend, &problem, ATTEND_NORMAL, 0);
        for (uint32_t row = 1; row < 8; row++)
            for (size_t i = 0; i < count; i++) {
                float *before;
                if (!attend_covers(kernels[i], &problem))
                    continue;
                set_key(&attend, first + row, 1);
                attend_run(&attend, kernels[i]);
                before = attend_outputs(&attend, &size);
                set_key(&attend, first + row, NAN);
                attend_run(&attend, kernels[i]);
                check_rows(&attend, kernels[i], before, row);
                free(before);
                set_key(&attend, first + row, 1);
            }
        attend_release(&attend);
    }
}
END_TEST

/* Beside the last key lies NaN, and what does not fill head_dim up has it, too. */
START_TEST(nothing_beyond_is_used)
{
    static const uint32_t lengths[] = {1, 13, 100, 300, 1030};
    struct fa_problem problem =
        attend_problem(1, 4, 2, 2, 1100, attend_head_dim(_i % ATTEND_HEAD_DIMS, 37), FA_MASK_NONE);
    struct attend attend;

    problem.k.row = problem.v.row = problem.q.row = 64 * ((int64_t)problem.head_dim / 64 + 1);
    problem.k.head = problem.v.head = problem.k.row * 1100;
    problem.q.head = 2 * problem.q.row;
    attend_init(&attend, &problem, about_one, 0);
    attend.problem.kv_len = lengths[_i / ATTEND_HEAD_DIMS];
    for (uint32_t key = attend.problem.kv_len; key < 1100; key++)
        set_key(&attend, key, NAN);
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

/* Infinite scores, and NaN where a row sees it, in a span of many. */
START_TEST(seen_nan_and_infinite_scores)
{
    struct fa_problem problem =
        attend_problem(1, 4, 1, 1, 3000, attend_head_dim(_i, 20), FA_MASK_NONE);
    struct attend attend;

    attend_init(&attend, &problem, about_one, 0);
    for (uint32_t h = 0; h < 4; h++)
        for (uint32_t d = 0; d < problem.head_dim; d++) {
            float *q = attend_at(attend.tensors.q, problem.q, 0, h, 0);
            q[d] = fabsf(q[d]);
        }
    for (uint32_t key = 0; key < 1200; key++)
        for (uint32_t d = 0; d < problem.head_dim; d++)
            attend_at(attend.tensors.k, problem.k, 0, 0, key)[d] = -INFINITY;
    attend_check(&attend);
    attend_at(attend.tensors.v, problem.v, 0, 0, 700)[3] = NAN; /* of weight 0 */
    attend_check(&attend);
    ck_assert(isnan(attend_at(attend.tensors.o, problem.o, 0, 2, 0)[3]));
    ck_assert(isfinite(attend_at(attend.tensors.o, problem.o, 0, 2, 0)[4]));
    attend_at(attend.tensors.q, problem.q, 0, 1, 0)[0] = NAN; /* one row alone */
    attend_check(&attend);
    attend_at(attend.tensors.k, problem.k, 0, 0, 2999)[1] = INFINITY;
    attend_check(&attend);
    ck_assert(isnan(*attend_at(attend.tensors.lse, problem.lse, 0, 3, 0)));
    attend_release(&attend);
}
END_TEST

/* --- Equal bits ------------------------------------------------------------------------------ */

static const uint32_t cut_shapes[][5] = {
    {4, 1, 1, 3000, 64}, {8, 2, 2, 1030, 128}, {1, 1, 1, 5000, 200}, {2, 1, 4, 259, 77}};
enum { CUT_SHAPES = sizeof cut_shapes / sizeof cut_shapes[0] };

static struct fa_problem cut_problem(int index, uint32_t batch)
{
    const uint32_t *shape = cut_shapes[index % CUT_SHAPES];
    return attend_problem(batch, shape[0], shape[1], shape[2], shape[3], shape[4],
                          masks[index / CUT_SHAPES]);
}

static void expect_equal(const struct attend *attend, const struct fa_kernel *kernel,
                         const float *expected, const char *when)
{
    size_t count;
    float *outputs = attend_outputs(attend, &count);

    if (memcmp(outputs, expected, count * sizeof *outputs) != 0)
        ck_abort_msg("%s: %s: other bits", kernel->name, when);
    free(outputs);
}

/* Units one by one, from the last to the first where the kernel allows it; and in two ranges. */
static void check_ranges(const struct attend *attend, const struct fa_kernel *kernel,
                         const float *expected)
{
    const uint64_t units = kernel->units(&attend->problem);

    attend_poison(attend);
    for (uint64_t i = 0; i < units; i++)
        attend_run_range(attend, kernel,
                         (struct fa_range){kernel->in_order ? i : units - 1 - i, 1});
    expect_equal(attend, kernel, expected, "unit by unit");
    attend_poison(attend);
    attend_run_range(attend, kernel, (struct fa_range){0, units / 3});
    attend_run_range(attend, kernel, (struct fa_range){units / 3, units - units / 3});
    expect_equal(attend, kernel, expected, "two ranges");
}

/* The last sequence by itself. */
static void check_alone(const struct attend *whole, const struct fa_kernel *kernel,
                        const float *expected)
{
    const struct fa_problem *p = &whole->problem;
    const struct fa_tensors *t = &whole->tensors;
    const uint32_t last = p->batch - 1;
    struct attend part = *whole;

    part.problem.batch = 1;
    part.tensors = (struct fa_tensors){
        .q = attend_at(t->q, p->q, last, 0, 0),
        .k = attend_at(t->k, p->k, last, 0, 0),
        .v = attend_at(t->v, p->v, last, 0, 0),
        .o = attend_at(t->o, p->o, last, 0, 0),
        .lse = attend_at(t->lse, p->lse, last, 0, 0),
    };
    attend_run(&part, kernel);
    expect_equal(&part, kernel, expected + (size_t)last * p->heads * p->q_len * (p->head_dim + 1),
                 "alone");
}

/* Rows before heads, gaps between rows, elements at any place. */
static void check_layout(const struct fa_problem *problem, const struct fa_kernel *kernel,
                         const float *expected, size_t shift, int64_t gap)
{
    struct fa_problem other = *problem;
    const int64_t width = other.head_dim + gap;
    struct attend attend;

    other.q.head = other.o.head = other.k.head = other.v.head = width;
    other.q.row = other.o.row = width * other.heads;
    other.k.row = other.v.row = width * other.kv_heads;
    other.q.batch = other.o.batch = other.q.row * other.q_len;
    other.k.batch = other.v.batch = other.k.row * other.kv_len;
    attend_init(&attend, &other, ATTEND_NORMAL, shift);
    attend_run(&attend, kernel);
    expect_equal(&attend, kernel, expected, "another layout");
    attend_release(&attend);
}

START_TEST(equal_bits)
{
    struct fa_problem problem = cut_problem(_i, 3);
    struct attend attend;
    size_t count, size;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *expected;
        if (!attend_covers(kernels[i], &problem))
            continue;
        attend_run(&attend, kernels[i]);
        expected = attend_outputs(&attend, &size);
        check_ranges(&attend, kernels[i], expected);
        check_alone(&attend, kernels[i], expected);
        check_layout(&problem, kernels[i], expected, 0, 4);
        check_layout(&problem, kernels[i], expected, 3, 0);
        check_layout(&problem, kernels[i], expected, 0, 1);
        free(expected);
    }
    attend_release(&attend);
}
END_TEST

/* All rows and query heads are one and the same: so must the results be. */
START_TEST(any_place_among_the_rows)
{
    static const uint32_t shapes[][2] = {{2, 2}, {8, 1}, {1, 7}, {3, 1}};
    struct fa_problem problem = attend_problem(1, shapes[_i % 4][1], 1, shapes[_i % 4][0], 1500,
                                               attend_head_dim(_i / 4, 72), FA_MASK_NONE);
    const size_t row_size = problem.head_dim + 1;
    size_t count, size;
    const struct fa_kernel *const *kernels = place_kernels(&count);
    struct attend attend;

    problem.q.row = problem.q.head = 0;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *outputs;
        if (!attend_covers(kernels[i], &problem))
            continue;
        attend_run(&attend, kernels[i]);
        outputs = attend_outputs(&attend, &size);
        for (size_t row = 1; row < size / row_size; row++)
            ck_assert_msg(memcmp(outputs + row * row_size, outputs, row_size * sizeof(float)) == 0,
                          "%s: row %zu", kernels[i]->name, row);
        free(outputs);
    }
    attend_release(&attend);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("decode");
    TCase *shapes = tcase_create("shapes"), *values = tcase_create("values");
    TCase *bits = tcase_create("bits");

    suite_add_tcase(suite, shapes);
    tcase_set_timeout(shapes, 120);
    tcase_add_loop_test(shapes, rows_and_groups, 0, ROWS);
    tcase_add_loop_test(shapes, keys_of_any_number, 0, KEYS);
    tcase_add_loop_test(shapes, many_keys, 0, 5);
    tcase_add_loop_test(shapes, head_dims_of_any_size, 0, HEAD_DIMS);
    tcase_add_loop_test(shapes, no_keys, 0, MASKS * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(shapes, rows_that_see_no_key, 0, ATTEND_HEAD_DIMS);
    tcase_add_loop_test(shapes, scales_of_any_sign, 0, 6 * ATTEND_HEAD_DIMS);

    suite_add_tcase(suite, values);
    tcase_set_timeout(values, 120);
    tcase_add_loop_test(values, nan_in_a_masked_key, 0, 6 * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(values, nothing_beyond_is_used, 0, 5 * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(values, seen_nan_and_infinite_scores, 0, ATTEND_HEAD_DIMS);

    suite_add_tcase(suite, bits);
    tcase_set_timeout(bits, 120);
    tcase_add_loop_test(bits, equal_bits, 0, CUT_SHAPES * MASKS);
    tcase_add_loop_test(bits, any_place_among_the_rows, 0, 4 * ATTEND_HEAD_DIMS);
    return suite;
}
