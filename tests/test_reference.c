/* The oracle against PyTorch's double precision, the measure of deviation, and the parts of
 * fa_attention.h that run no kernel. */
#include "tests/helpers/attend.h"
#include "tests/helpers/cases.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- The oracle ------------------------------------------------------------------------------ */

static double largest_difference(const double *a, const double *b, size_t count)
{
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        double difference = a[i] == b[i] ? 0 : fabs(a[i] - b[i]) / fmax(1, fabs(b[i]));
        if (!(difference <= largest))
            largest = isnan(difference) ? INFINITY : difference;
    }
    return largest;
}

START_TEST(oracle_agrees_with_pytorch)
{
    size_t count;
    struct test_case *cases = test_cases_load(&count);

    ck_assert_uint_ge(count, 12);
    for (size_t i = 0; i < count; i++) {
        const struct test_case *it = &cases[i];
        const uint64_t rows = (uint64_t)it->batch * it->heads * it->q_len;
        struct fa_problem problem = attend_problem(it->batch, it->heads, it->kv_heads, it->q_len,
                                                   it->kv_len, it->head_dim, it->mask);
        struct fa_tensors tensors = {.q = it->q, .k = it->k, .v = it->v};
        double *o = malloc(rows * it->head_dim * sizeof *o), *lse = malloc(rows * sizeof *lse);
        double o_error, lse_error;
        if (it->has_scale)
            problem.scale = it->scale;
        ck_assert(fa_reference(&problem, &tensors, (struct fa_range){0, rows}, o, lse));
        o_error = largest_difference(o, it->o, rows * it->head_dim);
        lse_error = largest_difference(lse, it->lse, rows);
        ck_assert_msg(o_error <= 1e-12 && lse_error <= 1e-12, "%s: o %g, lse %g", it->name, o_error,
                      lse_error);
        free(o);
        free(lse);
    }
    test_cases_free(cases, count);
}
END_TEST

/* The definition, straight from fa_attention.h, for one row. */
static void define_row(const struct attend *attend, uint32_t b, uint32_t h, uint32_t i, double *o)
{
    const struct fa_problem *problem = &attend->problem;
    const uint32_t g = h / (problem->heads / problem->kv_heads);
    const float *q = attend_at(attend->tensors.q, problem->q, b, h, i);
    double sum = 0;

    for (uint32_t d = 0; d < problem->head_dim; d++)
        o[d] = 0;
    for (uint32_t j = 0; j < problem->kv_len; j++) {
        const float *k = attend_at(attend->tensors.k, problem->k, b, g, j);
        const float *v = attend_at(attend->tensors.v, problem->v, b, g, j);
        double score = 0;
        if (problem->mask == FA_MASK_CAUSAL_TOP_LEFT && j > i)
            continue;
        if (problem->mask == FA_MASK_CAUSAL_BOTTOM_RIGHT &&
            (int64_t)j > (int64_t)i + problem->kv_len - problem->q_len)
            continue;
        for (uint32_t d = 0; d < problem->head_dim; d++)
            score += (double)q[d] * k[d];
        score = exp(problem->scale * score);
        sum += score;
        for (uint32_t d = 0; d < problem->head_dim; d++)
            o[d] += score * v[d];
    }
    for (uint32_t d = 0; d < problem->head_dim && sum > 0; d++)
        o[d] /= sum;
}

/* What the PyTorch cases leave out: grouped heads, strides, ranges, tails of its blocks. */
START_TEST(oracle_agrees_with_the_definition)
{
    static const uint32_t shapes[][4] = {{70, 130, 9, 6}, {5, 64, 16, 2}, {33, 20, 8, 3}};
    const uint32_t rows = shapes[_i][0], keys = shapes[_i][1], head_dim = shapes[_i][2];
    static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                         FA_MASK_CAUSAL_TOP_LEFT};

    for (int mask = 0; mask < 3; mask++) {
        struct fa_problem problem =
            attend_problem(2, 6, shapes[_i][3], rows, keys, head_dim, masks[mask]);
        struct attend attend;
        const uint64_t total = 12 * (uint64_t)rows;
        double *o = malloc(total * head_dim * sizeof *o), *lse = malloc(total * sizeof *lse);
        problem.q.row += 3;
        problem.q.head += 3 * rows;
        problem.q.batch = problem.q.head * 6;
        attend_init(&attend, &problem, ATTEND_NORMAL, 1);
        for (uint64_t first = 0; first < total; first += 47)
            ck_assert(
                fa_reference(&problem, &attend.tensors,
                             (struct fa_range){first, total - first < 47 ? total - first : 47},
                             o + first * head_dim, lse + first));
        for (uint64_t row = 0; row < total; row++) {
            double expected[FA_HEAD_DIM_MAX] = {0}, error;
            define_row(&attend, (uint32_t)(row / rows / 6), (uint32_t)(row / rows % 6),
                       (uint32_t)(row % rows), expected);
            error = largest_difference(o + row * head_dim, expected, head_dim);
            if (!(error <= 1e-13))
                ck_abort_msg("row %zu: %g", (size_t)row, error);
        }
        free(o);
        free(lse);
        attend_release(&attend);
    }
}
END_TEST

/* --- The measure ----------------------------------------------------------------------------- */

static struct fa_deviation deviation_of(float o, double reference)
{
    struct fa_deviation deviation = {0};
    const float result[2] = {o, 4};
    const double expected[2] = {reference, 4};

    fa_deviation_add(&deviation, result, 2, NULL, 0, expected, NULL, 1, 2);
    return deviation;
}

START_TEST(deviation_counts_rows_and_totals)
{
    const float o[] = {3, 4, -1, 1, 2, -1};
    const double o_reference[] = {3, 4, 1, 2};
    const float lse[] = {10, -7, 0.5f};
    const double lse_reference[] = {10.5, 0.25};
    struct fa_deviation deviation = {0};

    fa_deviation_add(&deviation, o, 3, lse, 2, o_reference, lse_reference, 2, 2);
    ck_assert_double_eq(fa_deviation_l2(&deviation), 0);
    ck_assert_double_eq(deviation.max_row, 0);
    ck_assert_double_eq_tol(deviation.max_lse, 0.25, 1e-12);
    deviation = deviation_of(3.5f, 3);
    ck_assert_double_eq_tol(fa_deviation_l2(&deviation), 0.1, 1e-12);
    ck_assert_double_eq_tol(deviation.max_row, 0.1, 1e-12);
    ck_assert_double_eq(deviation.max_lse, 0);
}
END_TEST

START_TEST(deviation_of_what_is_not_finite)
{
    static const struct {
        float o;
        double reference, max_row;
    } rows[] = {
        {NAN, NAN, 0},
        {INFINITY, INFINITY, 0},
        {-INFINITY, INFINITY, INFINITY},
        {1, NAN, INFINITY},
        {NAN, 1, INFINITY},
        {INFINITY, 1, INFINITY},
        {1, -INFINITY, INFINITY},
    };
    const struct fa_deviation deviation = deviation_of(rows[_i].o, rows[_i].reference);
    struct fa_deviation lse = {0};

    ck_assert(deviation.max_row == rows[_i].max_row);
    ck_assert(!(fa_deviation_l2(&deviation) < rows[_i].max_row));
    fa_deviation_add(&lse, (const float[]){0}, 1, &rows[_i].o, 1, (const double[]){0},
                     &rows[_i].reference, 1, 1);
    ck_assert(lse.max_lse == rows[_i].max_row);
    ck_assert(lse.max_row == 0);
}
END_TEST

START_TEST(deviation_from_zero_rows)
{
    struct fa_deviation deviation = {0};
    const double zeroes[2] = {0, 0};

    fa_deviation_add(&deviation, (const float[]){0, -0.0f}, 2, NULL, 0, zeroes, NULL, 1, 2);
    ck_assert_double_eq(deviation.max_row, 0);
    ck_assert_double_eq(fa_deviation_l2(&deviation), 0);
    fa_deviation_add(&deviation, (const float[]){0, 1e-30f}, 2, NULL, 0, zeroes, NULL, 1, 2);
    ck_assert(isinf(deviation.max_row));
    ck_assert(isinf(fa_deviation_l2(&deviation)));
}
END_TEST

/* --- The problem ----------------------------------------------------------------------------- */

START_TEST(check_names_the_field)
{
    static const struct {
        const char *field;
        enum fa_status status;
        uint32_t extents[6]; /* batch, heads, kv_heads, q_len, kv_len, head_dim */
        int dtype, mask;
        double scale;
    } rows[] = {
        {"", FA_OK, {2, 8, 2, 5, 7, 256}, 1, 2, -0.5},
        {"", FA_OK, {0, 0, 0, 0, 0, 1}, 1, 0, 0},
        {"", FA_OK, {1, 3, 3, INT32_MAX, INT32_MAX, 64}, 1, 0, 3.4e38},
        {"kv_heads", FA_INVALID_ARGUMENT, {1, 3, 2, 5, 7, 64}, 1, 0, 1},
        {"kv_heads", FA_INVALID_ARGUMENT, {1, 2, 4, 5, 7, 64}, 1, 0, 1},
        {"kv_heads", FA_INVALID_ARGUMENT, {1, 2, 0, 5, 7, 64}, 1, 0, 1},
        {"head_dim", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 257}, 1, 0, 1},
        {"head_dim", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 0}, 1, 0, 1},
        {"batch", FA_INVALID_ARGUMENT, {1u << 31, 1, 1, 5, 7, 64}, 1, 0, 1},
        {"heads", FA_INVALID_ARGUMENT, {1, 1u << 31, 1, 5, 7, 64}, 1, 0, 1},
        {"kv_heads", FA_INVALID_ARGUMENT, {1, 1, UINT32_MAX, 5, 7, 64}, 1, 0, 1},
        {"q_len", FA_INVALID_ARGUMENT, {1, 1, 1, UINT32_MAX, 7, 64}, 1, 0, 1},
        {"kv_len", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 1u << 31, 64}, 1, 0, 1},
        {"dtype", FA_UNIMPLEMENTED, {1, 1, 1, 5, 7, 64}, 2, 0, 1},
        {"dtype", FA_UNIMPLEMENTED, {1, 1, 1, 5, 7, 64}, 3, 0, 1},
        {"dtype", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 64}, 9, 0, 1},
        {"mask", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 64}, 1, 3, 1},
        {"scale", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 64}, 1, 0, NAN},
        {"scale", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 64}, 1, 0, -INFINITY},
        {"scale", FA_INVALID_ARGUMENT, {1, 1, 1, 5, 7, 64}, 1, 0, 1e39},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint32_t *e = rows[i].extents;
        struct fa_problem problem =
            attend_problem(e[0], e[1], e[2], e[3], e[4], e[5], (enum fa_mask)rows[i].mask);
        struct fa_error error = {0};
        problem.dtype = (enum fa_dtype)rows[i].dtype;
        problem.scale = rows[i].scale;
        ck_assert_int_eq(fa_problem_check(&problem, &error), rows[i].status);
        ck_assert_str_eq(error.field, rows[i].field);
        ck_assert_int_eq(error.status, rows[i].status);
    }
}
END_TEST

START_TEST(flops_count_visible_pairs)
{
    for (uint32_t rows = 0; rows < 9; rows++)
        for (uint32_t keys = 0; keys < 9; keys++) {
            uint64_t top_left = 0, bottom_right = 0;
            struct fa_problem problem = attend_problem(2, 3, 3, rows, keys, 5, FA_MASK_NONE);
            for (uint32_t i = 0; i < rows; i++)
                for (uint32_t j = 0; j < keys; j++) {
                    top_left += j <= i;
                    bottom_right += (int)j <= (int)i + (int)keys - (int)rows;
                }
            ck_assert_uint_eq(fa_problem_flops(&problem), 4 * 6 * 5 * rows * keys);
            problem.mask = FA_MASK_CAUSAL_TOP_LEFT;
            ck_assert_uint_eq(fa_problem_flops(&problem), 4 * 6 * 5 * top_left);
            problem.mask = FA_MASK_CAUSAL_BOTTOM_RIGHT;
            ck_assert_uint_eq(fa_problem_flops(&problem), 4 * 6 * 5 * bottom_right);
        }
}
END_TEST

START_TEST(flops_saturate)
{
    const uint32_t most = INT32_MAX;
    struct fa_problem problem = attend_problem(1, 1, 1, most, most, 1, FA_MASK_NONE);

    ck_assert_uint_eq(fa_problem_flops(&problem), 4 * (uint64_t)most * most);
    problem.head_dim = 2;
    ck_assert_uint_eq(fa_problem_flops(&problem), UINT64_MAX);
    problem = attend_problem(most, most, most, most, most, 256, FA_MASK_CAUSAL_TOP_LEFT);
    ck_assert_uint_eq(fa_problem_flops(&problem), UINT64_MAX);
    problem.q_len = 0;
    ck_assert_uint_eq(fa_problem_flops(&problem), 0);
    problem = attend_problem(4, 12, 12, 2048, 2048, 64, FA_MASK_NONE);
    ck_assert_uint_eq(fa_problem_flops(&problem), 51539607552);
}
END_TEST

static const struct fa_target cpu = {FA_CPU, 0}, old_cuda = {FA_CUDA, 75};

/* --- The versions ---------------------------------------------------------------------------- */

START_TEST(every_version_has_a_cpu_kernel)
{
    const struct fa_problem problem = attend_problem(1, 1, 1, 5, 7, 80, FA_MASK_NONE);
    size_t count, kernel_count;
    const struct fa_version *versions = fa_versions(&count);
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&kernel_count);

    ck_assert_uint_eq(count, 5);
    for (size_t i = 0; i < count; i++) {
        struct fa_choice choice;
        struct fa_error error;
        ck_assert_int_eq(fa_choose(versions[i].name, &cpu, &problem, &choice, &error), FA_OK);
        ck_assert_str_eq(choice.version->name, versions[i].name);
        ck_assert_str_eq(choice.kernel->name, kernels[i == 0 ? 0 : kernel_count - 1]->name);
        ck_assert_ptr_null(choice.reason);
        ck_assert(choice.kernel->rate > 1e8);
    }
}
END_TEST

START_TEST(choice_of_a_version)
{
    const struct fa_problem problem = attend_problem(1, 1, 1, 5, 7, 64, FA_MASK_NONE);
    struct fa_choice choice;
    struct fa_error error;

    ck_assert_int_eq(fa_choose("auto", &cpu, &problem, &choice, &error), FA_OK);
    ck_assert_str_eq(choice.version->name, "v4");
    ck_assert_ptr_null(choice.reason);
    ck_assert_int_eq(fa_choose("v9", &cpu, &problem, &choice, &error), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(error.field, "version");
    ck_assert_ptr_nonnull(strstr(error.text, "v9"));
    ck_assert_int_eq(fa_choose("", &cpu, &problem, &choice, &error), FA_INVALID_ARGUMENT);
    /* Nothing runs on a device so old: the whole way of fallbacks, then a refusal. */
    ck_assert_int_eq(fa_choose("v3", &old_cuda, &problem, &choice, &error), FA_UNIMPLEMENTED);
    ck_assert_str_eq(error.field, "version");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("reference");
    TCase *tests = tcase_create("reference");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    if (test_data_dir())
        tcase_add_test(tests, oracle_agrees_with_pytorch);
    else
        test_skip("oracle_agrees_with_pytorch", "no reference data ($FA_DATA)");
    tcase_add_loop_test(tests, oracle_agrees_with_the_definition, 0, 3);
    tcase_add_test(tests, deviation_counts_rows_and_totals);
    tcase_add_loop_test(tests, deviation_of_what_is_not_finite, 0, 7);
    tcase_add_test(tests, deviation_from_zero_rows);
    tcase_add_test(tests, check_names_the_field);
    tcase_add_test(tests, flops_count_visible_pairs);
    tcase_add_test(tests, flops_saturate);
    tcase_add_test(tests, every_version_has_a_cpu_kernel);
    tcase_add_test(tests, choice_of_a_version);
    return suite;
}
