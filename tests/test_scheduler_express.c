/* What goes where on a shared device, step by step on a scripted backend: short works whole and on
 * the express streams, long works cut up on the others, and who waits for whom. */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/test.h"

#include <string.h>

#define US 1000ull

#define STREAMS 4
#define EXPRESS 1

static uint64_t fake_units(const struct fa_problem *problem)
{
    return problem->q_len;
}

static size_t fake_scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 64;
}

static enum fa_status fake_launch(const struct fa_launch *launch)
{
    (void)launch;
    return FA_OK;
}

/* A unit takes 10 us. */
static struct fa_kernel fake = {.name = "fake",
                                .units = fake_units,
                                .scratch = fake_scratch,
                                .launch = fake_launch,
                                .rate = 1e30,
                                .unit_seconds = 10e-6};

struct tracked {
    struct fad_work work;
    struct fa_problem problem;
    int ended;
};

static struct fad_scheduler scheduler;
static struct fad_group groups[2];
static struct fad_flow flows[2]; /* one of each group */

static uint64_t as_expected(const struct fad_range_op *range)
{
    return range->expected_ns;
}

static void setup(void)
{
    scripted_reset();
    scripted.hold[SCRIPTED_LAUNCH] = true;
    scripted.takes_ns = as_expected;
    scripted.devices[0].streams = STREAMS;
    scripted.devices[0].shared = true;
    scripted.devices[0].express = EXPRESS;
    fake.in_order = false;
    ck_assert_int_eq(fad_scheduler_init(&scheduler, &scripted.base), 0);
    for (unsigned g = 0; g < 2; g++) {
        fad_group_init(&groups[g]);
        fad_flow_init(&flows[g], &groups[g]);
    }
}

static void teardown(void)
{
    fad_scheduler_deinit(&scheduler);
}

static void on_finished(struct fad_work *work)
{
    fad_container_of(work, struct tracked, work)->ended++;
}

static void dispatch(void)
{
    fad_scheduler_dispatch(&scheduler, scripted.now_ns);
}

static void submit(struct tracked *tracked, unsigned flow, uint32_t units)
{
    *tracked = (struct tracked){.problem = {.batch = 1,
                                            .heads = 1,
                                            .kv_heads = 1,
                                            .q_len = units,
                                            .kv_len = 1,
                                            .head_dim = 1,
                                            .dtype = FA_DTYPE_FLOAT32,
                                            .scale = 1}};
    tracked->work = (struct fad_work){.flow = &flows[flow],
                                      .priority = FA_PRIORITY_NORMAL,
                                      .kernel = &fake,
                                      .problem = &tracked->problem,
                                      .finished = on_finished};
    fad_scheduler_submit(&scheduler, &tracked->work);
    dispatch();
}

static void finish_all(void)
{
    for (; scripted.held_count > 0; dispatch())
        scripted_finish(0);
}

static const struct fad_range_op *held(unsigned index)
{
    ck_assert_uint_lt(index, scripted.held_count);
    return scripted.held[index].range;
}

START_TEST(a_short_work_goes_out_whole_on_an_express_stream)
{
    struct tracked shorts[3];

    for (unsigned i = 0; i < 3; i++)
        submit(&shorts[i], 0, 10); /* 100 us */
    ck_assert_uint_eq(scripted.held_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        ck_assert_uint_eq(held(i)->stream, STREAMS - 1);
        ck_assert_uint_eq(held(i)->launch.range.count, 10);
        ck_assert_uint_eq(held(i)->expected_ns, 100 * US);
    }
    finish_all();
    ck_assert_int_eq(shorts[2].ended, 1);
}
END_TEST

START_TEST(a_long_work_spreads_over_the_others)
{
    bool used[STREAMS] = {false};
    struct tracked tracked;

    submit(&tracked, 0, 33); /* 330 us */
    ck_assert_uint_eq(scripted.held_count, 3);
    for (unsigned i = 0; i < 3; i++) {
        used[held(i)->stream] = true;
        ck_assert_uint_eq(held(i)->launch.range.count, 11);
        ck_assert_uint_eq(held(i)->expected_ns, 110 * US);
    }
    ck_assert(used[0] && used[1] && used[2] && !used[3]);
    finish_all();
}
END_TEST

START_TEST(ranges_of_a_long_work_take_a_quarter_of_a_millisecond_of_the_device)
{
    struct tracked tracked;

    submit(&tracked, 0, 11); /* 110 us: a third on each stream */
    ck_assert_uint_eq(held(0)->launch.range.count, 4);
    finish_all();
    submit(&tracked, 0, 10000);
    ck_assert_uint_eq(scripted.held_count, 6);
    for (unsigned i = 0; i < 6; i++)
        ck_assert_uint_eq(held(i)->launch.range.count, 24);
    finish_all();
}
END_TEST

START_TEST(without_express_streams_all_take_all)
{
    struct tracked shorts[3], tracked;

    fad_scheduler_deinit(&scheduler);
    scripted.devices[0].express = 0;
    ck_assert_int_eq(fad_scheduler_init(&scheduler, &scripted.base), 0);
    for (unsigned i = 0; i < 3; i++)
        submit(&shorts[i], 0, 8);
    submit(&tracked, 0, 8000);
    ck_assert_uint_eq(scripted.held_count, STREAMS * FAD_RANGES_AHEAD);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_uint_eq(held(i)->launch.range.count, 8);
    ck_assert_uint_eq(held(3)->stream, 3);
    finish_all();
    ck_assert_int_eq(tracked.ended, 1);
}
END_TEST

START_TEST(an_in_order_kernel_keeps_to_one_stream)
{
    struct tracked tracked;

    fake.in_order = true;
    submit(&tracked, 0, 1000);
    for (; scripted.held_count > 0; dispatch()) {
        for (unsigned i = 0; i < scripted.held_count; i++)
            ck_assert_uint_eq(held(i)->stream, 0);
        scripted_finish(0);
    }
    ck_assert_int_eq(tracked.ended, 1);
}
END_TEST

/* Nobody else has work: debts are no reason to wait. */
START_TEST(a_device_is_never_idle)
{
    struct tracked shorts[2];

    for (int i = 0; i < 1000; i++) {
        submit(&shorts[0], 0, 10);
        submit(&shorts[1], 0, 10);
        ck_assert_uint_eq(scripted.held_count, 2);
        finish_all();
    }
}
END_TEST

static uint64_t longer_on_stream_0(const struct fad_range_op *range)
{
    return range->stream == 0 ? 300 * US : range->expected_ns;
}

START_TEST(kernel_time_is_while_any_range_ran)
{
    struct tracked tracked;

    scripted.takes_ns = longer_on_stream_0;
    submit(&tracked, 0, 33);
    finish_all(); /* each on its stream, all from 1000 ns on */
    ck_assert_uint_eq(tracked.work.range_ns, (300 + 2 * 110) * US);
    ck_assert_uint_eq(fad_work_kernel_ns(&tracked.work), 300 * US);
    submit(&tracked, 0, 10);
    finish_all();
    ck_assert_uint_eq(fad_work_kernel_ns(&tracked.work), 100 * US);
}
END_TEST

static uint64_t span_of(const uint64_t (*spans)[2], unsigned count)
{
    struct fad_span all = {0};

    for (unsigned i = 0; i < count; i++)
        fad_span_add(&all, spans[i][0], spans[i][1]);
    return fad_span_ns(&all);
}

START_TEST(spans_join)
{
    static const uint64_t apart[][2] = {{10, 12}, {20, 25}, {25, 26}};
    static const uint64_t over[][2] = {{10, 12}, {11, 15}, {12, 14}, {5, 16}};
    static const uint64_t over_a_gap[][2] = {{10, 12}, {20, 25}, {11, 30}};
    static const uint64_t later_told[][2] = {{10, 20}, {8, 19}};

    ck_assert_uint_eq(span_of(apart, 0), 0);
    ck_assert_uint_eq(span_of(apart, 3), 8);
    ck_assert_uint_eq(span_of(over, 4), 11);
    ck_assert_uint_eq(span_of(over_a_gap, 3), 20);
    ck_assert_uint_eq(span_of(later_told, 2), 12);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler_express");
    TCase *tests = tcase_create("express");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_short_work_goes_out_whole_on_an_express_stream);
    tcase_add_test(tests, a_long_work_spreads_over_the_others);
    tcase_add_test(tests, ranges_of_a_long_work_take_a_quarter_of_a_millisecond_of_the_device);
    tcase_add_test(tests, without_express_streams_all_take_all);
    tcase_add_test(tests, an_in_order_kernel_keeps_to_one_stream);
    tcase_add_test(tests, a_device_is_never_idle);
    tcase_add_test(tests, kernel_time_is_while_any_range_ran);
    tcase_add_test(tests, spans_join);
    suite_add_tcase(suite, tests);
    return suite;
}
