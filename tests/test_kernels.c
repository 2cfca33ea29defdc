/* Every CPU kernel of this machine against the oracle: shapes, layouts, and data that broke
 * others. */
#include "tests/helpers/attend.h"
#include "tests/helpers/cases.h"
#include "tests/helpers/test.h"

#include <string.h>

static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                     FA_MASK_CAUSAL_TOP_LEFT};
enum { MASKS = sizeof masks / sizeof masks[0] };

/* --- Shapes ---------------------------------------------------------------------------------- */

/* Rows and keys around every tile, strip, block and chunk of the kernels; rows = keys and not. */
static const uint32_t lengths[][2] = {
    {1, 1},    {1, 7},    {7, 1},    {2, 5},     {5, 2},    {15, 16}, {16, 17},  {17, 15},
    {31, 47},  {32, 48},  {33, 49},  {63, 96},   {64, 95},  {65, 97}, {129, 63}, {130, 150},
    {64, 479}, {65, 480}, {63, 481}, {200, 500}, {1, 1000}, {3, 961}, {513, 40}, {300, 300},
};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

START_TEST(lengths_of_any_size)
{
    for (int mask = 0; mask < MASKS; mask++) {
        struct fa_problem problem =
            attend_problem(1, 2, 2, lengths[_i][0], lengths[_i][1], 64, masks[mask]);
        attend_check_problem(&problem, ATTEND_NORMAL);
    }
}
END_TEST

/* Around the key counts where the tiled kernels' units become spans of the keys. The last has a
 * span of ten keys that most of the rows do not see under a mask. */
static const uint32_t spans[][3] = {
    {1, 7679, 20},  {1, 7680, 20},  {1, 7681, 20},  {1, 15361, 20},  {1, 65536, 20},
    {64, 7681, 8},  {64, 15361, 8}, {65, 7679, 8},  {65, 7680, 8},   {65, 7681, 8},
    {65, 15361, 8}, {65, 65536, 8}, {17, 15361, 8}, {64, 122890, 4},
};
enum { SPANS = sizeof spans / sizeof spans[0] };

START_TEST(keys_of_several_units)
{
    /* A mean: the sum of so many values about 0 would have few digits. */
    const struct attend_data data = {.q_spread = 1, .v_mean = 1, .v_spread = 1};

    for (int mask = 0; mask < MASKS; mask++) {
        struct fa_problem problem =
            attend_problem(1, 2, 1, spans[_i][0], spans[_i][1], spans[_i][2], masks[mask]);
        attend_check_problem(&problem, data);
    }
}
END_TEST

static const uint32_t head_dims[] = {1, 2, 3, 4, 5, 11, 12, 13, 63, 64, 65, 80, 127, 128, 255, 256};
enum { HEAD_DIMS = sizeof head_dims / sizeof head_dims[0] };

START_TEST(head_dims_of_any_size)
{
    /* A row of few elements that sum to about 0 would have no digits left: shift them. */
    const struct attend_data data = {.q_spread = 1, .v_mean = head_dims[_i] < 5, .v_spread = 1};

    for (int mask = 0; mask < MASKS; mask++) {
        struct fa_problem problem = attend_problem(1, 1, 1, 70, 101, head_dims[_i], masks[mask]);
        attend_check_problem(&problem, data);
    }
}
END_TEST

START_TEST(grouped_heads)
{
    static const uint32_t heads[][2] = {{4, 4}, {8, 2}, {6, 3}, {5, 1}};
    struct fa_problem problem =
        attend_problem(3, heads[_i][0], heads[_i][1], 20, 70, 16, FA_MASK_CAUSAL_BOTTOM_RIGHT);
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

START_TEST(many_heads)
{
    static const uint32_t shapes[][2] = {{1, 65535}, {65536, 1}, {32768, 2}, {5, 16000}};
    struct fa_problem problem =
        attend_problem(shapes[_i][0], shapes[_i][1], shapes[_i][1], 2, 3, 3, FA_MASK_NONE);
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

START_TEST(empty_problems_have_no_units)
{
    static const uint32_t shapes[][3] = {{0, 3, 5}, {2, 0, 5}, {2, 3, 0}};
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        struct fa_problem problem = attend_problem(shapes[_i][0], shapes[_i][1], shapes[_i][1],
                                                   shapes[_i][2], 4, 8, FA_MASK_NONE);
        ck_assert_uint_eq(kernels[i]->units(&problem), 0);
    }
}
END_TEST

/* Without keys every output is defined: o = 0, lse = -inf. The oracle says so as well. */
START_TEST(no_keys)
{
    struct fa_problem problem = attend_problem(2, 2, 2, 33, 0, 8, masks[_i]);
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

/* --- Layouts --------------------------------------------------------------------------------- */

static struct fa_strides rows_before_heads(struct fa_extents extents)
{
    const int64_t row = (int64_t)extents.heads * extents.width;
    return (struct fa_strides){.batch = row * extents.rows, .head = extents.width, .row = row};
}

START_TEST(rows_before_heads_and_gaps)
{
    struct fa_problem problem = attend_problem(2, 6, 3, 37, 53, 20, masks[_i]);

    problem.q = problem.o = rows_before_heads(fa_q_extents(&problem));
    problem.k = problem.v = rows_before_heads(fa_kv_extents(&problem));
    problem.lse = rows_before_heads(fa_lse_extents(&problem));
    attend_check_problem(&problem, ATTEND_NORMAL);

    fa_set_packed(&problem);
    problem.q.row += 3;
    problem.q.head += 200;
    problem.q.batch = problem.q.head * problem.heads + 1;
    problem.v.row += 1;
    problem.v.head += 77;
    problem.v.batch = problem.v.head * problem.kv_heads;
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

START_TEST(pointers_of_one_element_alignment)
{
    struct fa_problem problem = attend_problem(1, 2, 1, 67, 131, 64, masks[_i]);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 1);
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

/* All rows, heads or sequences share elements of the inputs. */
START_TEST(stride_zero)
{
    struct fa_problem problem = attend_problem(2, 2, 2, 5, 33, 16, FA_MASK_NONE);

    problem.k.row = 0;
    attend_check_problem(&problem, ATTEND_NORMAL);
    problem.v.row = 0;
    attend_check_problem(&problem, ATTEND_NORMAL);
    fa_set_packed(&problem);
    problem.q.row = problem.k.head = problem.v.batch = 0;
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

/* Offsets that do not fit 32 bits, in every tensor: by one long step between heads, between
 * sequences, between rows, or by many steps of 2^26 between rows. */
START_TEST(offsets_past_two_to_the_31)
{
    const int64_t far = ((int64_t)1 << 31) + 64;
    static const uint32_t lengths_by_way[] = {2, 2, 2, 70};
    const uint32_t length = lengths_by_way[_i];
    struct fa_problem problem = attend_problem(2, 2, 2, length, length, 8, FA_MASK_NONE);
    struct fa_strides *strides[] = {&problem.q, &problem.k, &problem.v, &problem.o, &problem.lse};
    const struct fa_strides ways[] = {
        {.batch = 16, .head = far, .row = 32},
        {.batch = far, .head = 16, .row = 32},
        {.batch = 16, .head = 32, .row = far},
        {.batch = 16, .head = 32, .row = 1 << 26},
    };

    for (int i = 0; i < 5; i++)
        *strides[i] = ways[_i];
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

/* The outputs' gaps belong to somebody else. */
START_TEST(gaps_of_the_outputs_stay_untouched)
{
    struct fa_problem problem = attend_problem(1, 2, 2, 19, 20, 5, FA_MASK_NONE);
    const float mark = 12345;
    struct attend attend;
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    problem.o.row = 8;
    problem.o.head = 8 * 19 + 3;
    problem.lse.row = 2;
    problem.lse.head = 2 * 19;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *o = attend.tensors.o, *lse = attend.tensors.lse;
        size_t marks = 0;
        for (int j = 0; j < 155 + 18 * 8 + 5; j++)
            o[j] = mark;
        for (int j = 0; j < 38 + 18 * 2 + 1; j++)
            lse[j] = mark;
        attend_clear_state(&attend);
        attend_run_range(&attend, kernels[i], (struct fa_range){0, kernels[i]->units(&problem)});
        for (int j = 0; j < 155 + 18 * 8 + 5; j++)
            marks += o[j] == mark;
        for (int j = 0; j < 38 + 18 * 2 + 1; j++)
            marks += lse[j] == mark;
        ck_assert_msg(marks == 2 * 18 * 3 + 6 + 2 * 18 + 1, "%s: %zu", kernels[i]->name, marks);
    }
    attend_release(&attend);
}
END_TEST

/* --- Scales and values ----------------------------------------------------------------------- */

enum { SCALES = 14 };

START_TEST(scales_of_any_size)
{
    /* With q this small even the largest scale leaves an LSE that a float holds. */
    static const double scales[SCALES] = {0,     -0.0,   -0.3,  1,   -1,    1e-30, 1e-40,
                                          1e-46, -1e-60, 1e-60, 1e3, -1e20, 3e38,  -3e38};
    const struct attend_data data = {.q_spread = 0.01f, .v_mean = 0, .v_spread = 1};

    for (int mask = 0; mask < MASKS; mask++) {
        struct fa_problem problem = attend_problem(1, 2, 1, 40, 70, 16, masks[mask]);
        problem.scale = scales[_i];
        attend_check_problem(&problem, data);
    }
}
END_TEST

/* Scales that a float can barely hold, or not at all, and scores that make something of them. */
START_TEST(tiny_scales_of_huge_scores)
{
    static const double scales[] = {1e-38, -1e-40, 1e-44, 1e-46};
    const struct attend_data data = {.q_spread = 1e37f, .v_mean = 0, .v_spread = 1};
    struct fa_problem problem = attend_problem(1, 2, 1, 40, 500, 4, FA_MASK_NONE);

    problem.scale = scales[_i];
    attend_check_problem(&problem, data);
}
END_TEST

START_TEST(wide_logits_and_mean_one_values)
{
    static const struct attend_data data[] = {{8, 0, 1}, {1, 1, 1}, {8, 1, 1}, {10, 0, 1}};
    struct fa_problem problem = attend_problem(1, 2, 2, 100, 700, 64, FA_MASK_NONE);

    attend_check_problem(&problem, data[_i]);
}
END_TEST

START_TEST(values_of_one_give_exactly_one)
{
    struct fa_problem problem = attend_problem(1, 1, 1, 70, 1100, 64, masks[_i]);
    const struct attend_data data = {.q_spread = 4, .v_mean = 1, .v_spread = 0};
    struct attend attend;
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    attend_init(&attend, &problem, data, 0);
    for (size_t i = 0; i < count; i++) {
        const float *o = attend.tensors.o;
        int ones = 0;
        attend_run(&attend, kernels[i]);
        for (int j = 0; j < 70 * 64; j++)
            ones += o[j] == 1;
        ck_assert_msg(ones == 70 * 64, "%s: %d of %d", kernels[i]->name, ones, 70 * 64);
    }
    attend_release(&attend);
}
END_TEST

/* Scores are exact multiples of 1/4 below -5e4, so that a sentinel for "masked" would show. */
START_TEST(all_logits_below_minus_50000)
{
    struct fa_problem problem = attend_problem(1, 1, 1, 60, 200, 64, masks[_i]);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (uint32_t i = 0; i < 60; i++)
        for (uint32_t d = 0; d < 64; d++)
            attend_at(attend.tensors.q, problem.q, 0, 0, i)[d] = 128;
    for (uint32_t j = 0; j < 200; j++)
        for (uint32_t d = 0; d < 64; d++)
            attend_at(attend.tensors.k, problem.k, 0, 0, j)[d] =
                -64 - (d == 0 ? (float)(j * 7 % 16) / 64 : 0);
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

/* Sums over many keys: the tiled kernels' chunks keep the error from growing. */
START_TEST(accuracy_over_many_keys)
{
    static const struct {
        uint32_t rows, keys;
        double tolerance, plain_tolerance;
    } sizes[] = {{128, 2048, 5e-7, 2e-6}, {6, 65536, 6e-7, 2e-5}};
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (int mean = 0; mean < 2; mean++) {
        struct fa_problem problem =
            attend_problem(1, 1, 1, sizes[_i].rows, sizes[_i].keys, 64, FA_MASK_NONE);
        const struct attend_data data = {.q_spread = 1, .v_mean = (float)mean, .v_spread = 1};
        struct attend attend;
        attend_init(&attend, &problem, data, 0);
        for (size_t i = 0; i < count; i++) {
            struct fa_deviation deviation = attend_deviation(&attend, kernels[i], 0, problem.q_len);
            const double tolerance = strcmp(kernels[i]->name, "plain") == 0
                                         ? sizes[_i].plain_tolerance
                                         : sizes[_i].tolerance;
            ck_assert_msg(fa_deviation_l2(&deviation) <= tolerance, "%s, mean %d: %g",
                          kernels[i]->name, mean, fa_deviation_l2(&deviation));
        }
        attend_release(&attend);
    }
}
END_TEST

/* --- What PyTorch computed ------------------------------------------------------------------- */

START_TEST(pytorch_cases)
{
    size_t case_count, count;
    struct test_case *cases = test_cases_load(&case_count);
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (size_t c = 0; c < case_count; c++) {
        const struct test_case *it = &cases[c];
        const uint64_t rows = (uint64_t)it->batch * it->heads * it->q_len;
        struct attend attend;
        struct fa_problem problem = attend_problem(it->batch, it->heads, it->kv_heads, it->q_len,
                                                   it->kv_len, it->head_dim, it->mask);
        if (it->has_scale)
            problem.scale = it->scale;
        attend_init(&attend, &problem, ATTEND_NORMAL, 0);
        attend.tensors.q = it->q;
        attend.tensors.k = it->k;
        attend.tensors.v = it->v;
        for (size_t i = 0; i < count; i++) {
            struct fa_deviation deviation = {0};
            attend_run(&attend, kernels[i]);
            fa_deviation_add(&deviation, attend.tensors.o, it->head_dim, attend.tensors.lse, 1,
                             it->o, it->lse, rows, it->head_dim);
            ck_assert_msg(deviation.max_row <= 1e-5 && deviation.max_lse <= 1e-6,
                          "%s, %s: row error %g, LSE error %g", kernels[i]->name, it->name,
                          deviation.max_row, deviation.max_lse);
        }
        attend_release(&attend);
    }
    test_cases_free(cases, case_count);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("kernels");
    TCase *shapes = tcase_create("shapes"), *layouts = tcase_create("layouts");
    TCase *values = tcase_create("values");

    suite_add_tcase(suite, shapes);
    tcase_set_timeout(shapes, 120);
    tcase_add_loop_test(shapes, lengths_of_any_size, 0, LENGTHS);
    tcase_add_loop_test(shapes, keys_of_several_units, 0, SPANS);
    tcase_add_loop_test(shapes, head_dims_of_any_size, 0, HEAD_DIMS);
    tcase_add_loop_test(shapes, grouped_heads, 0, 4);
    tcase_add_loop_test(shapes, many_heads, 0, 4);
    tcase_add_loop_test(shapes, empty_problems_have_no_units, 0, 3);
    tcase_add_loop_test(shapes, no_keys, 0, MASKS);

    suite_add_tcase(suite, layouts);
    tcase_set_timeout(layouts, 120);
    tcase_add_loop_test(layouts, rows_before_heads_and_gaps, 0, MASKS);
    tcase_add_loop_test(layouts, pointers_of_one_element_alignment, 0, MASKS);
    tcase_add_test(layouts, stride_zero);
    tcase_add_loop_test(layouts, offsets_past_two_to_the_31, 0, 4);
    tcase_add_test(layouts, gaps_of_the_outputs_stay_untouched);

    suite_add_tcase(suite, values);
    tcase_set_timeout(values, 240);
    tcase_add_loop_test(values, scales_of_any_size, 0, SCALES);
    tcase_add_loop_test(values, tiny_scales_of_huge_scores, 0, 4);
    tcase_add_loop_test(values, wide_logits_and_mean_one_values, 0, 4);
    tcase_add_loop_test(values, values_of_one_give_exactly_one, 0, MASKS);
    tcase_add_loop_test(values, all_logits_below_minus_50000, 0, MASKS);
    tcase_add_loop_test(values, accuracy_over_many_keys, 0, 2);
    if (test_data_dir())
        tcase_add_test(values, pytorch_cases);
    else
        test_skip("pytorch_cases", "no reference data ($FA_DATA)");
    return suite;
}
