/* What keeps a launch from running on and on: how much work a unit is, and the stop flag of
 * fa_launch. For every CPU kernel of this machine. */
#include "tests/helpers/attend.h"
#include "tests/helpers/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const enum fa_mask masks[] = {FA_MASK_NONE, FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                     FA_MASK_CAUSAL_TOP_LEFT};

static bool is_plain(const struct fa_kernel *kernel)
{
    return strcmp(kernel->name, "plain") == 0;
}

/* --- Units ----------------------------------------------------------------------------------- */

/* The tiled kernels cut the keys too, into units of a few milliseconds, where rows are few. */
START_TEST(many_keys_are_many_units)
{
    static const struct {
        uint32_t rows, keys;
        uint64_t least, most;
    } rows[] = {
        {64, 4000000, 200, 256},
        {1, 4000000, 200, 256},
        {1, 65536, 8, 10},
        {65, 65536, 16, 20},
        {1, 7681, 2, 2},
        {1, 7680, 1, 1},
        {64, 7680, 1, 1},
        {65, 0, 2, 2},
        {2048, 2048, 32, 32},
        {8192, 8192, 128, 128},
        {1 << 20, 1 << 20, 16384, 16384},
        {1, INT32_MAX, 200, 256},
    };
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (size_t i = 0; i < count; i++)
        for (size_t row = 0; row < sizeof rows / sizeof rows[0]; row++) {
            struct fa_problem problem =
                attend_problem(2, 3, 1, rows[row].rows, rows[row].keys, 64, masks[_i]);
            const uint64_t units = kernels[i]->units(&problem);
            if (is_plain(kernels[i]))
                ck_assert_uint_eq(units, (rows[row].rows + 15) / 16 * 6);
            else
                ck_assert_msg(6 * rows[row].least <= units && units <= 6 * rows[row].most,
                              "%s, %u rows, %u keys: %ju units", kernels[i]->name, rows[row].rows,
                              rows[row].keys, (uintmax_t)units);
        }
}
END_TEST

/* None for a single unit a tile, else small beside k and v. */
START_TEST(state_is_small)
{
    static const uint32_t lengths[][2] = {
        {1, 7680},      {1, 7681},     {1, 65536},   {64, 7681},      {64, 65536},
        {65, 100000},   {512, 65536},  {4096, 4096}, {8192, 1 << 20}, {64, 4000000},
        {1, INT32_MAX}, {4096, 32768}, {0, 65536},   {65, 7681},      {1000, 1000000},
    };
    static const uint32_t head_dims[] = {16, 64, 128, 256};
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (size_t i = 0; i < count; i++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            const uint32_t *length = lengths[l], head_dim = head_dims[_i];
            struct fa_problem problem =
                attend_problem(2, 3, 3, length[0], length[1], head_dim, FA_MASK_NONE);
            const size_t state = kernels[i]->state(&problem);
            const uint64_t tiles = (uint64_t)6 * ((length[0] + 63) / 64);
            ck_assert_uint_eq(state % 64, 0);
            ck_assert(state <= (uint64_t)6 * length[1] * head_dim * 8 / 100);
            if (is_plain(kernels[i]))
                ck_assert_uint_eq(state, 0);
            else
                ck_assert_int_eq(state == 0, kernels[i]->units(&problem) == tiles);
        }
}
END_TEST

START_TEST(units_and_state_saturate)
{
    const uint32_t most = INT32_MAX;
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        struct fa_problem problem = attend_problem(most, most, most, 64, most, 64, FA_MASK_NONE);
        size_t one;
        if (!is_plain(kernels[i])) {
            ck_assert_uint_eq(kernels[i]->units(&problem), UINT64_MAX);
            ck_assert_uint_eq(kernels[i]->state(&problem), SIZE_MAX);
            problem.heads = 1;
            one = kernels[i]->state(&problem);
            for (int j = 0; j < 31; j++) { /* products that just wrap, and just do not */
                size_t state;
                problem.heads = 1u << j;
                state = kernels[i]->state(&problem);
                ck_assert(state == SIZE_MAX || (state >> j) + 64 >= one);
            }
        }
        problem.q_len = most;
        ck_assert_uint_eq(kernels[i]->state(&problem), 0);
        problem.heads = most;
        ck_assert_uint_eq(kernels[i]->units(&problem), UINT64_MAX);
    }
}
END_TEST

/* --- The stop flag --------------------------------------------------------------------------- */

static void *set_soon(void *flag)
{
    usleep(20000);
    __atomic_store_n((bool *)flag, true, __ATOMIC_RELAXED);
    return NULL;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Runs the whole problem under a flag that is set after 20 ms; returns how long it took. */
static double run_until_stopped(const struct fa_kernel *kernel, const struct fa_problem *problem,
                                const struct fa_tensors *tensors)
{
    bool stop = false;
    struct fa_launch launch = {
        .problem = problem,
        .tensors = tensors,
        .problem_count = 1,
        .range = {0, kernel->units(problem)},
        .stop = &stop,
    };
    const double start = seconds();
    const size_t state = kernel->state(problem);
    pthread_t thread;

    ck_assert_int_eq(
        posix_memalign(&launch.scratch, 64, kernel->scratch(problem, launch.range.count)), 0);
    if (state) {
        ck_assert_int_eq(posix_memalign(&launch.state, 64, state), 0);
        memset(launch.state, 0, state);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, set_soon, &stop), 0);
    ck_assert_int_eq(kernel->launch(&launch), FA_OK);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    free(launch.state);
    free(launch.scratch);
    return seconds() - start;
}

/* Work of ten seconds and more, in spans of seconds each, in units of half a second, and in many
 * that see no key. All heads, rows and keys share their elements, so that the tensors are small. */
START_TEST(a_launch_ends_soon_after_the_flag_is_set)
{
    static const uint32_t shapes[][3] = {{1, 64, 1 << 29}, {1, 1 << 20, 1 << 20}, {1 << 28, 64, 0}};
    static float elements[256], o[256], lse;
    const struct fa_tensors tensors = {elements, elements, elements, o, &lse};
    struct fa_problem problem =
        attend_problem(shapes[_i][0], 1, 1, shapes[_i][1], shapes[_i][2], 256, FA_MASK_NONE);
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    problem.q = problem.k = problem.v = problem.o = problem.lse = (struct fa_strides){0};
    for (size_t i = 0; i < count; i++) {
        double took = run_until_stopped(kernels[i], &problem, &tensors);
        ck_assert_msg(took < 1, "%s took %g s", kernels[i]->name, took);
    }
}
END_TEST

/* Some units of each tile are stopped, before the others ran and after. What comes out may be
 * anything, but only in the outputs; the next run is as good as ever. */
START_TEST(a_stopped_part_of_a_tile)
{
    struct fa_problem problem = attend_problem(1, 2, 2, 70, 16000, 8, masks[_i]);
    struct attend attend;
    bool stop = true;
    size_t count, size;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    attend_init(&attend, &problem, ATTEND_NORMAL, 0);
    for (size_t i = 0; i < count; i++) {
        const uint64_t units = kernels[i]->units(&problem);
        float *expected, *again;
        attend_run(&attend, kernels[i]);
        expected = attend_outputs(&attend, &size);
        for (uint64_t way = 0; way < 2; way++) {
            attend_poison(&attend);
            for (uint64_t unit = 0; unit < units; unit++) {
                attend.stop = unit % 2 == way ? &stop : NULL;
                attend_run_range(&attend, kernels[i], (struct fa_range){unit, 1});
            }
            attend.stop = NULL;
            attend_run(&attend, kernels[i]);
            again = attend_outputs(&attend, &size);
            ck_assert_msg(memcmp(again, expected, size * sizeof *again) == 0, "%s",
                          kernels[i]->name);
            free(again);
        }
        free(expected);
    }
    attend_release(&attend);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("stop");
    TCase *tests = tcase_create("stop");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, many_keys_are_many_units, 0, 3);
    tcase_add_loop_test(tests, state_is_small, 0, 4);
    tcase_add_test(tests, units_and_state_saturate);
    tcase_add_loop_test(tests, a_launch_ends_soon_after_the_flag_is_set, 0, 3);
    tcase_add_loop_test(tests, a_stopped_part_of_a_tile, 0, 3);
    return suite;
}
