/* Every kernel of the place against the oracle: shapes, layouts, and data that broke others. */
#include "tests/helpers/attend.h"
#include "tests/helpers/cases.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
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
        const uint32_t *length = lengths[_i % LENGTHS], head_dim = _i < LENGTHS ? 64 : 128;
        struct fa_problem problem =
            attend_problem(1, 2, 2, length[0], length[1], head_dim, masks[mask]);
        attend_check_problem(&problem, ATTEND_NORMAL);
    }
}
END_TEST

/* Around where units become spans of the keys. Most rows of the last do not see a span of ten. */
static const uint32_t spans[][3] = {
    {1, 7679, 20},  {1, 7680, 20},  {1, 7681, 20},  {1, 15361, 20},  {1, 65536, 20},
    {64, 7681, 8},  {64, 15361, 8}, {65, 7679, 8},  {65, 7680, 8},   {65, 7681, 8},
    {65, 15361, 8}, {65, 65536, 8}, {17, 15361, 8}, {64, 122890, 4}, {1, 7681, 64},
    {1, 30000, 64}, {65, 7681, 64}, {2, 9000, 128}, {66, 7681, 128},
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

static const uint32_t head_dims[] = {1,   2,   3,   4,   5,   11,  12,  13,  31,  32,  33,
                                     36,  48,  63,  64,  65,  72,  80,  88,  96,  100, 127,
                                     128, 129, 136, 160, 161, 180, 192, 223, 228, 255, 256};
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
    for (int w = 0; w < ATTEND_HEAD_DIMS; w++) {
        struct fa_problem problem =
            attend_problem(3, heads[_i][0], heads[_i][1], 20, 70, attend_head_dim(w, 16),
                           FA_MASK_CAUSAL_BOTTOM_RIGHT);
        attend_check_problem(&problem, ATTEND_NORMAL);
    }
}
END_TEST

START_TEST(many_heads)
{
    static const uint32_t shapes[][3] = {
        {1, 65535, 3}, {65536, 1, 3}, {32768, 2, 3}, {5, 16000, 3}, {3, 22000, 64}};
    struct fa_problem problem = attend_problem(shapes[_i][0], shapes[_i][1], shapes[_i][1], 2, 3,
                                               shapes[_i][2], FA_MASK_NONE);
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

START_TEST(empty_problems_have_no_units)
{
    static const uint32_t shapes[][3] = {{0, 3, 5}, {2, 0, 5}, {2, 3, 0}};
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        struct fa_problem problem = attend_problem(shapes[_i][0], shapes[_i][1], shapes[_i][1],
                                                   shapes[_i][2], 4, 64, FA_MASK_NONE);
        ck_assert_uint_eq(kernels[i]->units(&problem), 0);
    }
}
END_TEST

/* Without keys every output is defined: o = 0, lse = -inf. The oracle says so as well. */
START_TEST(no_keys)
{
    for (int w = 0; w < ATTEND_HEAD_DIMS; w++) {
        struct fa_problem problem =
            attend_problem(2, 2, 2, 33, 0, attend_head_dim(w, 8), masks[_i]);
        attend_check_problem(&problem, ATTEND_NORMAL);
    }
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
    struct fa_problem problem = attend_problem(
        2, 6, 3, 37, 53, attend_head_dim(_i % ATTEND_HEAD_DIMS, 20), masks[_i / ATTEND_HEAD_DIMS]);

    problem.q = problem.o = rows_before_heads(fa_q_extents(&problem));
    problem.k = problem.v = rows_before_heads(fa_kv_extents(&problem));
    problem.lse = rows_before_heads(fa_lse_extents(&problem));
    attend_check_problem(&problem, ATTEND_NORMAL);

    fa_set_packed(&problem);
    problem.q.row += 3;
    problem.q.head += 37 * 3 + 89;
    problem.q.batch = problem.q.head * problem.heads + 1;
    problem.v.row += 1;
    problem.v.head += 77;
    problem.v.batch = problem.v.head * problem.kv_heads;
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

START_TEST(pointers_of_one_element_alignment)
{
    struct fa_problem problem = attend_problem(
        1, 2, 1, 67, 131, attend_head_dim(_i % ATTEND_HEAD_DIMS, 80), masks[_i / ATTEND_HEAD_DIMS]);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 1);
    attend_check(&attend);
    attend_release(&attend);
}
END_TEST

/* All rows, heads or sequences share elements of the inputs. */
START_TEST(stride_zero)
{
    struct fa_problem problem =
        attend_problem(2, 2, 2, 5, 33, attend_head_dim(_i, 16), FA_MASK_NONE);

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
    const int64_t far = ((int64_t)1 << 31) + 64, w = attend_head_dim(_i % ATTEND_HEAD_DIMS, 8);
    const struct fa_strides ways[] = {
        {.batch = 2 * w, .head = far, .row = 4 * w},
        {.batch = far, .head = 2 * w, .row = 4 * w},
        {.batch = 2 * w, .head = 4 * w, .row = far},
        {.batch = 2 * w, .head = 4 * w, .row = 1 << 26},
    };
    const int way = _i / ATTEND_HEAD_DIMS;
    const uint32_t length = way < 3 ? 2 : 70;
    struct fa_problem problem = attend_problem(2, 2, 2, length, length, (uint32_t)w, FA_MASK_NONE);
    struct fa_strides *strides[] = {&problem.q, &problem.k, &problem.v, &problem.o, &problem.lse};

    for (int i = 0; i < 5; i++)
        *strides[i] = ways[way];
    attend_check_problem(&problem, ATTEND_NORMAL);
}
END_TEST

/* The outputs' gaps belong to somebody else. */
START_TEST(gaps_of_the_outputs_stay_untouched)
{
    const int64_t w = attend_head_dim(_i, 5), elements = 18 * (w + 3) + w;
    struct fa_problem problem = attend_problem(1, 2, 2, 19, 20, (uint32_t)w, FA_MASK_NONE);
    const float mark = 12345;
    struct attend attend;
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    problem.o.row = w + 3;
    problem.o.head = 19 * (w + 3) + 3;
    problem.lse.row = 2;
    problem.lse.head = 2 * 19;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *o = attend.tensors.o, *lse = attend.tensors.lse;
        size_t marks = 0;
        if (!attend_covers(kernels[i], &problem))
            continue;
        for (int64_t j = 0; j < problem.o.head + elements; j++)
            o[j] = mark;
        for (int j = 0; j < 38 + 18 * 2 + 1; j++)
            lse[j] = mark;
        attend_begin(&attend);
        attend_run_range(&attend, kernels[i], (struct fa_range){0, kernels[i]->units(&problem)});
        attend_fetch(&attend);
        for (int64_t j = 0; j < problem.o.head + elements; j++)
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
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 16);
    const float spread = 0.04f / sqrtf((float)head_dim);
    const struct attend_data data = {.q_spread = spread, .v_mean = 0, .v_spread = 1};

    /* Summed over 128 dimensions a single score, all that the first row sees of a causal mask to
     * the top left, has too few digits for the bound of LSE. */
    for (int mask = 0; mask < (head_dim < 128 ? MASKS : MASKS - 1); mask++) {
        struct fa_problem problem = attend_problem(1, 2, 1, 40, 70, head_dim, masks[mask]);
        problem.scale = scales[_i / ATTEND_HEAD_DIMS];
        if (problem.scale == 1e3) /* scores of more dimensions have fewer digits to spare */
            problem.scale *= 16.0 / head_dim;
        attend_check_problem(&problem, data);
    }
}
END_TEST

START_TEST(wide_logits_and_mean_one_values)
{
    static const struct attend_data data[] = {{8, 0, 1}, {1, 1, 1}, {8, 1, 1}, {10, 0, 1}};
    /* The more is summed, and the wider scores are, the fewer digits of theirs are right. */
    const int most = data[_i].q_spread > 8 ? ATTEND_HEAD_DIMS - 1 : ATTEND_HEAD_DIMS;

    for (int w = 0; w < most; w++) {
        struct fa_problem problem =
            attend_problem(1, 2, 2, 100, 700, attend_head_dim(w, 80), FA_MASK_NONE);
        attend_check_problem(&problem, data[_i]);
    }
}
END_TEST

/* Exactly, where the place can (place.h). */
START_TEST(values_of_one_give_one)
{
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 80);
    struct fa_problem problem =
        attend_problem(1, 1, 1, 70, 1100, head_dim, masks[_i / ATTEND_HEAD_DIMS]);
    const struct attend_data data = {.q_spread = 4, .v_mean = 1, .v_spread = 0};
    struct attend attend;
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    attend_init(&attend, &problem, data, 0);
    for (size_t i = 0; i < count; i++) {
        const float *o = attend.tensors.o;
        size_t ones = 0;
        if (!attend_covers(kernels[i], &problem))
            continue;
        attend_run(&attend, kernels[i]);
        for (size_t j = 0; j < 70 * head_dim; j++)
            ones += fabsf(o[j] - 1) <= place_one_tolerance;
        ck_assert_msg(ones == 70 * head_dim, "%s: %zu of %u", kernels[i]->name, ones,
                      70 * head_dim);
    }
    attend_release(&attend);
}
END_TEST

/* Sums over many keys: the tiled kernels' chunks keep the error from growing. */
START_TEST(accuracy_over_many_keys)
{
    static const uint32_t sizes[][2] = {{128, 2048}, {6, 65536}};
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (int mean = 0; mean < 2; mean++) {
        struct fa_problem problem =
            attend_problem(1, 1, 1, sizes[_i][0], sizes[_i][1], 64, FA_MASK_NONE);
        const struct attend_data data = {.q_spread = 1, .v_mean = (float)mean, .v_spread = 1};
        struct attend attend;
        attend_init(&attend, &problem, data, 0);
        for (size_t i = 0; i < count; i++) {
            struct fa_deviation deviation = attend_deviation(&attend, kernels[i], 0, problem.q_len);
            const double tolerance = place_l2_bound(kernels[i], problem.kv_len);
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
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t c = 0; c < case_count; c++) {
        const struct test_case *it = &cases[c];
        const size_t rows = (size_t)it->batch * it->heads * it->q_len;
        const size_t keys = (size_t)it->batch * it->kv_heads * it->kv_len;
        struct attend attend;
        struct fa_problem problem = attend_problem(it->batch, it->heads, it->kv_heads, it->q_len,
                                                   it->kv_len, it->head_dim, it->mask);
        if (it->has_scale)
            problem.scale = it->scale;
        attend_init(&attend, &problem, ATTEND_NORMAL, 0);
        memcpy((void *)attend.tensors.q, it->q, rows * it->head_dim * sizeof *it->q);
        memcpy((void *)attend.tensors.k, it->k, keys * it->head_dim * sizeof *it->k);
        memcpy((void *)attend.tensors.v, it->v, keys * it->head_dim * sizeof *it->v);
        for (size_t i = 0; i < count; i++) {
            struct fa_deviation deviation = {0};
            if (!attend_covers(kernels[i], &problem))
                continue;
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
    tcase_add_loop_test(shapes, lengths_of_any_size, 0, 2 * LENGTHS);
    tcase_add_loop_test(shapes, keys_of_several_units, 0, SPANS);
    tcase_add_loop_test(shapes, head_dims_of_any_size, 0, HEAD_DIMS);
    tcase_add_loop_test(shapes, grouped_heads, 0, 4);
    tcase_add_loop_test(shapes, many_heads, 0, 5);
    tcase_add_loop_test(shapes, empty_problems_have_no_units, 0, 3);
    tcase_add_loop_test(shapes, no_keys, 0, MASKS);

    suite_add_tcase(suite, layouts);
    tcase_set_timeout(layouts, 120);
    tcase_add_loop_test(layouts, rows_before_heads_and_gaps, 0, MASKS * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(layouts, pointers_of_one_element_alignment, 0, MASKS * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(layouts, stride_zero, 0, ATTEND_HEAD_DIMS);
    tcase_add_loop_test(layouts, offsets_past_two_to_the_31, 0, 4 * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(layouts, gaps_of_the_outputs_stay_untouched, 0, ATTEND_HEAD_DIMS);

    suite_add_tcase(suite, values);
    tcase_set_timeout(values, 240);
    tcase_add_loop_test(values, scales_of_any_size, 0, SCALES * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(values, wide_logits_and_mean_one_values, 0, 4);
    tcase_add_loop_test(values, values_of_one_give_one, 0, MASKS * ATTEND_HEAD_DIMS);
    tcase_add_loop_test(values, accuracy_over_many_keys, 0, 2);
    if (test_data_dir())
        tcase_add_test(values, pytorch_cases);
    else
        test_skip("pytorch_cases", "no reference data ($FA_DATA)");
    return suite;
}
