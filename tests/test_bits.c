/* Equal bits: what may vary without changing a row's result, for every CPU kernel of this
 * machine. */
#include "tests/helpers/attend.h"
#include "tests/helpers/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                     FA_MASK_CAUSAL_TOP_LEFT};
enum { MASKS = sizeof masks / sizeof masks[0] };

/* The loop index of these tests runs over kernels and masks. */
static const struct fa_kernel *kernel_of(int index)
{
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);
    return kernels[index / MASKS];
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Fails unless the outputs are bit by bit the expected ones. */
static void expect_bits(const struct attend *attend, const float *expected, const char *when)
{
    size_t count, i = 0;
    float *outputs = attend_outputs(attend, &count);

    while (i < count && bits_of(outputs[i]) == bits_of(expected[i]))
        i++;
    ck_assert_msg(i == count, "%s: element %zu is %.9g, not %.9g", when, i, (double)outputs[i],
                  (double)expected[i]);
    free(outputs);
}

static float *run_whole(const struct attend *attend, const struct fa_kernel *kernel)
{
    size_t count;

    attend_run(attend, kernel);
    return attend_outputs(attend, &count);
}

START_TEST(any_ranges_in_any_order)
{
    static const uint64_t sizes[] = {1, 2, 3, 7, 1000};
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(2, 3, 3, 150, 333, 20, masks[_i % MASKS]);
    const uint64_t units = kernel->units(&problem);
    struct attend attend;
    float *expected;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t ranges = (units + sizes[s] - 1) / sizes[s];
        for (uint64_t step = 0; step < 3; step++) {
            attend_poison(&attend);
            for (uint64_t i = 0; i < ranges; i++) {
                /* forwards, backwards, and the even ones before the odd ones */
                const uint64_t half = (ranges + 1) / 2;
                const uint64_t order[] = {i, ranges - 1 - i, i < half ? 2 * i : 2 * (i - half) + 1};
                const uint64_t first = order[step] * sizes[s];
                const uint64_t left = units - first;
                attend_run_range(&attend, kernel,
                                 (struct fa_range){first, left < sizes[s] ? left : sizes[s]});
            }
            expect_bits(&attend, expected, "ranges");
        }
    }
    free(expected);
    attend_release(&attend);
}
END_TEST

struct half {
    const struct attend *attend;
    const struct fa_kernel *kernel;
    struct fa_range range;
};

static void *run_half(void *argument)
{
    const struct half *half = argument;
    for (uint64_t i = 0; i < half->range.count; i++)
        attend_run_range(half->attend, half->kernel, (struct fa_range){half->range.first + i, 1});
    return NULL;
}

START_TEST(two_threads_and_repeated_runs)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(1, 4, 4, 100, 100, 33, masks[_i % MASKS]);
    const uint64_t units = kernel->units(&problem);
    struct attend attend;
    float *expected;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    for (int run = 0; run < 30; run++) {
        struct half halves[2] = {{&attend, kernel, {0, units / 2}},
                                 {&attend, kernel, {units / 2, units - units / 2}}};
        pthread_t threads[2];
        attend_poison(&attend);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, run_half, &halves[i]), 0);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        expect_bits(&attend, expected, "threads");
    }
    free(expected);
    attend_release(&attend);
}
END_TEST

/* A sequence, and a single head, alone: problems of their own on a part of the memory. */
START_TEST(alone_and_in_a_batch)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(32, 6, 3, 70, 90, 24, masks[_i % MASKS]);
    const size_t row_size = problem.head_dim + 1;
    struct attend whole, part;
    float *expected;

    attend_init(&whole, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&whole, kernel);
    for (uint32_t b = 0; b < 32; b += 31) {
        for (uint32_t g = 0; g < 3; g++) {
            const uint32_t heads = problem.heads / problem.kv_heads;
            part = whole;
            part.problem.batch = 1;
            part.problem.heads = heads;
            part.problem.kv_heads = 1;
            part.tensors = (struct fa_tensors){
                .q = attend_at(whole.tensors.q, problem.q, b, g * heads, 0),
                .k = attend_at(whole.tensors.k, problem.k, b, g, 0),
                .v = attend_at(whole.tensors.v, problem.v, b, g, 0),
                .o = attend_at(whole.tensors.o, problem.o, b, g * heads, 0),
                .lse = attend_at(whole.tensors.lse, problem.lse, b, g * heads, 0),
            };
            attend_run(&part, kernel);
            expect_bits(&part, expected + ((size_t)b * 6 + g * heads) * 70 * row_size, "alone");
        }
    }
    expect_bits(&whole, expected, "whole"); /* what was not run again is still there */
    free(expected);
    attend_release(&whole);
}
END_TEST

/* Several problems in one launch, a range across the border between two. */
START_TEST(several_problems_in_a_launch)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(2, 1, 1, 100, 60, 16, masks[_i % MASKS]);
    const uint64_t units = kernel->units(&problem);
    struct attend first, second;
    struct fa_launch launch = {.problem = &problem, .problem_count = 2};
    float *expected_first, *expected_second;

    attend_init(&first, &problem, ATTEND_NORMAL, 0);
    attend_init(&second, &problem, (struct attend_data){2, 1, 1}, 3);
    expected_first = run_whole(&first, kernel);
    expected_second = run_whole(&second, kernel);
    attend_poison(&first);
    attend_poison(&second);
    launch.tensors = (const struct fa_tensors[]){first.tensors, second.tensors};
    ck_assert_int_eq(posix_memalign(&launch.scratch, 64, kernel->scratch(&problem)), 0);
    launch.range = (struct fa_range){1, 2 * units - 1};
    ck_assert_int_eq(kernel->launch(&launch), FA_OK);
    launch.range = (struct fa_range){0, 1};
    ck_assert_int_eq(kernel->launch(&launch), FA_OK);
    expect_bits(&first, expected_first, "first");
    expect_bits(&second, expected_second, "second");
    free(launch.scratch);
    free(expected_first);
    free(expected_second);
    attend_release(&first);
    attend_release(&second);
}
END_TEST

START_TEST(any_layout_and_alignment)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(2, 4, 2, 77, 530, 40, masks[_i % MASKS]);
    struct attend attend;
    float *expected;

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    attend_release(&attend);
    for (size_t shift = 0; shift < 17; shift += 1 + shift) {
        problem.q = (struct fa_strides){.batch = 77 * 4 * 41, .head = 41, .row = 4 * 41};
        problem.o = (struct fa_strides){.batch = 40, .head = 2 * 40, .row = 4 * 2 * 40};
        problem.k = (struct fa_strides){.batch = 530 * 2 * 40, .head = 40, .row = 2 * 40};
        problem.v = (struct fa_strides){.batch = 530 * 2 * 43, .head = 530 * 43, .row = 43};
        problem.lse = (struct fa_strides){.batch = 1, .head = 2, .row = 8};
        attend_init(&attend, &problem, ATTEND_NORMAL, shift);
        attend_run(&attend, kernel);
        expect_bits(&attend, expected, "layout");
        attend.tensors.lse = NULL; /* and without LSE */
        attend_run_range(&attend, kernel, (struct fa_range){0, kernel->units(&problem)});
        attend.tensors.lse = (float *)attend.memory[4] + shift;
        expect_bits(&attend, expected, "without lse");
        attend_release(&attend);
    }
    free(expected);
}
END_TEST

/* All rows are one and the same, by a stride of 0: so must the results be, wherever in its tile and
 * vector a row lies. */
START_TEST(any_place_in_a_tile)
{
    size_t count, size;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);
    struct fa_problem problem = attend_problem(1, 1, 1, 150, 530, 20, FA_MASK_NONE);
    const size_t row_size = problem.head_dim + 1;
    struct attend attend;

    problem.q.row = 0;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        float *outputs;
        attend_run(&attend, kernels[i]);
        outputs = attend_outputs(&attend, &size);
        for (size_t row = 1; row < problem.q_len; row++)
            ck_assert_msg(memcmp(outputs + row * row_size, outputs, row_size * sizeof *outputs) ==
                              0,
                          "%s: row %zu", kernels[i]->name, row);
        free(outputs);
    }
    attend_release(&attend);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("bits");
    TCase *tests = tcase_create("bits");
    size_t count;
    int all;

    fa_cpu_kernels(&count);
    all = (int)count * MASKS;
    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, any_ranges_in_any_order, 0, all);
    tcase_add_loop_test(tests, two_threads_and_repeated_runs, 0, all);
    tcase_add_loop_test(tests, alone_and_in_a_batch, 0, all);
    tcase_add_loop_test(tests, several_problems_in_a_launch, 0, all);
    tcase_add_loop_test(tests, any_layout_and_alignment, 0, all);
    tcase_add_test(tests, any_place_in_a_tile);
    return suite;
}
