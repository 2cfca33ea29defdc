/* Staged requests while their copies are under way: what may begin when, and what becomes of a
 * request that is abandoned or fails in any state. That nothing stays is seen by the teardown, and
 * by AddressSanitizer that nothing goes too early. */
#include "tests/helpers/loopback_forward.h"

#include <errno.h>
#include <string.h>

#define BIT(t) (1u << FAD_##t)
#define SHAPE  ((struct wire_shape){1, 2, 2, 3, 5, 8})
#define MIB    ((size_t)1 << 20)

static struct wire_forward forward;

static void setup(void)
{
    loopback_setup();
    scripted.base.separate = true;
    for (int i = 0; i < LOOPBACK_CLIENTS; i++)
        loopback.connections[i]->reader.payload_max = 16 * MIB;
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

/* --- While the payload arrives --------------------------------------------------------------- */

/* The frame of a request with a payload of 8 MiB and some: a row that sees many keys. */
static struct wire_bytes make_large(void)
{
    struct wire_bytes bytes = {0};

    wire_forward_make(&forward, (struct wire_shape){1, 1, 1, 1, 16384, 64}, 0);
    wire_forward_append(&forward, 5, &bytes);
    return bytes;
}

/* Sends up to the payload's byte. */
static void send_to(const struct wire_bytes *bytes, size_t *sent, size_t payload)
{
    const size_t to = bytes->size - forward.payload.size + payload;

    loopback_send_bytes(0, bytes->data + *sent, to - *sent, -1);
    *sent = to;
    loopback_turn();
}

START_TEST(a_payload_is_copied_while_it_arrives)
{
    struct wire_bytes bytes = make_large();
    size_t sent = 0;
    uint64_t first, second;

    scripted.hold[SCRIPTED_COPY] = true;
    send_to(&bytes, &sent, MIB - 4);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 0);
    send_to(&bytes, &sent, MIB + MIB / 2);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1);
    first = scripted.held[0].copy->size;
    ck_assert_uint_ge(first, MIB);
    send_to(&bytes, &sent, 3 * MIB);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 2);
    second = scripted.held[1].copy->size;
    ck_assert_uint_ge(second, MIB);
    send_to(&bytes, &sent, 6 * MIB); /* two at a time */
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 2);
    loopback_finish(SCRIPTED_COPY); /* and then all that is there */
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 3);
    ck_assert_uint_eq(scripted.held[1].copy->size, 6 * MIB - first - second);
    send_to(&bytes, &sent, forward.payload.size);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 3);
    loopback_finish(SCRIPTED_COPY);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 4); /* the rest */
    ck_assert_uint_eq(scripted.held[1].copy->size, forward.payload.size - 6 * MIB);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    loopback_finish(SCRIPTED_COPY);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    scripted.hold[SCRIPTED_COPY] = false;
    loopback_finish(SCRIPTED_COPY);
    expect_result(5);
    wire_free(&bytes);
}
END_TEST

START_TEST(a_payload_waits_for_its_image)
{
    struct wire_bytes bytes = make_large();
    size_t sent = 0;

    scripted.hold[SCRIPTED_OPEN] = true;
    send_to(&bytes, &sent, 5 * MIB);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 0);
    scripted.hold[SCRIPTED_OPEN] = false;
    loopback_finish(SCRIPTED_OPEN);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1);
    send_to(&bytes, &sent, forward.payload.size);
    expect_result(5);
    wire_free(&bytes);
}
END_TEST

/* In steps, where a copy is done before the next bytes come; small payloads in one. */
START_TEST(copies_have_a_mebibyte_or_the_rest)
{
    struct wire_bytes bytes = make_large();

    loopback_send_bytes(0, bytes.data, bytes.size, -1);
    expect_result(5);
    ck_assert_uint_gt(scripted.calls[SCRIPTED_COPY], 2 + 2);
    ck_assert_uint_le(scripted.calls[SCRIPTED_COPY], 2 + 9);
    wire_free(&bytes);
}
END_TEST

START_TEST(a_client_may_go_while_its_payload_arrives)
{
    static const enum scripted_call held[] = {SCRIPTED_OPEN, SCRIPTED_COPY};
    struct wire_bytes bytes = make_large();
    size_t sent = 0;

    scripted.hold[held[_i]] = true;
    send_to(&bytes, &sent, 4 * MIB);
    ck_assert_uint_gt(loopback_held(held[_i]), 0);
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    ck_assert_uint_ge(scripted.host_used, 8 * MIB);
    scripted.hold[held[_i]] = false;
    while (loopback_held(held[_i]) > 0)
        loopback_finish(held[_i]);
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.host_used, 0);
    ck_assert_uint_eq(scripted.open_regions, 0);
    wire_free(&bytes);
}
END_TEST

START_TEST(a_daemon_may_stop_while_a_payload_arrives)
{
    struct wire_bytes bytes = make_large();
    size_t sent = 0;

    scripted.hold[SCRIPTED_COPY] = true;
    send_to(&bytes, &sent, 2 * MIB);
    loopback.service.stopping = true;
    fad_connection_abandon(loopback.connections[0]);
    loopback_expect_nothing(0);
    loopback_finish(SCRIPTED_COPY);
    loopback_expect(0, 5, FA_SHUTTING_DOWN, "");
    wire_free(&bytes);
}
END_TEST

/* It is answered when its frame is complete, and once. */
START_TEST(a_copy_may_fail_while_the_payload_arrives)
{
    struct wire_bytes bytes = make_large();
    size_t sent = 0;

    scripted.fail[SCRIPTED_COPY] = FA_RESOURCE_EXHAUSTED;
    send_to(&bytes, &sent, 4 * MIB);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1); /* no more of them */
    loopback_expect_nothing(0);
    scripted.fail[SCRIPTED_COPY] = 0;
    send_to(&bytes, &sent, forward.payload.size);
    loopback_expect(0, 5, FA_RESOURCE_EXHAUSTED, "");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1);
    loopback_send_bytes(0, bytes.data, bytes.size, -1);
    expect_result(5);
    wire_free(&bytes);
}
END_TEST

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
    tcase_add_test(tests, a_payload_is_copied_while_it_arrives);
    tcase_add_test(tests, a_payload_waits_for_its_image);
    tcase_add_test(tests, copies_have_a_mebibyte_or_the_rest);
    tcase_add_loop_test(tests, a_client_may_go_while_its_payload_arrives, 0, 2);
    tcase_add_test(tests, a_daemon_may_stop_while_a_payload_arrives);
    tcase_add_test(tests, a_copy_may_fail_while_the_payload_arrives);
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
