/* The device's oracle against PyTorch's double precision and against the CPU's oracle. */
#include "tests/gpu/gpu.h"
#include "tests/gpu/oracle.h"
#include "tests/helpers/attend.h"
#include "tests/helpers/cases.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double largest_difference(const double *a, const double *b, size_t count)
{
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        const bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
        const double difference = same ? 0 : fabs(a[i] - b[i]) / fmax(1, fabs(b[i]));
        if (!(difference <= largest))
            largest = isnan(difference) ? INFINITY : difference;
    }
    return largest;
}

/* o and lse of all rows, one behind the other. */
static double *outputs_of(const struct fa_problem *problem, double **lse, size_t *rows)
{
    double *o;

    *rows = (size_t)problem->batch * problem->heads * problem->q_len;
    o = malloc((*rows * (problem->head_dim + 1) + 1) * sizeof *o);
    ck_assert_ptr_nonnull(o);
    *lse = o + *rows * problem->head_dim;
    return o;
}

START_TEST(oracle_agrees_with_pytorch)
{
    size_t count;
    struct test_case *cases = test_cases_load(&count);

    for (size_t i = 0; i < count; i++) {
        const struct test_case *it = &cases[i];
        struct fa_problem problem = attend_problem(it->batch, it->heads, it->kv_heads, it->q_len,
                                                   it->kv_len, it->head_dim, it->mask);
        const size_t keys = (size_t)it->batch * it->kv_heads * it->kv_len * it->head_dim;
        struct attend attend;
        size_t rows;
        double *lse, *o = outputs_of(&problem, &lse, &rows), o_error, lse_error;

        if (it->has_scale)
            problem.scale = it->scale;
        attend_init(&attend, &problem, ATTEND_NORMAL, 0);
        memcpy((void *)attend.tensors.q, it->q, rows * it->head_dim * sizeof *it->q);
        memcpy((void *)attend.tensors.k, it->k, keys * sizeof *it->k);
        memcpy((void *)attend.tensors.v, it->v, keys * sizeof *it->v);
        ck_assert(place_reference(&attend, o, lse));
        o_error = largest_difference(o, it->o, rows * it->head_dim);
        lse_error = largest_difference(lse, it->lse, rows);
        ck_assert_msg(o_error <= 1e-12 && lse_error <= 1e-12, "%s: o %g, lse %g", it->name, o_error,
                      lse_error);
        free(o);
        attend_release(&attend);
    }
    test_cases_free(cases, count);
}
END_TEST

/* Both oracles over the problem as it stands. */
static void expect_agreement(const struct attend *attend)
{
    const struct fa_problem *problem = &attend->problem;
    size_t rows;
    double *lse, *o = outputs_of(problem, &lse, &rows);
    double *cpu_lse, *cpu_o = outputs_of(problem, &cpu_lse, &rows);
    double error;

    ck_assert(place_reference(attend, o, lse));
    ck_assert(fa_reference(problem, &attend->tensors, (struct fa_range){0, rows}, cpu_o, cpu_lse));
    error = largest_difference(o, cpu_o, rows * (problem->head_dim + 1));
    ck_assert_msg(error <= 1e-12, "(%u,%u/%u,%u,%u,%u) %s, scale %g: %g", problem->batch,
                  problem->heads, problem->kv_heads, problem->q_len, problem->kv_len,
                  problem->head_dim, fa_mask_name(problem->mask), problem->scale, error);
    free(o);
    free(cpu_o);
}

static const struct {
    uint32_t extents[6];
    double scale;
} odd[] = {
    {{2, 6, 3, 70, 130, 9}, 0.3},   {{1, 2, 1, 5, 9000, 64}, -0.1}, {{3, 4, 4, 90, 50, 24}, 0},
    {{1, 1, 1, 33, 0, 8}, 1},       {{1, 5, 1, 9, 4097, 200}, 0.1}, {{2, 2, 2, 17, 256, 256}, 3e38},
    {{1, 1, 1, 300, 300, 1}, 1e-3}, {{1, 2, 2, 64, 257, 128}, 1},   {{70, 3, 3, 2, 3, 5}, -2},
    {{1, 1, 1, 1, 70000, 20}, 1},   {{1, 1, 1, 0, 10, 20}, 1},      {{2, 8, 2, 12, 13, 80}, 1e-46},
};
enum { ODD = sizeof odd / sizeof odd[0] };

START_TEST(oracle_agrees_with_the_cpu)
{
    const uint32_t *e = odd[_i].extents;

    for (int mask = 0; mask < 3; mask++) {
        struct fa_problem problem =
            attend_problem(e[0], e[1], e[2], e[3], e[4], e[5], (enum fa_mask)mask);
        struct attend attend;

        problem.scale = odd[_i].scale;
        if (mask > 0) { /* gaps; rows before heads */
            problem.q.row += 3;
            problem.q.head += 3 * problem.q_len;
            problem.q.batch = problem.q.head * problem.heads;
            problem.v.head = e[5];
            problem.v.row = (int64_t)e[2] * e[5];
        }
        attend_init(&attend, &problem, (struct attend_data){0.5f, 1, 1}, (size_t)mask);
        expect_agreement(&attend);
        attend_release(&attend);
    }
}
END_TEST

START_TEST(oracle_agrees_about_what_is_not_finite)
{
    static const float intruders[] = {NAN, INFINITY, -INFINITY, 3e38f};
    struct fa_problem problem = attend_problem(1, 2, 1, 40, 40, 16, (enum fa_mask)_i);
    struct attend attend;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (uint32_t i = 0; i < 4; i++) {
        attend_at(attend.tensors.v, problem.v, 0, 0, 7 + i)[i] = intruders[i];
        expect_agreement(&attend);
    }
    for (uint32_t i = 0; i < 4; i++) {
        attend_at(attend.tensors.k, problem.k, 0, 0, 30)[3] = intruders[i];
        expect_agreement(&attend);
    }
    for (uint32_t j = 0; j < 40; j++)
        for (uint32_t d = 0; d < 16; d++)
            attend_at(attend.tensors.k, problem.k, 0, 0, j)[d] = -INFINITY;
    for (uint32_t j = 0; j < 40; j++)
        for (uint32_t d = 0; d < 16; d++)
            attend_at(attend.tensors.q, problem.q, 0, 0, j)[d] = 1;
    expect_agreement(&attend); /* of rows whose scores are all -inf: v still holds NaN */
    attend_release(&attend);
}
END_TEST

/* Rows in any order, of several heads. */
START_TEST(oracle_takes_any_list_of_rows)
{
    static const uint64_t list[] = {0, 199, 3, 50, 51, 52, 99, 100, 101,
                                    7, 7,   8, 9,  10, 11, 12, 13};
    enum { ROWS = sizeof list / sizeof list[0] };
    const struct fa_problem problem = attend_problem(2, 2, 1, 50, 300, 20, FA_MASK_CAUSAL_TOP_LEFT);
    double o[ROWS * 20], lse[ROWS], *all_lse;
    size_t rows;
    double *all = outputs_of(&problem, &all_lse, &rows);
    struct attend attend;
    struct fa_tensors tensors;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    tensors = (struct fa_tensors){.q = attend.mirror[0], attend.mirror[1], attend.mirror[2]};
    ck_assert(place_reference(&attend, all, all_lse));
    GPU(oracle_rows(&problem, &tensors, list, ROWS, o, lse));
    for (int i = 0; i < ROWS; i++) {
        for (int d = 0; d < 20; d++)
            ck_assert(o[i * 20 + d] == all[list[i] * 20 + d]);
        ck_assert(lse[i] == all_lse[list[i]]);
    }
    free(all);
    attend_release(&attend);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("oracle");
    TCase *tests = tcase_create("oracle");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    if (test_data_dir())
        tcase_add_test(tests, oracle_agrees_with_pytorch);
    else
        test_skip("oracle_agrees_with_pytorch", "no reference data ($FA_DATA)");
    tcase_add_loop_test(tests, oracle_agrees_with_the_cpu, 0, ODD);
    tcase_add_loop_test(tests, oracle_agrees_about_what_is_not_finite, 0, 3);
    tcase_add_test(tests, oracle_takes_any_list_of_rows);
    return suite;
}
