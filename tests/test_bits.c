/* Equal bits: what may vary without changing a row's result, for every kernel of the
 * place. */
#include "tests/helpers/attend.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                     FA_MASK_CAUSAL_TOP_LEFT};
enum { MASKS = sizeof masks / sizeof masks[0] };

/* The loop index of these tests runs over kernels, masks and head_dims. */
static const struct fa_kernel *kernel_of(int index)
{
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);
    return kernels[index / (MASKS * place_head_dims)];
}

/* head_dim is the test's own one. */
static struct fa_problem problem_of(int index, uint32_t batch, uint32_t heads, uint32_t kv_heads,
                                    uint32_t q_len, uint32_t kv_len, uint32_t head_dim)
{
    return attend_problem(batch, heads, kv_heads, q_len, kv_len,
                          attend_head_dim(index % place_head_dims, head_dim),
                          masks[index / place_head_dims % MASKS]);
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

/* In the step-th order: forwards, backwards, or the even ones before the odd ones. */
static void run_ranges(const struct attend *attend, const struct fa_kernel *kernel, uint64_t size,
                       uint64_t step)
{
    const uint64_t units = kernel->units(&attend->problem), ranges = (units + size - 1) / size;

    attend_poison_again(attend);
    for (uint64_t i = 0; i < ranges; i++) {
        const uint64_t half = (ranges + 1) / 2;
        const uint64_t order[] = {i, ranges - 1 - i, i < half ? 2 * i : 2 * (i - half) + 1};
        const uint64_t first = order[step] * size, left = units - first;
        attend_run_range(attend, kernel, (struct fa_range){first, left < size ? left : size});
    }
}

static void check_ranges(const struct fa_problem *problem, const struct fa_kernel *kernel)
{
    static const uint64_t sizes[] = {1, 2, 3, 7, 1000};
    const uint64_t units = kernel->units(problem);
    struct attend attend;
    float *expected;

    ck_assert(attend_covers(kernel, problem));
    attend_init(&attend, problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (uint64_t step = 0; step < (kernel->in_order ? 1 : 3); step++) {
            run_ranges(&attend, kernel, sizes[s], step);
            expect_bits(&attend, expected, "ranges");
        }
    for (uint64_t cut = 1; cut < units; cut += 1 + units / 16) {
        const struct fa_range head = {0, cut}, tail = {cut, units - cut};
        attend_poison_again(&attend);
        attend_run_range(&attend, kernel, kernel->in_order ? head : tail);
        attend_run_range(&attend, kernel, kernel->in_order ? tail : head);
        expect_bits(&attend, expected, "two ranges");
    }
    free(expected);
    attend_release(&attend);
}

START_TEST(any_ranges_in_any_order)
{
    struct fa_problem problem = problem_of(_i, 2, 3, 3, 150, 333, 20);
    check_ranges(&problem, kernel_of(_i));
}
END_TEST

/* Ranges that share anything are more than one for each head, else the tests below test nothing. */
static void expect_several_units(const struct fa_problem *problem, const struct fa_kernel *kernel)
{
    if (kernel->state(problem) > 0)
        ck_assert_uint_gt(kernel->units(problem), problem->heads);
}

/* Keys enough for several units of each tile. */
START_TEST(any_ranges_of_the_keys)
{
    struct fa_problem problem = problem_of(_i, 1, 2, 1, 3, 33000, 8);

    expect_several_units(&problem, kernel_of(_i));
    check_ranges(&problem, kernel_of(_i));
    problem = problem_of(_i, 1, 1, 1, 66, 16000, 3);
    expect_several_units(&problem, kernel_of(_i));
    check_ranges(&problem, kernel_of(_i));
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
    struct fa_problem problem = problem_of(_i, 1, 4, 4, 100, 100, 33);
    const uint64_t units = kernel->units(&problem);
    struct attend attend;
    float *expected;

    ck_assert(attend_covers(kernel, &problem) && !kernel->in_order);
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    for (int run = 0; run < 30; run++) {
        struct half halves[2] = {{&attend, kernel, {0, units / 2}},
                                 {&attend, kernel, {units / 2, units - units / 2}}};
        pthread_t threads[2];
        attend_poison_again(&attend);
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

struct share {
    const struct attend *attend;
    const struct fa_kernel *kernel;
    uint64_t *next; /* unit that nobody took yet */
};

static void *run_share(void *argument)
{
    const struct share *share = argument;
    const uint64_t units = share->kernel->units(&share->attend->problem);
    uint64_t unit;

    while ((unit = __atomic_fetch_add(share->next, 1, __ATOMIC_RELAXED)) < units)
        attend_run_range(share->attend, share->kernel, (struct fa_range){unit, 1});
    return NULL;
}

/* Three threads take turns at the units of one problem, several of which make up a tile. */
START_TEST(threads_share_a_tile)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = problem_of(_i, 1, 2, 2, 5, 34000, 8);
    struct attend attend;
    float *expected;

    ck_assert(attend_covers(kernel, &problem) && !kernel->in_order);
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    for (int run = 0; run < 10; run++) {
        uint64_t next = 0;
        struct share share = {&attend, kernel, &next};
        pthread_t threads[3];
        attend_poison_again(&attend);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, run_share, &share), 0);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        expect_bits(&attend, expected, "shared tiles");
    }
    free(expected);
    attend_release(&attend);
}
END_TEST

/* A sequence, and a single head, alone: problems of their own on a part of the memory. */
static void check_alone(const struct fa_problem *problem, const struct fa_kernel *kernel)
{
    const size_t head_size = (size_t)problem->q_len * (problem->head_dim + 1);
    const uint32_t heads = problem->heads / problem->kv_heads;
    struct attend whole, part;
    float *expected;

    ck_assert(attend_covers(kernel, problem));
    attend_init(&whole, problem, ATTEND_NORMAL, 0);
    expected = run_whole(&whole, kernel);
    for (uint32_t b = 0; b < problem->batch; b += problem->batch - 1) {
        for (uint32_t g = 0; g < problem->kv_heads; g++) {
            part = whole;
            part.problem.batch = 1;
            part.problem.heads = heads;
            part.problem.kv_heads = 1;
            part.tensors = (struct fa_tensors){
                .q = attend_at(whole.tensors.q, problem->q, b, g * heads, 0),
                .k = attend_at(whole.tensors.k, problem->k, b, g, 0),
                .v = attend_at(whole.tensors.v, problem->v, b, g, 0),
                .o = attend_at(whole.tensors.o, problem->o, b, g * heads, 0),
                .lse = attend_at(whole.tensors.lse, problem->lse, b, g * heads, 0),
            };
            attend_run(&part, kernel);
            expect_bits(&part, expected + ((size_t)b * problem->heads + g * heads) * head_size,
                        "alone");
        }
    }
    expect_bits(&whole, expected, "whole"); /* what was not run again is still there */
    free(expected);
    attend_release(&whole);
}

START_TEST(alone_and_in_a_batch)
{
    struct fa_problem problem = problem_of(_i, 32, 6, 3, 70, 90, 24);
    check_alone(&problem, kernel_of(_i));
    problem = problem_of(_i, 3, 4, 2, 5, 16000, 8);
    check_alone(&problem, kernel_of(_i));
}
END_TEST

/* Two problems in one launch, a range across the border between them, then single units from the
 * last to the first. */
static void check_several(const struct fa_problem *problem, const struct fa_kernel *kernel)
{
    const uint64_t units = 2 * kernel->units(problem);
    struct attend first, second;
    const struct attend *const both[2] = {&first, &second};
    float *expected_first, *expected_second;

    ck_assert(attend_covers(kernel, problem));
    attend_init(&first, problem, ATTEND_NORMAL, 0);
    attend_init(&second, problem, (struct attend_data){2, 1, 1}, 3);
    expected_first = run_whole(&first, kernel);
    expected_second = run_whole(&second, kernel);
    for (uint64_t size = 1; size < units; size += units - 2) {
        const uint64_t ranges = (units + size - 1) / size;
        attend_poison(&first);
        attend_poison(&second);
        for (uint64_t i = 0; i < ranges; i++) {
            const uint64_t at = (kernel->in_order ? i : ranges - 1 - i) * size, left = units - at;
            attend_run_both(both, kernel, (struct fa_range){at, left < size ? left : size});
        }
        expect_bits(&first, expected_first, "first");
        expect_bits(&second, expected_second, "second");
    }
    free(expected_first);
    free(expected_second);
    attend_release(&first);
    attend_release(&second);
}

START_TEST(several_problems_in_a_launch)
{
    struct fa_problem problem = problem_of(_i, 2, 1, 1, 100, 60, 16);
    check_several(&problem, kernel_of(_i));
    problem = problem_of(_i, 1, 2, 1, 3, 33000, 8);
    check_several(&problem, kernel_of(_i));
}
END_TEST

START_TEST(any_layout_and_alignment)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = problem_of(_i, 2, 4, 2, 77, 530, 40);
    const int64_t w = problem.head_dim;
    struct attend attend;
    float *expected;

    ck_assert(attend_covers(kernel, &problem));
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    expected = run_whole(&attend, kernel);
    attend_release(&attend);
    for (size_t shift = 0; shift < 17; shift += 1 + shift) {
        problem.q = (struct fa_strides){77 * 4 * (w + 1), w + 1, 4 * (w + 1)};
        problem.o = (struct fa_strides){w, 2 * w, 4 * 2 * w};
        problem.k = (struct fa_strides){530 * 2 * w, w, 2 * w};
        problem.v = (struct fa_strides){530 * 2 * (w + 3), 530 * (w + 3), w + 3};
        problem.lse = (struct fa_strides){.batch = 1, .head = 2, .row = 8};
        attend_init(&attend, &problem, ATTEND_NORMAL, shift);
        attend_run(&attend, kernel);
        expect_bits(&attend, expected, "layout");
        attend.tensors.lse = NULL; /* and without LSE */
        attend_poison(&attend);
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
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = problem_of(_i, 1, 1, 1, 150, 530, 20);
    const size_t row_size = problem.head_dim + 1;
    struct attend attend;
    float *outputs;
    size_t size;

    problem.mask = FA_MASK_NONE;
    ck_assert(attend_covers(kernel, &problem));
    problem.q.row = 0;
    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    attend_run(&attend, kernel);
    outputs = attend_outputs(&attend, &size);
    for (size_t row = 1; row < problem.q_len; row++)
        ck_assert_msg(memcmp(outputs + row * row_size, outputs, row_size * sizeof *outputs) == 0,
                      "%s: row %zu", kernel->name, row);
    free(outputs);
    attend_release(&attend);
}
END_TEST

/* Registers a test for the kernels that cover its head_dim; those in_order only where `ordered`. */
static void add(TCase *tests, const TTest *test, bool ordered)
{
    size_t count;

    place_kernels(&count);
    for (int i = 0; i < (int)count * MASKS * place_head_dims; i++) {
        const struct fa_kernel *kernel = kernel_of(i);
        const struct fa_problem problem =
            problem_of(i, 1, 1, 1, 100, 1, 20); /* as all the own ones */
        if (place_covers(kernel, &problem) && (ordered || !kernel->in_order))
            tcase_add_loop_test(tests, test, i, i + 1);
    }
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("bits");
    TCase *tests = tcase_create("bits");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 120);
    add(tests, any_ranges_in_any_order, true);
    add(tests, any_ranges_of_the_keys, true);
    add(tests, two_threads_and_repeated_runs, false);
    add(tests, threads_share_a_tile, false);
    add(tests, alone_and_in_a_batch, true);
    add(tests, several_problems_in_a_launch, true);
    add(tests, any_layout_and_alignment, true);
    add(tests, any_place_in_a_tile, true);
    return suite;
}
