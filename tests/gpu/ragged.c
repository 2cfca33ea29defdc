/* ragged [--quick]: for compute-sanitizer. Every kernel of the device over shapes that end inside
 * every tile, at head_dims for which, or for those up to which, there is code, held against the
 * CPU's oracle. --quick, for the tools that take long, runs most __global__ functions by one way of
 * copying, and leaves the rest out. Ends with 1 when a result is wrong. */
#include "tests/gpu/gpu.h"
#include "tests/helpers/attend.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

static bool is_quick(void)
{
    return test_argument() && strcmp(test_argument(), "--quick") == 0;
}

static void expect_right(const struct attend *attend, const struct fa_kernel *kernel)
{
    const struct fa_problem *problem = &attend->problem;
    const uint32_t head_dim = problem->head_dim;
    const uint64_t rows = (uint64_t)problem->batch * problem->heads * problem->q_len;
    struct fa_deviation deviation = {0};
    double *o = malloc(rows * (head_dim + 1) * sizeof *o), *lse = o + rows * head_dim;
    float *outputs;
    size_t count;

    ck_assert_ptr_nonnull(o);
    ck_assert(fa_reference(problem, &attend->tensors, (struct fa_range){0, rows}, o, lse));
    outputs = attend_outputs(attend, &count);
    fa_deviation_add(&deviation, outputs, head_dim + 1, outputs + head_dim, head_dim + 1, o, lse,
                     rows, head_dim);
    ck_assert_msg(deviation.max_row <= 1e-5 && deviation.max_lse <= 1e-6,
                  "%s at (%u,%u,%u) %s: row error %g, LSE error %g", kernel->name, problem->q_len,
                  problem->kv_len, head_dim, fa_mask_name(problem->mask), deviation.max_row,
                  deviation.max_lse);
    free(outputs);
    free(o);
}

/* One aligned problem; or two in a launch, of which one is aligned to an element only. */
static void run(const struct fa_kernel *kernel, const struct fa_problem *problem, uint32_t count)
{
    struct attend attends[2];
    const struct attend *const both[2] = {&attends[0], &attends[1]};
    const struct fa_range all = {0, count * kernel->units(problem)};

    for (uint32_t i = 0; i < count; i++)
        attend_init(&attends[i], problem, (struct attend_data){1, 1, 1}, (i + 1) % count);
    for (uint32_t i = 0; i < count; i++)
        attend_poison(&attends[i]);
    if (count == 1)
        attend_run_range(both[0], kernel, all);
    else
        attend_run_both(both, kernel, all);
    for (uint32_t i = 0; i < count; i++) {
        expect_right(&attends[i], kernel);
        attend_release(&attends[i]);
    }
}

static const struct fa_kernel *kernel_of(int index)
{
    size_t count;
    return place_kernels(&count)[index];
}

/* --quick: v4's others have all the functions that it chooses from, ten by head_dim; of the rest
 * none has more than three. */
static bool is_left_out(const struct fa_kernel *kernel, uint32_t head_dim)
{
    const bool v4 = strncmp(kernel->name, "cuda-v4", 7) == 0;

    return is_quick() && (v4 ? strcmp(kernel->name, "cuda-v4") == 0
                             : head_dim != 64 && head_dim != 128 && head_dim != 200);
}

START_TEST(ragged_tiles)
{
    static const uint32_t head_dims[] = {64, 128, 200, 20, 88, 152, 181, 256, 40, 72, 5, 48, 80};
    const int masks = is_quick() ? 1 : 3; /* and the first ten */

    for (int i = 0; i < (is_quick() ? 10 : 13); i++)
        for (int mask = 0; mask < masks; mask++)
            for (uint32_t count = 1; count <= 2; count++) {
                /* --quick: those after the first three take turns at the ways of copying */
                if (is_quick() && i > 2 && count != 1 + (uint32_t)i % 2)
                    continue;
                /* --quick: each mask at some head_dim */
                const enum fa_mask now = (enum fa_mask)((i + mask + (int)count) % 3);
                struct fa_problem problem = attend_problem(1, 2, 1, 130, 150, head_dims[i], now);
                if (attend_covers(kernel_of(_i), &problem) &&
                    !is_left_out(kernel_of(_i), head_dims[i]))
                    run(kernel_of(_i), &problem, count);
            }
}
END_TEST

/* Of rows that are few, and of more of them: v4 has kernels of their own for the former. */
START_TEST(spans_of_the_keys)
{
    for (uint32_t head_dim = 64; head_dim <= (is_quick() ? 64 : 128); head_dim += 64)
        for (uint32_t q_len = 3; q_len <= 9; q_len += 6) {
            struct fa_problem problem =
                attend_problem(1, 2, 1, q_len, 9000, head_dim, FA_MASK_NONE);
            const bool covers = attend_covers(kernel_of(_i), &problem);
            if (!covers || is_left_out(kernel_of(_i), head_dim) ||
                (is_quick() && kernel_of(_i)->state(&problem) == 0))
                continue;
            run(kernel_of(_i), &problem, 1);
            if (!is_quick())
                run(kernel_of(_i), &problem, 2);
        }
}
END_TEST

/* Units that two blocks share, in v4's large tiles: the small ones' grid is not full once. */
START_TEST(legs_of_units)
{
    struct fa_problem problem =
        attend_problem(68, 2, 1, 9, 530, is_quick() ? 128 : 100, FA_MASK_NONE);

    if (attend_covers(kernel_of(_i), &problem) && strncmp(kernel_of(_i)->name, "cuda-v4", 7) == 0 &&
        kernel_of(_i)->scratch(&problem, kernel_of(_i)->units(&problem)) > 0 &&
        !is_left_out(kernel_of(_i), problem.head_dim))
        run(kernel_of(_i), &problem, 1);
}
END_TEST

/* One of each size, over one span and several. */
START_TEST(few_rows)
{
    static const uint32_t head_dims[] = {64, 100, 256}, rows[] = {1, 4, 8}, keys[] = {200, 700};

    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 2; k++) {
            struct fa_problem problem =
                attend_problem(1, 1, 1, rows[i / 3], keys[k], head_dims[i % 3],
                               (i + k) % 2 ? FA_MASK_CAUSAL_BOTTOM_RIGHT : FA_MASK_NONE);
            if (attend_covers(kernel_of(_i), &problem) &&
                strncmp(kernel_of(_i)->name, "cuda-v4", 7) == 0 &&
                !is_left_out(kernel_of(_i), head_dims[i % 3]))
                run(kernel_of(_i), &problem, 1 + (uint32_t)k);
        }
}
END_TEST

/* So that what is still allocated counts as a leak. */
static void reset(void)
{
    GPU(cudaDeviceReset());
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("ragged");
    TCase *tests = tcase_create("ragged");
    size_t count;

    gpu_bare = true;
    place_kernels(&count);
    suite_add_tcase(suite, tests);
    tcase_add_unchecked_fixture(tests, NULL, reset);
    tcase_add_loop_test(tests, ragged_tiles, 0, (int)count);
    tcase_add_loop_test(tests, spans_of_the_keys, 0, (int)count);
    tcase_add_loop_test(tests, legs_of_units, 0, (int)count);
    tcase_add_loop_test(tests, few_rows, 0, (int)count);
    return suite;
}
