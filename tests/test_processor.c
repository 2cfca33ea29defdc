/* How a shared device's time is divided among the ranges that run on it. */
#include "daemon/scheduler/processor.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>

#define MS 1000000ull

enum { STREAMS = 4, ROUNDS = 1000 };

static const struct fad_device device = {.streams = STREAMS, .shared = true};
static struct fad_processor processor;
static struct fad_range_op ranges[STREAMS];

static void setup(void)
{
    ck_assert_int_eq(fad_processor_init(&processor, &device), 0);
    for (uint32_t i = 0; i < STREAMS; i++)
        ranges[i].stream = i;
}

static void teardown(void)
{
    fad_processor_deinit(&processor);
}

static void launch(uint32_t stream, double weight_ns, uint64_t now_ns)
{
    ranges[stream].op.started_ns = now_ns;
    fad_processor_launched(&processor, &ranges[stream], weight_ns, now_ns);
}

static double end(uint32_t stream, uint64_t now_ns)
{
    ranges[stream].op.finished_ns = now_ns;
    return fad_processor_took(&processor, &ranges[stream]).ns;
}

/* A number that sums of do not come out even. */
static double odd_ns(void)
{
    return 1e5 * (1 + (double)random() / RAND_MAX);
}

/* All that ran at once come to the time in which they did, however often the device has been idle
 * before. */
START_TEST(time_is_divided_anew_after_the_device_was_idle)
{
    uint64_t now_ns = 1;

    srandom(1);
    for (int round = 0; round < ROUNDS; round++) {
        double sum_ns = 0;

        for (uint32_t i = 0; i < STREAMS; i++)
            launch(i, odd_ns(), now_ns);
        for (uint32_t i = 0; i < STREAMS; i++)
            sum_ns += end((i + (uint32_t)round) % STREAMS, now_ns += MS);
        ck_assert_msg(fabs(sum_ns - STREAMS * (double)MS) < 10, "round %d: %g ns", round, sum_ns);
        now_ns += 1000 * MS;
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("processor");
    TCase *tests = tcase_create("processor");

    suite_add_tcase(suite, tests);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, time_is_divided_anew_after_the_device_was_idle);
    return suite;
}
