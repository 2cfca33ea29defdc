/* Requests with CUDA events, on the scripted backend: nothing of theirs is read or written before
 * the events have happened, and one that never does costs nobody else anything. */
#include "tests/helpers/loopback_forward.h"

#include <string.h>

#define BIT(t) (1u << FAD_##t)

static struct forward forward;
static uint8_t events[FAD_TENSORS][64];

static void setup(void)
{
    loopback_setup();
    loopback_hello(0);
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
}

/* The tensor waits for the event that is so many times the byte. */
static void put_event(enum fad_tensor t, uint8_t event)
{
    memset(events[t], event, sizeof events[t]);
    forward.ipc[t].has_event = true;
    forward.ipc[t].event = (ProtobufCBinaryData){sizeof events[t], events[t]};
}

static void hold_and_send(uint64_t id)
{
    scripted.hold[SCRIPTED_EVENT] = true;
    loopback_send(0, id, &forward);
    loopback_turn();
}

static struct fad_event_wait *held_wait(unsigned index)
{
    ck_assert_uint_lt(index, scripted.held_count);
    ck_assert_int_eq(scripted.held[index].call, SCRIPTED_EVENT);
    return scripted.held[index].wait;
}

START_TEST(a_request_waits_for_its_event)
{
    put_event(FAD_K, 3);
    hold_and_send(2);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 1);
    ck_assert_mem_eq(held_wait(0)->handle, events[FAD_K], 64);
    ck_assert_uint_eq(held_wait(0)->device, 0);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    loopback_expect_nothing(0);
    loopback_send_inline(0, 3); /* nobody else waits */
    loopback_expect(0, 3, FA_OK, NULL);
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 2);
}
END_TEST

START_TEST(an_event_is_awaited_on_its_device)
{
    forward_put_all_ipc(&forward, 2);
    put_event(FAD_O, 3);
    hold_and_send(2);
    ck_assert_uint_eq(held_wait(0)->device, 1);
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(one_event_of_five_tensors_is_awaited_once)
{
    for (int t = 0; t < FAD_TENSORS; t++)
        put_event((enum fad_tensor)t, 3);
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 1); /* and one allocation opened once */
}
END_TEST

START_TEST(two_events_are_both_awaited)
{
    put_event(FAD_Q, 3);
    put_event(FAD_V, 4);
    put_event(FAD_LSE, 3);
    hold_and_send(2);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 2);
    scripted_finish(_i == 0 ? 0 : 1);
    loopback_expect_nothing(0);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(events_of_five_tensors_are_five)
{
    for (int t = 0; t < FAD_TENSORS; t++)
        put_event((enum fad_tensor)t, (uint8_t)(t + 1));
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 5);
}
END_TEST

/* --- Those that do not happen ---------------------------------------------------------------- */

static const struct {
    uint64_t deadline_us; /* 0: none */
    uint64_t until_ns;    /* from all data being there */
    enum fa_status late;
} ends[] = {
    {0, 10000000000, FA_EVENT_TIMEOUT},
    {20000000, 10000000000, FA_EVENT_TIMEOUT},
    {3000000, 3000000000, FA_DEADLINE_EXCEEDED},
    {UINT64_MAX, 10000000000, FA_EVENT_TIMEOUT},
};

START_TEST(a_wait_ends_in_time)
{
    const uint64_t before_ns = uv_hrtime();
    uint64_t after_ns;

    put_event(FAD_V, 3);
    forward.message.has_deadline_us = ends[_i].deadline_us > 0;
    forward.message.deadline_us = ends[_i].deadline_us;
    hold_and_send(2);
    after_ns = uv_hrtime();
    ck_assert_uint_ge(held_wait(0)->until_ns, before_ns + ends[_i].until_ns);
    ck_assert_uint_le(held_wait(0)->until_ns, after_ns + ends[_i].until_ns);
    ck_assert_int_eq(held_wait(0)->late, (int)ends[_i].late);
    scripted.fail[SCRIPTED_EVENT] = held_wait(0)->late;
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, ends[_i].late, "v.cuda_ipc.event");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(a_refused_event_names_its_tensor)
{
    put_event(FAD_O, 3);
    put_event(FAD_LSE, 3);
    scripted.refuse[SCRIPTED_EVENT] = FA_IPC_REFUSED;
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_IPC_REFUSED, "o.cuda_ipc.event");
    scripted.refuse[SCRIPTED_EVENT] = 0;
    scripted.fail[SCRIPTED_EVENT] = FA_IPC_REFUSED;
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_IPC_REFUSED, "o.cuda_ipc.event");
    scripted.fail[SCRIPTED_EVENT] = 0;
    loopback_send(0, 4, &forward);
    loopback_expect(0, 4, FA_OK, NULL);
}
END_TEST

START_TEST(one_that_is_late_ends_the_wait_for_others)
{
    put_event(FAD_Q, 3);
    put_event(FAD_K, 4);
    hold_and_send(2);
    scripted.fail[SCRIPTED_EVENT] = FA_EVENT_TIMEOUT;
    scripted_finish(1);
    scripted.fail[SCRIPTED_EVENT] = 0;
    loopback_expect_nothing(0);
    ck_assert(held_wait(0)->given_up);
    scripted_finish(0);
    loopback_expect(0, 2, FA_EVENT_TIMEOUT, "k.cuda_ipc.event");
}
END_TEST

START_TEST(a_handle_that_is_refused_ends_the_wait)
{
    put_event(FAD_K, 3);
    scripted.hold[SCRIPTED_OPEN] = true;
    hold_and_send(2);
    ck_assert(!held_wait(1)->given_up);
    scripted.fail[SCRIPTED_OPEN] = FA_IPC_REFUSED;
    loopback_finish(SCRIPTED_OPEN);
    ck_assert(held_wait(0)->given_up);
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, FA_IPC_REFUSED, "q.cuda_ipc");
}
END_TEST

START_TEST(a_cancelled_wait_is_given_up)
{
    put_event(FAD_K, 3);
    hold_and_send(2);
    ck_assert(!held_wait(0)->given_up);
    loopback_cancel(0, 3, 2);
    ck_assert(held_wait(0)->given_up);
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, FA_CANCELLED, "");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
}
END_TEST

START_TEST(a_client_that_goes_gives_its_wait_up)
{
    put_event(FAD_K, 3);
    hold_and_send(2);
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    ck_assert(held_wait(0)->given_up);
    loopback_finish(SCRIPTED_EVENT);
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

/* --- Other requests and backends ------------------------------------------------------------- */

START_TEST(an_empty_request_waits_for_nothing)
{
    forward.message.q_len = 0;
    put_event(FAD_K, 3);
    hold_and_send(2);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 0);
}
END_TEST

START_TEST(a_backend_without_ipc_refuses_the_handle)
{
    put_event(FAD_K, 3);
    scripted.base.opens_ipc = false;
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_UNIMPLEMENTED, "q.cuda_ipc");
}
END_TEST

/* The event may say when the client's copy into its shared memory is done. What came with the frame
 * waits for nothing. */
START_TEST(shared_memory_is_read_when_the_event_has_happened)
{
    struct wire_forward f;
    struct wire_reply reply;

    scripted.base.separate = true;
    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 4, 4, 8}, BIT(K));
    f.tensors[FAD_V].inline_bytes = NULL;
    f.tensors[FAD_V].cuda_ipc = &forward.ipc[FAD_V]; /* zeroes */
    put_event(FAD_V, 3);
    scripted.hold[SCRIPTED_EVENT] = true;
    loopback_send_forward(0, &f, 2);
    loopback_turn();
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1); /* the payload */
    memset(f.memory, 0, f.memory_size); /* all scores 0: lse is the keys' number's logarithm */
    loopback_finish(SCRIPTED_EVENT);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 4); /* k, o, lse */
    loopback_receive_reply(0, &reply);
    ck_assert_int_eq((int)reply.message->status, FA_OK);
    for (int row = 0; row < 4; row++) {
        float lse;
        memcpy(&lse, reply.payload + 4 * 8 * 4 + row * 4, sizeof lse);
        ck_assert_double_eq_tol((double)lse, 1.3862944, 1e-6);
    }
    wire_release(&reply);
    wire_forward_free(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("events");
    TCase *tests = tcase_create("scripted");

    tcase_add_checked_fixture(tests, setup, loopback_teardown);
    tcase_add_test(tests, a_request_waits_for_its_event);
    tcase_add_test(tests, an_event_is_awaited_on_its_device);
    tcase_add_test(tests, one_event_of_five_tensors_is_awaited_once);
    tcase_add_loop_test(tests, two_events_are_both_awaited, 0, 2);
    tcase_add_test(tests, events_of_five_tensors_are_five);
    tcase_add_loop_test(tests, a_wait_ends_in_time, 0, sizeof ends / sizeof ends[0]);
    tcase_add_test(tests, a_refused_event_names_its_tensor);
    tcase_add_test(tests, one_that_is_late_ends_the_wait_for_others);
    tcase_add_test(tests, a_handle_that_is_refused_ends_the_wait);
    tcase_add_test(tests, a_cancelled_wait_is_given_up);
    tcase_add_test(tests, a_client_that_goes_gives_its_wait_up);
    tcase_add_test(tests, an_empty_request_waits_for_nothing);
    tcase_add_test(tests, a_backend_without_ipc_refuses_the_handle);
    tcase_add_test(tests, shared_memory_is_read_when_the_event_has_happened);
    suite_add_tcase(suite, tests);
    return suite;
}
