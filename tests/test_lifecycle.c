/* How the daemon ends: the drain, what it answers meanwhile, and what cuts it short. */
#include "tests/helpers/manager.h"
#include "tests/helpers/test.h"
#include "tests/helpers/wire_forward.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void setup_drain(const char *seconds)
{
    wire_setup_with((const char *const[]){"--drain-seconds", seconds, NULL});
}

/* As good as for ever, one second, and not at all. */
static void setup_long(void)
{
    setup_drain("86400");
}

static void setup_second(void)
{
    setup_drain("1");
}

static void setup_none(void)
{
    setup_drain("0");
}

static void signal_daemon(int number)
{
    ck_assert_int_eq(kill(wire_daemon()->pid, number), 0);
}

/* The signal has come when nobody can connect any more. */
static void begin_drain(int number)
{
    const long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;

    signal_daemon(number);
    while (access(wire_daemon()->socket, F_OK) == 0) {
        ck_assert_msg(test_now_ms() < deadline, "the daemon still listens");
        test_sleep_ms(1);
    }
}

/* It has ended with 0, and logged the words. */
static void expect_exit(const char *const words[])
{
    int status = test_wait(wire_daemon()->pid, WIRE_SECONDS);
    char *log = test_daemon_log(wire_daemon());

    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with 0x%x: %s", status,
                  log);
    ck_assert_msg(access(wire_daemon()->socket, F_OK) != 0 && errno == ENOENT,
                  "the socket is left");
    for (; *words; words++)
        ck_assert_msg(strstr(log, *words) != NULL, "no '%s' in: %s", *words, log);
    free(log);
    test_remove_directory(wire_daemon()->directory);
}
#define EXPECT_EXIT(...) expect_exit((const char *const[]){__VA_ARGS__, NULL})

/* Sends requests without end, first_id to last_id; they are in flight on return. */
static void begin_long(int fd, uint64_t first_id, uint64_t last_id)
{
    struct wire_forward f;

    wire_forward_make_long(&f);
    for (uint64_t id = first_id; id <= last_id; id++)
        ck_assert(wire_forward_send(fd, &f, id));
    wire_forward_free(&f);
    wire_ping(fd, 1u << 20);
}

/* A request sent during the drain. */
static void expect_refused(int fd, uint64_t id)
{
    struct wire_frame ping = wire_ping_frame(id);
    struct wire_forward f;

    wire_send_frame(fd, &ping);
    wire_expect(fd, id, FA_SHUTTING_DOWN, "");
    wire_forward_make(&f, WIRE_SMALL, 0); /* with a payload that must be skipped */
    ck_assert(wire_forward_send(fd, &f, id + 1));
    wire_expect(fd, id + 1, FA_SHUTTING_DOWN, "");
    wire_forward_free(&f);
}

/* A ping, and the first part of what follows it; the ping's answer shows that both were read, for
 * they come in one piece. */
static void send_part(int fd, const struct wire_bytes *bytes, size_t part)
{
    struct wire_frame ping = wire_ping_frame(1u << 21);
    struct wire_bytes both = {0};

    wire_append_frame(&both, &ping);
    wire_append(&both, bytes->data, part);
    wire_send(fd, both.data, both.size);
    wire_expect(fd, 1u << 21, FA_OK, "");
    wire_free(&both);
}

/* --- Draining -------------------------------------------------------------------------------- */

START_TEST(idle_clients_get_the_last_word)
{
    int greeted = wire_greet(), silent = wire_connect();
    int waiting[10];

    wire_ping(greeted, 1);
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGSTOP), 0);
    for (int i = 0; i < 10; i++)
        waiting[i] = wire_connect();
    signal_daemon(SIGTERM);
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGCONT), 0);
    wire_expect_last(greeted, 0, FA_SHUTTING_DOWN, "");
    wire_expect_last(silent, 0, FA_SHUTTING_DOWN, "");
    for (int i = 0; i < 10; i++)
        wire_expect_last(waiting[i], 0, FA_SHUTTING_DOWN, "");
    EXPECT_EXIT("stopping: SIGTERM; 0 requests in flight", "stopped");
}
END_TEST

START_TEST(admitted_request_runs_to_its_end)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    struct wire_forward f;
    int fd = wire_greet();
    size_t part;

    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_append(&f, 7, &bytes);
    part = bytes.size - 5; /* of its payload: it has been admitted */
    send_part(fd, &bytes, part);
    begin_drain(SIGTERM);
    wire_send(fd, bytes.data + part, bytes.size - part);
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, 7);
    wire_forward_check(&f, &reply);
    wire_release(&reply);
    wire_expect_last(fd, 0, FA_SHUTTING_DOWN, "");
    wire_forward_free(&f);
    wire_free(&bytes);
    EXPECT_EXIT("stopping: SIGTERM; 1 request in flight", "stopped");
}
END_TEST

START_TEST(frame_that_has_begun_is_answered_at_its_end)
{
    const size_t parts[] = {1, FA_FRAME_HEADER_SIZE - 1, FA_FRAME_HEADER_SIZE};
    struct wire_bytes bytes[3] = {0};
    struct wire_forward f;
    int fds[3];

    wire_forward_make(&f, WIRE_SMALL, 0);
    for (int i = 0; i < 3; i++) {
        fds[i] = wire_greet();
        wire_forward_append(&f, 7, &bytes[i]);
        send_part(fds[i], &bytes[i], parts[i]);
    }
    begin_drain(SIGINT);
    for (int i = 0; i < 3; i++) {
        wire_send(fds[i], bytes[i].data + parts[i], bytes[i].size - parts[i]);
        wire_expect(fds[i], 7, FA_SHUTTING_DOWN, "");
        wire_expect_last(fds[i], 0, FA_SHUTTING_DOWN, "");
        wire_free(&bytes[i]);
    }
    wire_forward_free(&f);
    EXPECT_EXIT("stopping: SIGINT; 0 requests in flight");
}
END_TEST

START_TEST(hello_during_the_drain_keeps_the_order)
{
    struct wire_bytes bytes = {0};
    struct wire_frame ping = wire_ping_frame(9);
    Fad__Hello hello = FAD__HELLO__INIT;
    uint8_t message[16];
    struct wire_frame frame;
    int busy = wire_greet(), fd = wire_connect();

    hello.has_protocol_major = true;
    hello.protocol_major = FA_PROTOCOL_MAJOR;
    frame = wire_make(FA_FRAME_HELLO, 8, message, fad__hello__pack(&hello, message), NULL, 0);
    wire_append_frame(&bytes, &frame);
    wire_append_frame(&bytes, &ping);
    wire_send(fd, bytes.data, 10);
    begin_long(busy, 5, 5);
    wire_ping(busy, 6); /* by now the 10 bytes have been read, in one turn of the loop or another */
    begin_drain(SIGTERM);
    wire_send(fd, bytes.data + 10, bytes.size - 10);
    wire_expect(fd, 8, FA_OK, "");
    wire_expect(fd, 9, FA_SHUTTING_DOWN, "");
    wire_expect_last(fd, 0, FA_SHUTTING_DOWN, "");
    close(busy);
    wire_free(&bytes);
    EXPECT_EXIT("stopping: SIGTERM; 1 request in flight", "the client hung up");
}
END_TEST

/* A client that is gone has nothing in flight: nothing is waited for. */
START_TEST(hanging_up_ends_the_drain)
{
    int fd = wire_greet();

    begin_long(fd, 5, 9);
    begin_drain(SIGTERM);
    expect_refused(fd, 50);
    close(fd);
    EXPECT_EXIT("stopping: SIGTERM; 5 requests in flight", "the client hung up", "stopped");
}
END_TEST

START_TEST(path_is_the_daemons_until_it_has_ended)
{
    const char *argv[] = {test_program("fad"), "--socket", wire_daemon()->socket, NULL};
    struct test_process successor;
    struct test_output output;
    int fd = wire_greet();

    begin_long(fd, 5, 5);
    begin_drain(SIGTERM);
    output = test_run_vector(argv);
    ck_assert_int_eq(output.code, 1);
    ck_assert_msg(strstr(output.err, "another fad") && strstr(output.err, "is stopping"),
                  "it said: %s", output.err);
    test_output_release(&output);
    close(fd);
    ck_assert_int_eq(test_wait(wire_daemon()->pid, WIRE_SECONDS), 0);
    test_begin(&successor, argv);
    fd = manager_connect(wire_daemon()->socket);
    wire_hello(fd);
    wire_serves(fd);
    close(fd);
    kill(successor.pid, SIGTERM);
    output = test_finish(&successor);
    ck_assert_int_eq(output.code, 0);
    test_output_release(&output);
    test_remove_directory(wire_daemon()->directory);
}
END_TEST

/* --- What ends a drain ----------------------------------------------------------------------- */

/* Work of both clients goes unanswered by itself. */
static void expect_abandoned(int first, int second, int count)
{
    bool answered[8] = {false};

    for (int i = 0; i < count; i++) {
        struct wire_reply reply;

        wire_receive(first, &reply);
        ck_assert_uint_eq(reply.frame.type, FA_FRAME_REPLY | FA_FRAME_FORWARD);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__SHUTTING_DOWN);
        ck_assert(reply.frame.id >= 1 && reply.frame.id < 8 && !answered[reply.frame.id]);
        answered[reply.frame.id] = true;
        wire_release(&reply);
    }
    wire_expect_last(first, 0, FA_SHUTTING_DOWN, "");
    wire_expect(second, 7, FA_SHUTTING_DOWN, "");
    wire_expect_last(second, 0, FA_SHUTTING_DOWN, "");
}

START_TEST(time_ends_the_drain)
{
    int first = wire_greet(), second = wire_greet();

    begin_long(first, 1, 3);
    begin_long(second, 7, 7);
    signal_daemon(SIGTERM);
    expect_abandoned(first, second, 3);
    EXPECT_EXIT("stopping: SIGTERM; 4 requests in flight",
                "abandoning 4 requests in flight: the time to drain is over", "stopped");
}
END_TEST

START_TEST(second_signal_ends_the_drain)
{
    static const int signals[][2] = {
        {SIGTERM, SIGTERM}, {SIGTERM, SIGINT}, {SIGINT, SIGTERM}, {SIGINT, SIGINT}};
    int first = wire_greet(), second = wire_greet();
    char words[96];

    begin_long(first, 1, 3);
    begin_long(second, 7, 7);
    begin_drain(signals[_i][0]);
    expect_refused(first, 50);
    expect_refused(first, 50); /* it goes on being served */
    expect_refused(second, 50);
    signal_daemon(signals[_i][1]);
    expect_abandoned(first, second, 3);
    snprintf(words, sizeof words, "abandoning 4 requests in flight: %s",
             signals[_i][1] == SIGTERM ? "SIGTERM" : "SIGINT");
    EXPECT_EXIT(words, "stopped");
}
END_TEST

/* Payload still comes when all is abandoned: its memory is gone, nothing may be read into it. */
START_TEST(request_whose_payload_still_comes_is_abandoned)
{
    struct wire_bytes bytes = {0};
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 16, 16, 64, 64, 64}, 0);
    wire_forward_append(&f, 7, &bytes);
    send_part(fd, &bytes, 1000);
    begin_drain(SIGTERM);
    signal_daemon(SIGTERM);
    wire_expect(fd, 7, FA_SHUTTING_DOWN, "");
    (void)wire_try_send(fd, bytes.data + 1000, bytes.size - 1000);
    wire_expect_last(fd, 0, FA_SHUTTING_DOWN, "");
    wire_forward_free(&f);
    wire_free(&bytes);
    EXPECT_EXIT("abandoning 1 request in flight: SIGTERM");
}
END_TEST

/* Clients of every kind, one of which reads nothing. */
START_TEST(nobody_holds_up_the_end)
{
    int idle = wire_greet(), busy = wire_greet(), half = wire_greet(), unread = wire_greet();
    struct wire_forward f;

    wire_send(half, "FAD1\2", 5);
    wire_forward_make(&f, (struct wire_shape){1, 4096, 1, 1, 1, 256}, 0x0f & ~(1u << FAD_O));
    ck_assert(wire_forward_send(unread, &f, 5)); /* 4 MiB that will wait to be read */
    wire_forward_free(&f);
    while (!wire_has_news(unread))
        test_sleep_ms(1);
    begin_long(busy, 1, 1);
    signal_daemon(_i == 0 ? SIGTERM : SIGINT);
    wire_expect_last(idle, 0, FA_SHUTTING_DOWN, "");
    wire_expect(busy, 1, FA_SHUTTING_DOWN, "");
    wire_expect_last(busy, 0, FA_SHUTTING_DOWN, "");
    wire_expect_last(half, 0, FA_SHUTTING_DOWN, "");
    EXPECT_EXIT("stopped");
    close(unread);
}
END_TEST

START_TEST(clients_that_send_all_the_time_do_not_hold_up_the_end)
{
    int fd = wire_greet(), late;
    struct wire_frame ping = wire_ping_frame(1);
    struct wire_bytes bytes = {0};

    for (int i = 0; i < 1000; i++)
        wire_append_frame(&bytes, &ping);
    late = wire_greet();
    wire_send(fd, bytes.data, bytes.size);
    signal_daemon(SIGTERM);
    while (wire_try_send(fd, bytes.data, bytes.size) && !wire_has_news(late))
        ;
    wire_expect_last(late, 0, FA_SHUTTING_DOWN, "");
    close(fd);
    wire_free(&bytes);
    EXPECT_EXIT("stopped");
}
END_TEST

/* A case whose daemon drains for so long; each test ends it in its own way. */
static TCase *add_case(Suite *suite, const char *name, void (*setup)(void))
{
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, setup, NULL);
    suite_add_tcase(suite, tcase);
    return tcase;
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("lifecycle");
    TCase *tcase = add_case(suite, "long drain", setup_long);

    tcase_add_test(tcase, idle_clients_get_the_last_word);
    tcase_add_test(tcase, admitted_request_runs_to_its_end);
    tcase_add_test(tcase, frame_that_has_begun_is_answered_at_its_end);
    tcase_add_test(tcase, hello_during_the_drain_keeps_the_order);
    tcase_add_test(tcase, hanging_up_ends_the_drain);
    tcase_add_test(tcase, path_is_the_daemons_until_it_has_ended);
    tcase_add_loop_test(tcase, second_signal_ends_the_drain, 0, 4);
    tcase_add_test(tcase, request_whose_payload_still_comes_is_abandoned);
    tcase_add_test(add_case(suite, "second", setup_second), time_ends_the_drain);
    tcase = add_case(suite, "no drain", setup_none);
    tcase_add_loop_test(tcase, nobody_holds_up_the_end, 0, 2);
    tcase_add_test(tcase, clients_that_send_all_the_time_do_not_hold_up_the_end);
    return suite;
}
