/* Staged requests while their copies are under way: what may begin when, and what becomes of a
 * request that is abandoned or fails in any state. That nothing stays is seen by the teardown, and
 * by AddressSanitizer that nothing goes too early. */
#include "tests/helpers/loopback_forward.h"

#include <errno.h>
#include <string.h>

#define BIT(t) (1u << FAD_##t)
#define SHAPE  ((struct wire_shape){1, 2, 2, 3, 5, 8})

static struct wire_forward forward;

static void setup(void)
{
    loopback_setup();
    scripted.base.separate = true;
    loopback_hello(0);
}

static void teardown(void)
{
    memset(scripted.hold, 0, sizeof scripted.hold);
    loopback_teardown();
    wire_forward_free(&forward);
}

/* One of the tensors inline, others in the memfd, so that there is a copy of every sort. */
static void make_mixed(void)
{
    wire_forward_make(&forward, SHAPE, BIT(K) | BIT(LSE));
}

static void expect_result(uint64_t id)
{
    struct wire_reply reply;

    loopback_receive_reply(0, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    wire_forward_check(&forward, &reply);
    wire_release(&reply);
}

/* --- In every state -------------------------------------------------------------------------- */

/* Where a request is held up, and its calls then. */
static const struct stage {
    enum scripted_call call;
    bool after_launch;
    unsigned held;
} stages[] = {
    {SCRIPTED_OPEN, false, 2},   /* the image, the memfd */
    {SCRIPTED_COPY, false, 2},   /* the payload, k */
    {SCRIPTED_LAUNCH, false, 1}, /* the kernel */
    {SCRIPTED_COPY, true, 2},    /* o, lse */
    {SCRIPTED_CLOSE, true, 2},
};

#define STAGES (sizeof stages / sizeof stages[0])

static void reach(const struct stage *stage)
{
    make_mixed();
    scripted.hold[stage->after_launch ? SCRIPTED_LAUNCH : stage->call] = true;
    loopback_send_forward(0, &forward, 5);
    loopback_turn();
    if (stage->after_launch) {
        scripted.hold[stage->call] = true;
        loopback_finish(SCRIPTED_LAUNCH);
    }
    ck_assert_uint_eq(scripted.held_count, stage->held);
    ck_assert_uint_eq(loopback_held(stage->call), stage->held);
}

/* Until nothing is under way any more. */
static void finish_all(void)
{
    memset(scripted.hold, 0, sizeof scripted.hold);
    while (scripted.held_count > 0) {
        scripted_finish(scripted.held_count - 1);
        loopback_turn();
    }
}

START_TEST(it_is_held_up_and_then_right)
{
    reach(&stages[_i]);
    loopback_expect_nothing(0);
    finish_all();
    expect_result(5);
}
END_TEST

START_TEST(its_client_may_go)
{
    const size_t launched = (size_t)_i >= 2;

    reach(&stages[_i]);
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    finish_all();
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], launched);
    ck_assert_uint_eq(scripted.host_used, 0);
}
END_TEST

START_TEST(it_may_be_cancelled)
{
    const unsigned copies = _i == 0 ? 0 : (unsigned)_i <= 2 ? 2 : 4;

    reach(&stages[_i]);
    loopback_cancel(0, 6, 5);
    loopback_expect_nothing(0); /* not before its calls have ended */
    finish_all();
    loopback_expect(0, 5, FA_CANCELLED, "");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], copies); /* and nothing more was begun */
    ck_assert_uint_eq(scripted.open_regions, 0);
    loopback_send_forward(0, &forward, 7);
    expect_result(7);
}
END_TEST

START_TEST(a_failure_is_that_requests_affair)
{
    const enum scripted_call call = stages[_i].call;

    if (call == SCRIPTED_CLOSE)
        return; /* it cannot fail */
    reach(&stages[_i]);
    scripted.fail[call] = FA_INTERNAL;
    finish_all();
    loopback_expect(0, 5, FA_INTERNAL, _i == 0 ? NULL : "");
    scripted.fail[call] = 0;
    loopback_send_forward(0, &forward, 6);
    expect_result(6);
    ck_assert_int_eq(loopback.fatal, 0);
}
END_TEST

START_TEST(one_of_two_calls_may_fail)
{
    const enum scripted_call call = stages[_i].call;

    if (call == SCRIPTED_CLOSE || call == SCRIPTED_LAUNCH)
        return;
    reach(&stages[_i]);
    scripted.fail[call] = FA_INTERNAL;
    loopback_finish(call);
    scripted.fail[call] = 0;
    loopback_expect_nothing(0);
    finish_all();
    loopback_expect(0, 5, FA_INTERNAL, NULL);
}
END_TEST

START_TEST(a_refused_copy_is_that_requests_affair)
{
    make_mixed();
    scripted.refuse[SCRIPTED_COPY] = FA_RESOURCE_EXHAUSTED;
    loopback_send_forward(0, &forward, 5);
    loopback_expect(0, 5, FA_RESOURCE_EXHAUSTED, "");
    scripted.refuse[SCRIPTED_COPY] = 0;
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_send_forward(0, &forward, 6);
    loopback_turn();
    scripted.refuse[SCRIPTED_COPY] = FA_RESOURCE_EXHAUSTED;
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_expect(0, 6, FA_RESOURCE_EXHAUSTED, "");
    ck_assert_int_eq(loopback.fatal, 0);
}
END_TEST

START_TEST(a_copy_that_loses_the_device_is_the_daemons_affair)
{
    make_mixed();
    scripted.fail[SCRIPTED_COPY] = -EIO;
    loopback_send_forward(0, &forward, 5);
    loopback_expect(0, 5, FA_DEVICE_LOST, "");
    ck_assert_int_eq(loopback.fatal, -EIO);
}
END_TEST

/* --- Times ----------------------------------------------------------------------------------- */

static void await_ms(unsigned ms)
{
    const uint64_t until_ns = uv_hrtime() + ms * UINT64_C(1000000);

    while (uv_hrtime() < until_ns)
        uv_sleep(1);
}

/* The deadline is over before the copies are. */
START_TEST(a_deadline_holds_while_copies_are_under_way)
{
    make_mixed();
    forward.message.has_deadline_us = true;
    forward.message.deadline_us = 40000;
    scripted.hold[_i == 0 ? SCRIPTED_COPY : SCRIPTED_LAUNCH] = true;
    loopback_send_forward(0, &forward, 5);
    loopback_turn();
    if (_i == 1) {
        scripted.hold[SCRIPTED_COPY] = true;
        loopback_finish(SCRIPTED_LAUNCH);
    }
    await_ms(50);
    finish_all();
    loopback_expect(0, 5, FA_DEADLINE_EXCEEDED, "");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], _i);
}
END_TEST

static uint64_t transfer_us_of_next(void)
{
    struct wire_reply reply;
    uint64_t transfer_us;

    loopback_receive_reply(0, &reply);
    wire_forward_check(&forward, &reply);
    transfer_us = reply.message->forward->transfer_us;
    ck_assert_uint_le(transfer_us, reply.message->forward->total_us);
    wire_release(&reply);
    return transfer_us;
}

START_TEST(copies_both_ways_are_transfer)
{
    wire_forward_make(&forward, SHAPE, _i == 0 ? 0x1f : 0);
    scripted.hold[SCRIPTED_COPY] = true;
    loopback_send_forward(0, &forward, 5);
    loopback_turn();
    await_ms(20);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    while (loopback_held(SCRIPTED_COPY) > 0)
        loopback_finish(SCRIPTED_COPY);
    await_ms(100); /* not this */
    loopback_finish(SCRIPTED_LAUNCH);
    ck_assert_uint_eq(loopback_held(SCRIPTED_COPY), 2);
    await_ms(20);
    finish_all();
    const uint64_t transfer_us = transfer_us_of_next();
    ck_assert_uint_ge(transfer_us, 40000);
    ck_assert_uint_lt(transfer_us, 140000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("staging_life");
    TCase *tests = tcase_create("scripted");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, it_is_held_up_and_then_right, 0, STAGES);
    tcase_add_loop_test(tests, its_client_may_go, 0, STAGES);
    tcase_add_loop_test(tests, it_may_be_cancelled, 0, STAGES);
    tcase_add_loop_test(tests, a_failure_is_that_requests_affair, 0, STAGES);
    tcase_add_loop_test(tests, one_of_two_calls_may_fail, 0, STAGES);
    tcase_add_test(tests, a_refused_copy_is_that_requests_affair);
    tcase_add_test(tests, a_copy_that_loses_the_device_is_the_daemons_affair);
    tcase_add_loop_test(tests, a_deadline_holds_while_copies_are_under_way, 0, 2);
    tcase_add_loop_test(tests, copies_both_ways_are_transfer, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}
