/* A launch that nobody wants any more: the stop flag of fa_launch, for every CPU kernel of this
 * machine. */
#include "tests/helpers/attend.h"
#include "tests/helpers/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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
    pthread_t thread;

    ck_assert_int_eq(posix_memalign(&launch.scratch, 64, kernel->scratch(problem)), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, set_soon, &stop), 0);
    ck_assert_int_eq(kernel->launch(&launch), FA_OK);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    free(launch.scratch);
    return seconds() - start;
}

/* Work of ten seconds and more, in a single unit, in long ones, and in many that see no key. All
 * heads, rows and keys share their elements, so that the tensors are small. */
START_TEST(a_launch_ends_soon_after_the_flag_is_set)
{
    static const uint32_t shapes[][3] = {{1, 64, 1 << 26}, {1, 1 << 20, 1 << 20}, {1 << 28, 64, 0}};
    static float elements[64], o[64], lse;
    const struct fa_tensors tensors = {elements, elements, elements, o, &lse};
    struct fa_problem problem =
        attend_problem(shapes[_i][0], 1, 1, shapes[_i][1], shapes[_i][2], 64, FA_MASK_NONE);
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);

    problem.q = problem.k = problem.v = problem.o = problem.lse = (struct fa_strides){0};
    for (size_t i = 0; i < count; i++) {
        double took = run_until_stopped(kernels[i], &problem, &tensors);
        ck_assert_msg(took < 1, "%s took %g s", kernels[i]->name, took);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("stop");
    TCase *tests = tcase_create("stop");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, a_launch_ends_soon_after_the_flag_is_set, 0, 3);
    return suite;
}
