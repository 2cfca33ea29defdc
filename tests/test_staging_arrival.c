/* Payloads on their way to a device that reaches its own memory only: they are copied while they
 * arrive, and whatever happens meanwhile ends when the copies do. */
#include "tests/helpers/loopback_forward.h"

#define MIB ((size_t)1 << 20)

static struct wire_forward forward;

static void setup(void)
{
    loopback_setup();
    scripted.base.separate = true;
    loopback.connections[0]->reader.payload_max = 16 * MIB;
    loopback_hello(0);
}

static void teardown(void)
{
    loopback_teardown();
    wire_forward_free(&forward);
}

static void expect_result(uint64_t id)
{
    struct wire_reply reply;

    loopback_receive_reply(0, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    wire_forward_check(&forward, &reply);
    wire_release(&reply);
}

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

Suite *test_suite(void)
{
    Suite *suite = suite_create("staging_arrival");
    TCase *tests = tcase_create("scripted");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_payload_is_copied_while_it_arrives);
    tcase_add_test(tests, a_payload_waits_for_its_image);
    tcase_add_test(tests, copies_have_a_mebibyte_or_the_rest);
    tcase_add_loop_test(tests, a_client_may_go_while_its_payload_arrives, 0, 2);
    tcase_add_test(tests, a_daemon_may_stop_while_a_payload_arrives);
    tcase_add_test(tests, a_copy_may_fail_while_the_payload_arrives);
    suite_add_tcase(suite, tests);
    return suite;
}
