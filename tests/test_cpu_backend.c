/* What the CPU backend does on the loop thread itself: only what cannot hold it up. */
#include "daemon/backend/completions.h"
#include "daemon/backend/cpu.h"
#include "tests/helpers/test.h"

#include <pthread.h>
#include <string.h>

static uv_loop_t loop;
static struct fad_completions completions;
static struct fad_backend *backend;
static pthread_t ran_on;
static bool done;

/* A kernel that notes its thread, and takes as long as a test says. */
static uint64_t units_of(const struct fa_problem *problem)
{
    return problem->q_len;
}

static size_t no_scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 0;
}

static enum fa_status note_thread(const struct fa_launch *launch)
{
    (void)launch;
    ran_on = pthread_self();
    return FA_OK;
}

static struct fa_kernel kernel;

static void setup(void)
{
    static const struct fad_backend_config config = {.workers = 2};
    struct fa_error error;

    kernel = (struct fa_kernel){
        .units = units_of, .scratch = no_scratch, .launch = note_thread, .rate = 1e12};
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(fad_completions_init(&completions, &loop, NULL, NULL), 0);
    ck_assert_int_eq(fad_backend_cpu.probe(&config, &completions, &backend, &error), 0);
}

static void teardown(void)
{
    backend->ops->deinit(backend);
    fad_completions_deinit(&completions);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void on_done(struct fad_op *op)
{
    ck_assert_int_eq(op->status, 0);
    done = true;
}

static struct fa_problem small(void)
{
    struct fa_problem problem = {.batch = 1,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .q_len = 4,
                                 .kv_len = 4,
                                 .head_dim = 8,
                                 .dtype = FA_DTYPE_FLOAT32,
                                 .scale = 1};
    fa_set_packed(&problem);
    return problem;
}

static bool runs_on_the_loop(const struct fa_problem *problem)
{
    static struct fa_tensors tensors;
    struct fad_range_op range = {.op.done = on_done,
                                 .kernel = &kernel,
                                 .launch = {.problem = problem,
                                            .tensors = &tensors,
                                            .problem_count = 1,
                                            .range = {0, problem->q_len}}};

    done = false;
    ck_assert_int_eq(backend->ops->launch_range(backend, &range), 0);
    while (!done)
        uv_run(&loop, UV_RUN_ONCE);
    return pthread_equal(ran_on, pthread_self());
}

START_TEST(short_ranges_run_on_the_loop)
{
    const struct fa_problem problem = small();
    ck_assert(runs_on_the_loop(&problem));
}
END_TEST

START_TEST(long_ones_do_not)
{
    const struct fa_problem problem = small();

    kernel.rate = 1e6; /* half a millisecond of FLOP */
    ck_assert(!runs_on_the_loop(&problem));
}
END_TEST

START_TEST(nor_do_many_units)
{
    struct fa_problem problem = small();

    kernel.unit_seconds = 1e-6;
    ck_assert(runs_on_the_loop(&problem));
    problem.q_len = 40;
    fa_set_packed(&problem);
    ck_assert(!runs_on_the_loop(&problem));
}
END_TEST

/* A page fault for each key, in memory of the client's making. */
START_TEST(nor_does_what_is_spread_over_memory)
{
    struct fa_problem problem = small();

    problem.k.row = 1 << 14;
    ck_assert(!runs_on_the_loop(&problem));
    problem = small();
    problem.o.head = problem.o.batch = 1 << 20; /* a stride that no element is at */
    ck_assert(runs_on_the_loop(&problem));
    problem.v.row = 1 << 10;
    ck_assert(runs_on_the_loop(&problem));
    problem.heads = problem.kv_heads = 2;
    problem.q.head = 1 << 16;
    ck_assert(!runs_on_the_loop(&problem));
}
END_TEST

static enum fa_status take_long(const struct fa_launch *launch)
{
    const uint64_t end = uv_hrtime() + 200 * 1000000u;

    while (uv_hrtime() < end)
        ;
    return note_thread(launch);
}

/* Whatever the estimate says: what they took is held against the next. */
START_TEST(nor_do_many_that_take_longer_than_estimated)
{
    const struct fa_problem problem = small();

    kernel.launch = take_long;
    ck_assert(runs_on_the_loop(&problem));
    kernel.launch = note_thread;
    ck_assert(!runs_on_the_loop(&problem));
}
END_TEST

START_TEST(nor_does_what_keeps_an_order)
{
    const struct fa_problem problem = small();

    kernel.in_order = true;
    ck_assert(!runs_on_the_loop(&problem));
}
END_TEST

/* Whole, and not only its first piece. */
START_TEST(copies_of_any_size_are_whole)
{
    static const size_t sizes[] = {1, 65536, 65537, 1 << 20, (1 << 20) + 1, (5 << 20) - 3};
    static uint8_t from[5 << 20], to[5 << 20];

    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct fad_copy copy = {.op.done = on_done, .to = to, .from = from, .size = sizes[i]};

        memset(to, 0, sizeof to);
        done = false;
        ck_assert_int_eq(backend->ops->copy(backend, &copy), 0);
        while (!done)
            uv_run(&loop, UV_RUN_ONCE);
        ck_assert_int_eq(memcmp(to, from, sizes[i]), 0);
        for (size_t j = sizes[i]; j < sizeof to; j++)
            if (to[j] != 0)
                ck_abort_msg("byte %zu of a copy of %zu", j, sizes[i]);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cpu_backend");
    TCase *tests = tcase_create("cpu_backend");

    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, short_ranges_run_on_the_loop);
    tcase_add_test(tests, long_ones_do_not);
    tcase_add_test(tests, nor_do_many_units);
    tcase_add_test(tests, nor_does_what_is_spread_over_memory);
    tcase_add_test(tests, nor_do_many_that_take_longer_than_estimated);
    tcase_add_test(tests, nor_does_what_keeps_an_order);
    tcase_add_test(tests, copies_of_any_size_are_whole);
    suite_add_tcase(suite, tests);
    return suite;
}
