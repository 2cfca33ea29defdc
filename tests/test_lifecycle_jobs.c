/* A daemon that stops while the device works for its jobs: scripted backend, one thread. */
#include "tests/helpers/loopback.h"
#include "tests/helpers/test.h"

#include <unistd.h>

static void stop_client(int client)
{
    loopback.service.stopping = true;
    fad_connection_flush(loopback.connections[client]);
}

START_TEST(draining_waits_for_the_device)
{
    static const enum scripted_call calls[] = {SCRIPTED_OPEN, SCRIPTED_LAUNCH, SCRIPTED_CLOSE};

    scripted.hold[calls[_i]] = true;
    loopback_hello(0);
    loopback_hello(1);
    loopback_send_ipc(0, 2);
    loopback_turn();
    stop_client(0);
    stop_client(1);
    loopback_expect(1, 0, FA_SHUTTING_DOWN, ""); /* it has nothing in flight */
    loopback_expect_nothing(0);
    loopback_send_inline(0, 3);
    loopback_expect(0, 3, FA_SHUTTING_DOWN, "");
    loopback_expect_nothing(0);
    scripted.hold[calls[_i]] = false;
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    loopback_expect(0, 0, FA_SHUTTING_DOWN, "");
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 2);
}
END_TEST

/* The answer comes when the device is done with the job's memory, and only then. */
START_TEST(abandoned_whatever_it_has_reached)
{
    static const enum scripted_call calls[] = {SCRIPTED_OPEN, SCRIPTED_LAUNCH, SCRIPTED_CLOSE};
    const unsigned launches = calls[_i] == SCRIPTED_OPEN ? 0 : 1;

    scripted.hold[calls[_i]] = true;
    loopback_hello(0);
    loopback_send_ipc(0, 2);
    loopback_turn();
    stop_client(0);
    fad_connection_abandon(loopback.connections[0]);
    loopback_expect_nothing(0);
    ck_assert_int_eq(loopback.freed, 0);
    scripted.hold[calls[_i]] = false;
    scripted_finish(0);
    loopback_expect(0, 2, FA_SHUTTING_DOWN, "");
    loopback_expect(0, 0, FA_SHUTTING_DOWN, "");
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], launches);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

/* More than run at once, so that some have not begun. */
START_TEST(many_are_abandoned)
{
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_hello(0);
    for (uint64_t id = 2; id < 30; id++) {
        loopback_send_inline(0, id);
        loopback_turn();
    }
    stop_client(0);
    ck_assert_uint_lt(scripted.held_count, 28);
    fad_connection_abandon(loopback.connections[0]);
    loopback_send_inline(0, 50); /* not read any more */
    while (scripted.held_count > 0) {
        scripted_finish(0);
        loopback_turn();
    }
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 1);
}
END_TEST

/* One whose client has gone is closed while its jobs are being abandoned. */
START_TEST(client_that_is_gone_is_abandoned)
{
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_hello(0);
    for (uint64_t id = 2; id < 30; id++)
        loopback_send_inline(0, id);
    loopback_turn();
    loopback.service.stopping = true;
    close(loopback.sockets[0]);
    loopback.sockets[0] = -1;
    fad_connection_abandon(loopback.connections[0]); /* before the loop hears of it */
    loopback_turn();
    ck_assert_ptr_null(loopback.connections[0]);
    while (scripted.held_count > 0) {
        scripted_finish(0);
        loopback_turn();
    }
    ck_assert_int_eq(loopback.freed, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("lifecycle_jobs");
    TCase *tcase = tcase_create("lifecycle_jobs");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, loopback_setup, loopback_teardown);
    tcase_add_loop_test(tcase, draining_waits_for_the_device, 0, 3);
    tcase_add_loop_test(tcase, abandoned_whatever_it_has_reached, 0, 3);
    tcase_add_test(tcase, many_are_abandoned);
    tcase_add_test(tcase, client_that_is_gone_is_abandoned);
    suite_add_tcase(suite, tcase);
    return suite;
}
