/* Connections and jobs on the scripted backend, on one thread: what a GPU's asynchronous calls can
 * do to them. The numbers are tested elsewhere; here it is who is answered what, and that nothing
 * stays. */
#include "tests/helpers/loopback.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <sys/socket.h>

START_TEST(one_allocation_is_opened_once_for_five_tensors)
{
    loopback_hello(0);
    loopback_send_ipc(0, 2);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_CLOSE], 1);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(two_allocations_are_two_regions)
{
    struct forward forward;

    loopback_hello(0);
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    forward_put_ipc(&forward, FAD_O, 8, 1, 0);
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 2);
}
END_TEST

START_TEST(a_slow_open_holds_up_nobody_else)
{
    scripted.hold[SCRIPTED_OPEN] = true;
    loopback_hello(0);
    loopback_hello(1);
    loopback_send_ipc(0, 2);
    loopback_expect_nothing(0);
    loopback_send_inline(1, 2);
    loopback_expect(1, 2, FA_OK, NULL);
    loopback_send_inline(0, 3); /* nor the same client's next */
    loopback_expect(0, 3, FA_OK, NULL);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(a_refused_handle_names_its_tensor)
{
    loopback_hello(0);
    scripted.refuse[SCRIPTED_OPEN] = FA_IPC_REFUSED;
    loopback_send_ipc(0, 2);
    loopback_expect(0, 2, FA_IPC_REFUSED, "q.cuda_ipc");
    scripted.refuse[SCRIPTED_OPEN] = 0;
    scripted.fail[SCRIPTED_OPEN] = FA_IPC_REFUSED;
    loopback_send_ipc(0, 3);
    loopback_expect(0, 3, FA_IPC_REFUSED, "q.cuda_ipc");
    scripted.fail[SCRIPTED_OPEN] = 0;
    loopback_send_ipc(0, 4);
    loopback_expect(0, 4, FA_OK, NULL);
}
END_TEST

START_TEST(a_region_is_checked_by_its_real_size)
{
    struct forward forward;

    loopback_hello(0);
    scripted.ipc_size = 4 * 4096 + 15; /* lse has 16 bytes there */
    loopback_send_ipc(0, 2);
    loopback_expect(0, 2, FA_INVALID_ARGUMENT, "lse.cuda_ipc.offset");
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    forward.ipc[FAD_K].offset = UINT64_MAX - 3;
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "k.cuda_ipc.offset");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(a_device_is_found_by_its_uuid)
{
    struct forward forward;

    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 2);
    loopback_send(0, 2, &forward);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 1);
    ck_assert_uint_eq(scripted.held[0].range->device, 1);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    forward_put_ipc(&forward, FAD_V, 7, 1, 8192);
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "v.cuda_ipc.device_uuid");
    forward_put_all_ipc(&forward, 9);
    loopback_send(0, 4, &forward);
    loopback_expect(0, 4, FA_NOT_FOUND, "q.cuda_ipc.device_uuid");
}
END_TEST

START_TEST(an_output_may_not_overlap_in_one_allocation)
{
    struct forward forward;

    loopback_hello(0);
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    forward_put_ipc(&forward, FAD_O, 7, 1, 4096 + 124); /* k's last element */
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_INVALID_ARGUMENT, "o");
    forward_put_ipc(&forward, FAD_O, 7, 1, 8192 - 124); /* v's first */
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "o");
    forward_put_ipc(&forward, FAD_O, 7, 1, 4096 + 128);
    loopback_send(0, 4, &forward);
    loopback_expect(0, 4, FA_OK, NULL);
    forward_put_ipc(&forward, FAD_O, 7, 1, 8192 - 128);
    loopback_send(0, 5, &forward);
    loopback_expect(0, 5, FA_OK, NULL);
}
END_TEST

START_TEST(a_failed_launch_is_that_requests_affair)
{
    loopback_hello(0);
    scripted.fail[SCRIPTED_LAUNCH] = FA_INTERNAL;
    loopback_send_inline(0, 2);
    loopback_expect(0, 2, FA_INTERNAL, "");
    scripted.fail[SCRIPTED_LAUNCH] = 0;
    loopback_send_inline(0, 3);
    loopback_expect(0, 3, FA_OK, NULL);
    ck_assert_int_eq(loopback.fatal, 0);
}
END_TEST

START_TEST(a_negative_status_is_the_daemons_affair)
{
    loopback_hello(0);
    scripted.refuse[SCRIPTED_LAUNCH] = -EIO;
    loopback_send_inline(0, 2);
    loopback_expect(0, 2, FA_DEVICE_LOST, "");
    ck_assert_int_eq(loopback.fatal, -EIO);
}
END_TEST

START_TEST(replies_come_in_the_order_of_completion)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    for (uint64_t id = 2; id < 6; id++)
        loopback_send_inline(0, id);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 4);
    for (unsigned left = 4; left > 0; left--) {
        uint64_t last = left + 1;
        scripted_finish(left - 1);
        loopback_expect(0, last, FA_OK, NULL);
    }
}
END_TEST

START_TEST(a_polled_backend_is_polled_while_work_is_under_way)
{
    unsigned polls;

    loopback_hello(0);
    scripted.polled = true;
    loopback_send_inline(0, 2);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_gt(scripted.polls, 0);
    polls = scripted.polls;
    loopback_turn();
    ck_assert_uint_eq(scripted.polls, polls); /* and no longer */
}
END_TEST

START_TEST(a_backend_that_wakes_by_itself_is_not_polled)
{
    unsigned polls;

    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    scripted.poll_no_more = true;
    loopback_send_inline(0, 2);
    loopback_expect_nothing(0);
    polls = scripted.polls;
    loopback_turn();
    ck_assert_uint_eq(scripted.polls, polls);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(a_polled_open_is_seen)
{
    loopback_hello(0);
    scripted.polled = true;
    loopback_send_ipc(0, 2);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(too_little_memory_refuses_the_request_only)
{
    loopback_hello(0);
    scripted.host_memory = 500; /* the payload has 384 bytes, the output 144 */
    loopback_send_inline(0, 2);
    loopback_expect(0, 2, FA_RESOURCE_EXHAUSTED, "");
    ck_assert_uint_eq(scripted.host_used, 0);
    scripted.host_memory = 1000;
    loopback_send_inline(0, 3);
    loopback_expect(0, 3, FA_OK, NULL);
}
END_TEST

START_TEST(an_id_in_flight_closes)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_send_inline(0, 2);
    loopback_turn();
    loopback_send_inline(0, 2);
    loopback_expect(0, 2, FA_PROTOCOL_ERROR, "header.id");
    loopback_turn();
    ck_assert_ptr_null(loopback.connections[0]);
    ck_assert_ptr_nonnull(loopback.connections[1]);
}
END_TEST

/* The client goes at each stage of a job; teardown sees that all is given back. */
START_TEST(a_client_may_go_while_its_region_opens)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_OPEN] = true;
    loopback_send_ipc(0, 2);
    loopback_turn();
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    scripted_finish(0);
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
}
END_TEST

START_TEST(a_client_may_go_while_its_job_runs)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_send_ipc(0, 2);
    loopback_send_inline(0, 3);
    loopback_turn();
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    ck_assert_uint_eq(scripted.open_regions, 1); /* not under a running kernel */
}
END_TEST

START_TEST(a_client_may_go_while_its_region_closes)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_CLOSE] = true;
    loopback_send_ipc(0, 2);
    loopback_turn();
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    scripted_finish(0);
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 1);
}
END_TEST

/* Whoever has a reply may use all of the limits again. */
START_TEST(a_reply_comes_when_its_regions_are_closed)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_CLOSE] = true;
    loopback_send_ipc(0, 2);
    loopback_expect_nothing(0);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
}
END_TEST

START_TEST(a_client_may_go_inside_a_payload)
{
    struct forward forward;
    uint8_t bytes[4096];
    size_t size;

    loopback_hello(0);
    forward_init(&forward, 4);
    for (int i = 0; i < FAD_TENSORS; i++)
        forward_put_inline(&forward, (enum fad_tensor)i);
    size = forward_pack(&forward, 2, bytes, sizeof bytes) - forward.payload + 5;
    ck_assert_int_eq(send(loopback.sockets[0], bytes, size, 0), (ssize_t)size);
    loopback_turn();
    ck_assert_uint_gt(scripted.host_used, 0);
    loopback_hang_up(0);
    ck_assert_uint_eq(scripted.host_used, 0);
    ck_assert_int_eq(loopback.freed, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("connection");
    TCase *tests = tcase_create("scripted");

    tcase_add_checked_fixture(tests, loopback_setup, loopback_teardown);
    tcase_add_test(tests, one_allocation_is_opened_once_for_five_tensors);
    tcase_add_test(tests, two_allocations_are_two_regions);
    tcase_add_test(tests, a_slow_open_holds_up_nobody_else);
    tcase_add_test(tests, a_refused_handle_names_its_tensor);
    tcase_add_test(tests, a_region_is_checked_by_its_real_size);
    tcase_add_test(tests, a_device_is_found_by_its_uuid);
    tcase_add_test(tests, an_output_may_not_overlap_in_one_allocation);
    tcase_add_test(tests, a_failed_launch_is_that_requests_affair);
    tcase_add_test(tests, a_negative_status_is_the_daemons_affair);
    tcase_add_test(tests, replies_come_in_the_order_of_completion);
    tcase_add_test(tests, a_polled_backend_is_polled_while_work_is_under_way);
    tcase_add_test(tests, a_backend_that_wakes_by_itself_is_not_polled);
    tcase_add_test(tests, a_polled_open_is_seen);
    tcase_add_test(tests, too_little_memory_refuses_the_request_only);
    tcase_add_test(tests, an_id_in_flight_closes);
    tcase_add_test(tests, a_client_may_go_while_its_region_opens);
    tcase_add_test(tests, a_client_may_go_while_its_job_runs);
    tcase_add_test(tests, a_client_may_go_while_its_region_closes);
    tcase_add_test(tests, a_reply_comes_when_its_regions_are_closed);
    tcase_add_test(tests, a_client_may_go_inside_a_payload);
    suite_add_tcase(suite, tests);
    return suite;
}
