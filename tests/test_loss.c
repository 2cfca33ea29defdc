/* A lost device, as its clients see it: each request has one answer, DEVICE_LOST, whatever it had
 * come to; and then they can connect again. */
#include "client/fa.h"
#include "tests/helpers/loss.h"
#include "tests/helpers/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS 8

/* Awaits that so many requests are in flight, the asking connection's own stats not among them. */
static void await_jobs(int fd, uint64_t jobs)
{
    const long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;

    for (uint64_t now = 0; now != jobs;) {
        struct wire_reply reply;

        wire_stats(fd, &reply);
        now = reply.message->stats->daemon->jobs;
        wire_release(&reply);
        ck_assert_msg(test_now_ms() < deadline, "%ju jobs, not %ju", (uintmax_t)now,
                      (uintmax_t)jobs);
    }
}

/* The one answer, and then the end. */
static void expect_lost(int fd, uint64_t id)
{
    struct wire_reply reply;

    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    ck_assert_int_eq(reply.message->status, FAD__STATUS__DEVICE_LOST);
    ck_assert_ptr_nonnull(reply.message->text);
    wire_release(&reply);
    wire_expect_end(fd);
}

static void expect_serves(void)
{
    int fd = wire_greet();

    wire_serves(fd);
    close(fd);
}

static void send_long(int fd, uint64_t id)
{
    struct wire_forward f;

    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(fd, &f, id));
    wire_forward_free(&f);
}

/* --- What is in flight ------------------------------------------------------------------------ */

/* Forwards that run and that wait, a region being opened, and one that is being read; on CUDA,
 * where a loss is real and so are opening and reading, long forwards only. */
static void put_in_flight(int fd, int kind)
{
    struct wire_bytes bytes = {0};
    struct wire_region region;

    switch (kind) {
    case 0:
        wire_append_alloc(&bytes, 7, FAULTY_SIZE_STUCK);
        wire_send_bytes(fd, &bytes);
        break;
    case 1:
        wire_region_alloc(&region, fd, 1 << 16);
        wire_append_read(&bytes, 7, region.id, 0, FAULTY_SIZE_STUCK);
        wire_send_bytes(fd, &bytes);
        wire_region_free(&region);
        break;
    default:
        send_long(fd, 7);
    }
    wire_ping(fd, 8);
}

static void lose_amid(double scale)
{
    int fds[CLIENTS], trigger = wire_greet(), fd;

    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = wire_greet();
        put_in_flight(fds[i], test_on_cuda() ? 2 : i % 4);
    }
    loss_send(trigger, 5, scale);
    expect_lost(trigger, 5);
    for (int i = 0; i < CLIENTS; i++)
        expect_lost(fds[i], 7);
    loss_await(1);
    expect_serves();
    fd = wire_greet();
    ck_assert_uint_eq(loss_counted_lost(fd), (test_on_cuda() ? CLIENTS : CLIENTS / 2) + 1);
    close(fd);
    ck_assert(loss_has_logged("fad: 9 requests answered DEVICE_LOST"));
}

START_TEST(each_request_in_flight_is_answered_once)
{
    lose_amid(FAULTY_SCALE_LOSE);
    ck_assert(loss_has_logged(loss_reason()));
}
END_TEST

/* Nothing that is under way ends, and the backend cannot be ended either. */
START_TEST(backend_that_hangs_is_not_waited_for)
{
    lose_amid(FAULTY_SCALE_HANG);
}
END_TEST

/* The first half of a request with a payload. */
static void send_half(int fd, struct wire_bytes *bytes)
{
    wire_send(fd, bytes->data, bytes->size - 40);
    wire_free(bytes);
}

START_TEST(half_received_payloads)
{
    int forward = wire_greet(), write = wire_greet(), trigger = wire_greet();
    struct wire_bytes bytes = {0};
    struct wire_region region;
    uint8_t data[4096] = {0};

    loss_append(&bytes, 7, 1.0);
    send_half(forward, &bytes);
    wire_region_alloc(&region, write, sizeof data);
    bytes = (struct wire_bytes){0};
    wire_append_write(&bytes, 7, region.id, 0, data, sizeof data);
    send_half(write, &bytes);
    wire_region_free(&region);
    await_jobs(trigger, 2);
    loss_send(trigger, 5, FAULTY_SCALE_LOSE);
    expect_lost(trigger, 5);
    expect_lost(forward, 7);
    expect_lost(write, 7);
    loss_await(1);
}
END_TEST

/* What was sent before the loss is known is in flight to its client, read or not: the daemon finds
 * it all when it runs again. */
START_TEST(requests_not_read_yet)
{
    int fds[CLIENTS], trigger = wire_greet();

    for (int i = 0; i < CLIENTS; i++)
        fds[i] = wire_greet();
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGSTOP), 0);
    loss_send(trigger, 5, FAULTY_SCALE_LOSE);
    for (int i = 0; i < CLIENTS; i++)
        send_long(fds[i], 7);
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGCONT), 0);
    expect_lost(trigger, 5);
    for (int i = 0; i < CLIENTS; i++)
        expect_lost(fds[i], 7);
    loss_await(1);
}
END_TEST

/* Each of a connection's own, in whatever order. On CUDA some may have ended before the fault. */
START_TEST(requests_behind_the_one_that_did_it)
{
    struct wire_bytes bytes = {0};
    uint64_t seen = 0;
    int fd = wire_greet();

    loss_append(&bytes, 5, FAULTY_SCALE_LOSE);
    for (uint64_t id = 6; id < 16; id++)
        loss_append(&bytes, id, 1.0);
    wire_append_alloc(&bytes, 16, 4096);
    wire_send_bytes(fd, &bytes);
    for (int i = 5; i <= 16; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        if (!test_on_cuda() || reply.frame.id == 5 || reply.message->status != FAD__STATUS__OK)
            ck_assert_int_eq(reply.message->status, FAD__STATUS__DEVICE_LOST);
        ck_assert_uint_lt(reply.frame.id, 64);
        seen |= UINT64_C(1) << reply.frame.id;
        wire_release(&reply);
    }
    ck_assert_uint_eq(seen, (UINT64_C(1) << 17) - (UINT64_C(1) << 5));
    wire_expect_end(fd);
    loss_await(1);
}
END_TEST

/* --- Who does not read ------------------------------------------------------------------------ */

/* All that there is, until the daemon has closed. */
static size_t read_to_end(int fd)
{
    static uint8_t chunk[65536];
    size_t all = 0;
    ssize_t size;

    while ((size = recv(fd, chunk, sizeof chunk, 0)) > 0)
        all += (size_t)size;
    close(fd);
    return all;
}

static void setup_patient(void)
{
    loss_begin((const char *const[]){"--stall-seconds", "86400", NULL});
    close(manager_connect(wire_daemon()->socket));
}

/* Its answers do not fit into the socket: the others have theirs, and the daemon comes back. */
START_TEST(client_that_does_not_read_holds_up_nobody)
{
    int deaf = wire_greet(), other = wire_greet(), trigger = wire_greet();
    struct wire_forward f;

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 4096, 1, 64}, 0);
    for (uint64_t id = 1; id <= 4; id++) /* a MiB each way */
        ck_assert(wire_forward_send(deaf, &f, id));
    wire_forward_free(&f);
    await_jobs(other, 4);
    while (loss_counted(other) < 4)
        test_sleep_ms(1);
    send_long(other, 7);
    wire_ping(other, 8);
    loss_send(trigger, 5, FAULTY_SCALE_LOSE);
    expect_lost(trigger, 5);
    expect_lost(other, 7);
    loss_await(1);
    expect_serves();
    ck_assert_uint_lt(read_to_end(deaf), 4u << 20);
}
END_TEST

/* --- libfa ------------------------------------------------------------------------------------ */

static enum fa_status forward(struct fa_client *client, const struct fa_region *q, double scale)
{
    float k[4] = {1, 2, 3, 4}, o[4];
    const struct fa_forward_args args = {.batch = 1,
                                         .heads = 1,
                                         .q_len = 1,
                                         .kv_len = 1,
                                         .head_dim = 4,
                                         .scale = &scale,
                                         .q = {.data = q ? NULL : k, .region = q},
                                         .k = {.data = k},
                                         .v = {.data = k},
                                         .o = {.data = o}};
    return fa_forward(client, &args, NULL);
}

START_TEST(libfa_connects_again)
{
    struct fa_client *client;
    struct fa_region *old, *new;
    enum fa_status status;
    uint64_t number;

    ck_assert_int_eq(fa_client_open(&client, wire_daemon()->socket), FA_OK);
    number = fa_client_info(client)->connection;
    ck_assert_int_eq(fa_region_alloc(client, &old, 64, NULL), FA_OK);
    ck_assert_int_eq(forward(client, old, 1), FA_OK);
    ck_assert_int_eq(forward(client, NULL, FAULTY_SCALE_LOSE), FA_DEVICE_LOST);
    ck_assert(test_on_cuda() || strstr(fa_last_error(client), loss_reason()));
    while ((status = forward(client, NULL, 1)) == FA_DEVICE_LOST)
        ; /* the answer came before the end */
    ck_assert_int_eq(status, FA_DISCONNECTED);
    ck_assert_int_eq(fa_client_reconnect(client), FA_OK);
    ck_assert_uint_gt(fa_client_info(client)->connection, number);
    ck_assert_int_eq(forward(client, old, 1), FA_REGION_LOST);
    ck_assert_int_eq(fa_region_release(client, old), FA_OK);
    ck_assert_int_eq(fa_region_alloc(client, &new, 64, NULL), FA_OK);
    ck_assert_int_eq(forward(client, new, 1), FA_OK);
    ck_assert_int_eq(fa_region_release(client, new), FA_OK);
    fa_client_close(client);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("loss");
    TCase *tests = tcase_create("loss"), *patient = tcase_create("patient");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tests, loss_setup, loss_teardown);
    tcase_add_test(tests, each_request_in_flight_is_answered_once);
    tcase_add_test(tests, backend_that_hangs_is_not_waited_for);
    tcase_add_test(tests, half_received_payloads);
    tcase_add_test(tests, requests_not_read_yet);
    tcase_add_test(tests, requests_behind_the_one_that_did_it);
    tcase_add_test(tests, libfa_connects_again);
    suite_add_tcase(suite, tests);
    tcase_set_timeout(patient, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(patient, setup_patient, loss_teardown);
    tcase_add_test(patient, client_that_does_not_read_holds_up_nobody);
    suite_add_tcase(suite, patient);
    return suite;
}
