/* The scheduler by itself, on a scripted backend without a loop: every range goes out once, spread
 * over the streams, at most two ahead of each, and every work ends exactly once. */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A kernel that only counts what it is asked to do. */
static unsigned char touched[4096];

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
    for (uint64_t u = 0; u < launch->range.count; u++)
        touched[launch->range.first + u]++;
    return FA_OK;
}

/* Fast enough that ranges are cut by spread, not by time, unless a test lowers it. */
static struct fa_kernel fake = {.name = "fake",
                                .units = fake_units,
                                .scratch = fake_scratch,
                                .launch = fake_launch,
                                .rate = 1e9};

static struct fad_scheduler scheduler;
static struct fa_problem problem;
static struct fad_group group;
static struct fad_flow flow;

struct tracked {
    struct fad_work work;
    int ended;
};

static void on_finished(struct fad_work *work)
{
    fad_container_of(work, struct tracked, work)->ended++;
}

static void setup(void)
{
    fake.in_order = false;
    scripted_reset();
    scripted.hold[SCRIPTED_LAUNCH] = true;
    memset(touched, 0, sizeof touched);
    fake.rate = 1e9;
    problem = (struct fa_problem){.batch = 1,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .q_len = 1000,
                                  .kv_len = 10000,
                                  .head_dim = 64,
                                  .dtype = FA_DTYPE_FLOAT32,
                                  .scale = 1};
    ck_assert_int_eq(fad_scheduler_init(&scheduler, &scripted.base), 0);
    fad_group_init(&group);
    fad_flow_init(&flow, &group);
}

static void dispatch(void)
{
    fad_scheduler_dispatch(&scheduler, scripted.now_ns);
}

static void teardown(void)
{
    fad_scheduler_deinit(&scheduler);
}

static void submit_until(struct tracked *tracked, uint32_t device, uint64_t deadline_ns)
{
    *tracked = (struct tracked){.work = {.flow = &flow,
                                         .priority = FA_PRIORITY_NORMAL,
                                         .deadline_ns = deadline_ns,
                                         .device = device,
                                         .kernel = &fake,
                                         .problem = &problem,
                                         .finished = on_finished}};
    fad_scheduler_submit(&scheduler, &tracked->work);
}

static void submit(struct tracked *tracked, uint32_t device)
{
    submit_until(tracked, device, 0);
}

static void finish_all(void)
{
    for (dispatch(); scripted.held_count > 0; dispatch())
        scripted_finish(0);
}

static void assert_each_once(uint64_t units)
{
    for (uint64_t u = 0; u < units; u++)
        ck_assert_int_eq(touched[u], 1);
    ck_assert_int_eq(touched[units], 0);
}

START_TEST(every_unit_runs_exactly_once)
{
    struct tracked tracked;
    submit(&tracked, 0);
    dispatch();
    finish_all();
    ck_assert_int_eq(tracked.ended, 1);
    ck_assert_int_eq(tracked.work.status, 0);
    assert_each_once(1000);
}
END_TEST

START_TEST(at_most_two_ranges_are_ahead_of_a_stream)
{
    struct tracked tracked;
    unsigned ahead[2] = {0, 0};

    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 4);
    for (unsigned i = 0; i < scripted.held_count; i++) {
        ck_assert_uint_eq(scripted.held[i].range->device, 0);
        ahead[scripted.held[i].range->stream]++;
    }
    ck_assert_uint_eq(ahead[0], 2);
    ck_assert_uint_eq(ahead[1], 2);
    finish_all();
    ck_assert_int_eq(tracked.ended, 1);
}
END_TEST

/* Ranges that take as long as estimated. */
static uint64_t as_estimated(const struct fad_range_op *range)
{
    double seconds = fa_kernel_seconds(&fake, &problem) / (double)fake_units(&problem);
    return (uint64_t)(seconds * 1e9 * (double)range->launch.range.count);
}

START_TEST(a_range_takes_about_a_quarter_of_a_millisecond)
{
    struct tracked tracked;

    scripted.takes_ns = as_estimated;
    submit(&tracked, 0); /* 2.56 ms a unit: one a range */
    dispatch();
    for (; scripted.held_count > 0; dispatch()) {
        ck_assert_uint_eq(scripted.held[0].range->launch.range.count, 1);
        scripted_finish(0);
    }
    fake.rate = 1e12; /* 2.6 us a unit, 2.7 ms in all: 12 ranges rather than 11, six a stream */
    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held[0].range->launch.range.count, 84);
    finish_all();
}
END_TEST

/* Else one stream would be done long before the other. */
START_TEST(streams_have_equal_parts_of_a_short_work)
{
    uint64_t units[2] = {0, 0};
    struct tracked tracked;

    problem.q_len = 200;
    fake.rate = 1e12; /* 537 us: four ranges, though three would do */
    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 4);
    for (unsigned i = 0; i < 4; i++)
        units[scripted.held[i].range->stream] += scripted.held[i].range->launch.range.count;
    ck_assert_uint_eq(units[0], 100);
    ck_assert_uint_eq(units[1], 100);
    finish_all();
}
END_TEST

START_TEST(a_short_work_still_spreads_over_the_streams)
{
    struct tracked tracked;

    problem.q_len = 40;
    fake.rate = 1e12; /* 102 us in all: half for each stream */
    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 2);
    ck_assert_uint_eq(scripted.held[0].range->launch.range.count, 20);
    ck_assert_uint_ne(scripted.held[0].range->stream, scripted.held[1].range->stream);
    finish_all();
    problem.q_len = 4; /* 10 us: not worth a hand-over more */
    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 1);
    finish_all();
}
END_TEST

START_TEST(works_are_served_in_order_and_by_device)
{
    struct tracked first, second, other;

    submit(&first, 0);
    submit(&second, 0);
    submit(&other, 1);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 8);
    for (unsigned i = 0; i < 8; i++)
        ck_assert_ptr_eq(scripted.held[i].range->launch.tensors, scripted.held[i].range->device == 0
                                                                     ? &first.work.tensors
                                                                     : &other.work.tensors);
    finish_all();
    ck_assert_int_eq(first.ended + second.ended + other.ended, 3);
}
END_TEST

START_TEST(an_in_order_kernel_keeps_to_one_stream)
{
    struct tracked tracked, other;
    uint64_t next = 0;

    fake.in_order = true;
    submit(&tracked, 0);
    dispatch();
    ck_assert_uint_eq(scripted.held_count, 2);
    submit(&other, 0);
    dispatch(); /* which has the other stream to itself */
    ck_assert_uint_eq(scripted.held_count, 4);
    while (tracked.ended == 0) {
        for (unsigned i = 0; i < scripted.held_count; i++)
            ck_assert_uint_eq(scripted.held[i].range->stream,
                              scripted.held[i].range->launch.tensors == &other.work.tensors);
        if (scripted.held[0].range->launch.tensors == &tracked.work.tensors) {
            ck_assert_uint_eq(scripted.held[0].range->launch.range.first, next);
            next += scripted.held[0].range->launch.range.count;
        }
        scripted_finish(0);
        dispatch();
    }
    finish_all();
    ck_assert_int_eq(other.ended, 1);
}
END_TEST

START_TEST(a_failed_range_ends_its_work_and_no_other)
{
    struct tracked bad, good;

    submit(&bad, 0);
    dispatch();
    submit(&good, 0);
    scripted.fail[SCRIPTED_LAUNCH] = FA_INTERNAL;
    scripted_finish(0);
    scripted.fail[SCRIPTED_LAUNCH] = 0;
    ck_assert_int_eq(bad.ended, 0); /* three ranges are still under way */
    dispatch();
    finish_all();
    ck_assert_int_eq(bad.ended, 1);
    ck_assert_int_eq(bad.work.status, FA_INTERNAL);
    ck_assert_str_eq(bad.work.text, "as the script says");
    ck_assert_int_eq(good.ended, 1);
    ck_assert_int_eq(good.work.status, 0);
    ck_assert_int_eq(scheduler.fatal, 0);
}
END_TEST

START_TEST(a_refused_launch_ends_its_work)
{
    struct tracked tracked;

    scripted.refuse[SCRIPTED_LAUNCH] = FA_RESOURCE_EXHAUSTED;
    submit(&tracked, 0);
    dispatch();
    ck_assert_int_eq(tracked.ended, 1);
    ck_assert_int_eq(tracked.work.status, FA_RESOURCE_EXHAUSTED);
    scripted.refuse[SCRIPTED_LAUNCH] = -EIO;
    submit(&tracked, 0);
    dispatch();
    ck_assert_int_eq(tracked.ended, 1);
    ck_assert_int_eq(scheduler.fatal, -EIO);
}
END_TEST

START_TEST(abandoned_works_end_after_what_is_under_way)
{
    struct tracked running, waiting, launched;

    submit(&running, 0);
    dispatch();
    submit(&waiting, 0);
    fad_scheduler_abandon(&scheduler, &waiting.work, FA_CANCELLED);
    ck_assert_int_eq(waiting.ended, 1); /* at once */
    ck_assert_int_eq(waiting.work.status, FA_CANCELLED);
    fad_scheduler_abandon(&scheduler, &running.work, FA_CANCELLED);
    ck_assert_int_eq(running.ended, 0);
    finish_all();
    ck_assert_int_eq(running.ended, 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 4);

    problem.q_len = 1; /* all of it is under way: nothing left to take back */
    submit(&launched, 0);
    dispatch();
    fad_scheduler_abandon(&scheduler, &launched.work, FA_CANCELLED);
    ck_assert_int_eq(launched.ended, 0);
    finish_all();
    ck_assert_int_eq(launched.ended, 1);
    ck_assert_int_eq(launched.work.status, FA_CANCELLED);
}
END_TEST

START_TEST(a_passed_deadline_ends_what_waits_and_stops_what_runs)
{
    struct tracked running, waiting, later, none;

    submit_until(&running, 0, 2000);
    dispatch();
    submit_until(&later, 0, 3001);
    submit_until(&waiting, 0, 3000);
    submit(&none, 0);
    ck_assert_uint_eq(fad_scheduler_next_deadline(&scheduler), 2000);
    scripted.now_ns = 1999;
    dispatch();
    ck_assert(!running.work.stop);
    scripted.now_ns = 2000;
    dispatch();
    ck_assert(running.work.stop && running.ended == 0);
    ck_assert_uint_eq(fad_scheduler_next_deadline(&scheduler), 3000);
    scripted.now_ns = 3000;
    dispatch();
    ck_assert_int_eq(waiting.ended, 1); /* though all places are taken */
    ck_assert_int_eq(waiting.work.status, FA_DEADLINE_EXCEEDED);
    ck_assert_uint_eq(fad_scheduler_next_deadline(&scheduler), 3001);
    fad_scheduler_abandon(&scheduler, &later.work, FA_CANCELLED);
    ck_assert_uint_eq(fad_scheduler_next_deadline(&scheduler), 0);
    finish_all();
    ck_assert_int_eq(running.work.status, FA_DEADLINE_EXCEEDED);
    ck_assert_int_eq(later.work.status, FA_CANCELLED);
    ck_assert_int_eq(running.ended + none.ended, 2);
}
END_TEST

static uint64_t a_microsecond_a_unit(const struct fad_range_op *range)
{
    return 1000 * range->launch.range.count;
}

START_TEST(kernel_time_is_the_ranges_sum_over_the_streams_that_took_part)
{
    struct tracked tracked;

    scripted.takes_ns = a_microsecond_a_unit;
    submit(&tracked, 0);
    dispatch();
    finish_all();
    ck_assert_uint_eq(tracked.work.started_ns, 1000);
    ck_assert_uint_eq(tracked.work.range_ns, 1000 * 1000);
    ck_assert_uint_eq(fad_work_kernel_ns(&tracked.work), 1000 * 1000 / 2);
    problem.q_len = 1; /* one range, so one stream */
    submit(&tracked, 0);
    finish_all();
    ck_assert_uint_eq(fad_work_kernel_ns(&tracked.work), 1000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler");
    TCase *tests = tcase_create("one flow");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, every_unit_runs_exactly_once);
    tcase_add_test(tests, at_most_two_ranges_are_ahead_of_a_stream);
    tcase_add_test(tests, a_range_takes_about_a_quarter_of_a_millisecond);
    tcase_add_test(tests, streams_have_equal_parts_of_a_short_work);
    tcase_add_test(tests, a_short_work_still_spreads_over_the_streams);
    tcase_add_test(tests, works_are_served_in_order_and_by_device);
    tcase_add_test(tests, an_in_order_kernel_keeps_to_one_stream);
    tcase_add_test(tests, a_failed_range_ends_its_work_and_no_other);
    tcase_add_test(tests, a_refused_launch_ends_its_work);
    tcase_add_test(tests, abandoned_works_end_after_what_is_under_way);
    tcase_add_test(tests, kernel_time_is_the_ranges_sum_over_the_streams_that_took_part);
    tcase_add_test(tests, a_passed_deadline_ends_what_waits_and_stops_what_runs);
    suite_add_tcase(suite, tests);
    return suite;
}
