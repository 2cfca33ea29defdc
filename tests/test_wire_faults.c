/* test_wire_faults.c: clients that hang up or die, at any byte and at any time, and too many of
 * them. The others are served, and nothing of the dead stays. */
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- Hanging up ------------------------------------------------------------------------------ */

START_TEST(hang_up_at_every_byte)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, "\x08\x01", 2, NULL, 0);
    int other = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 1, 2, 8}, 0);
    wire_append_frame(&bytes, &hello);
    wire_forward_append(&f, 5, &bytes);
    for (size_t size = 0; size <= bytes.size; size++) {
        int fd = wire_connect();
        wire_send(fd, bytes.data, size);
        close(fd);
    }
    wire_serves(other);
    close(other);
    wire_free(&bytes);
    wire_forward_free(&f);
}
END_TEST

START_TEST(hang_up_at_every_byte_of_a_frame_with_a_descriptor)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    int other = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0x1f);
    wire_forward_append(&f, 5, &bytes);
    for (size_t size = 1; size <= bytes.size; size++) {
        int fd = wire_greet();
        ck_assert(wire_try_send_fds(fd, bytes.data, size, 1, &f.memfd, 1));
        close(fd);
    }
    wire_serves(other);
    close(other);
    wire_free(&bytes);
    wire_forward_free(&f);
}
END_TEST

START_TEST(hang_up_with_work_running_and_waiting)
{
    struct wire_forward f;
    int other = wire_greet();

    wire_forward_make_long(&f);
    for (int round = 0; round < 5; round++) {
        int fd = wire_greet();

        for (uint64_t id = 10; id < 18; id++)
            ck_assert(wire_forward_send(fd, &f, id));
        if (round % 2 == 0)
            wire_ping(fd, 99); /* by now all eight are admitted */
        close(fd);
    }
    wire_serves(other); /* behind the work of the dead, if any of it were left: minutes */
    close(other);
    wire_forward_free(&f);
}
END_TEST

/* The peer's death with replies unread, which the system reports as an error and not as an end. */
START_TEST(hang_up_with_replies_unread)
{
    int other = wire_greet();

    for (uint64_t round = 0; round < 30; round++) {
        int fd = wire_greet();

        for (uint64_t id = 1; id <= 300; id++) {
            struct wire_frame ping = wire_ping_frame(id);
            struct wire_bytes bytes = {0};

            wire_append_frame(&bytes, &ping);
            (void)!send(fd, bytes.data, bytes.size, MSG_DONTWAIT | MSG_NOSIGNAL);
            wire_free(&bytes);
        }
        close(fd);
        wire_ping(other, 1 + round);
    }
    wire_serves(other);
    close(other);
}
END_TEST

/* The end of what a client sends is its hang-up: work under way is dropped, the daemon closes. What
 * was answered before is sent. */
START_TEST(half_close_after_pings_still_brings_their_replies)
{
    for (int round = 0; round < 100; round++) {
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        for (uint64_t id = 1; id <= 10; id++) {
            struct wire_frame ping = wire_ping_frame(id);
            wire_append_frame(&bytes, &ping);
        }
        wire_send(fd, bytes.data, bytes.size);
        ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
        for (uint64_t id = 1; id <= 10; id++)
            wire_expect(fd, id, FA_OK, "");
        wire_expect_end(fd);
        wire_free(&bytes);
    }
}
END_TEST

START_TEST(half_close_is_a_hang_up)
{
    struct wire_forward f;
    int fd = wire_greet();

    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    wire_expect_end(fd);
    fd = wire_greet();
    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(fd, &f, 5));
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    wire_expect_end(fd);
    wire_forward_free(&f);
    fd = wire_greet();
    ck_assert_int_eq(shutdown(fd, SHUT_RD), 0); /* it takes no reply any more */
    (void)!send(fd, "x", 1, MSG_NOSIGNAL);
    close(fd);
}
END_TEST

/* --- Dying ----------------------------------------------------------------------------------- */

/* A client process with eight requests in flight in shared memory; it waits to be killed. */
static void be_a_client(int ready)
{
    struct wire_forward f;
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody */
    fd = wire_greet();
    wire_forward_make(&f, (struct wire_shape){1, 64, 64, 256, 256, 64}, 0x1f);
    for (uint64_t id = 10; id < 18; id++)
        if (!wire_forward_send(fd, &f, id))
            _exit(1);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

START_TEST(client_killed_with_shared_memory_in_use)
{
    int other = wire_greet();
    long before = wire_daemon_resident();

    for (int round = 0; round < 8; round++) {
        int ready[2];
        char byte;
        pid_t pid;

        ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_a_client(ready[1]);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert(WIFSIGNALED(test_wait(pid, WIRE_SECONDS)));
        close(ready[0]);
        close(ready[1]);
        wire_serves(other);
    }
    close(other);
    wire_expect_rest();
    ck_assert_int_lt(wire_daemon_resident(), before + 256 * 1024);
}
END_TEST

/* --- Too many -------------------------------------------------------------------------------- */

static void setup_for_four(void)
{
    wire_setup_with((const char *const[]){"--connections", "4,4", NULL});
}

static void expect_full(void)
{
    int fd = wire_connect();

    wire_expect_last(fd, 0, FA_RESOURCE_EXHAUSTED, "");
}

START_TEST(fifth_of_four_connections_is_refused_until_one_leaves)
{
    int fds[4], fd;

    for (int i = 0; i < 4; i++)
        fds[i] = wire_greet();
    for (int i = 0; i < 10; i++)
        expect_full();
    for (int i = 0; i < 4; i++)
        wire_serves(fds[i]);
    close(fds[2]);
    wire_ping(fds[0], 1); /* the daemon has seen it */
    wire_ping(fds[0], 1);
    fd = wire_greet();
    wire_serves(fd);
    expect_full();
    fds[2] = fd;
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    /* For the fixture's own connection. */
    wire_expect_rest();
}
END_TEST

/* It cannot accept, nor take a client's descriptor; when clients leave it can again. */
START_TEST(daemon_without_descriptors_survives_and_serves_again)
{
    struct rlimit few, many;
    int fds[12], other = wire_greet();
    struct wire_forward f;

    ck_assert_int_eq(prlimit(wire_daemon()->pid, RLIMIT_NOFILE, NULL, &many), 0);
    few = many;
    few.rlim_cur = (rlim_t)wire_daemon_fd_limit(3);
    ck_assert_int_eq(prlimit(wire_daemon()->pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (int i = 0; i < 12; i++) /* three are accepted, nine wait */
        fds[i] = wire_connect();
    wire_hello(fds[0]);
    wire_hello(fds[1]);
    wire_hello(fds[2]);
    wire_serves(other);
    wire_forward_make(&f, WIRE_SMALL, 0x1f);
    wire_forward_send(fds[0], &f, 5);
    wire_expect_last(fds[0], 0, FA_PROTOCOL_ERROR, "header.nfds");
    wire_serves(other);
    for (int i = 3; i < 12; i++) { /* in turn, as those before them leave */
        close(fds[i - 2]);
        wire_hello(fds[i]);
        wire_serves(fds[i]);
    }
    close(fds[10]);
    close(fds[11]);
    wire_serves(other);
    close(other);
    wire_expect_rest();
    other = wire_greet();
    wire_forward_run(other, &f, 6);
    close(other);
    wire_forward_free(&f);
    ck_assert_int_eq(prlimit(wire_daemon()->pid, RLIMIT_NOFILE, &many, NULL), 0);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        hang_up_at_every_byte,
        hang_up_at_every_byte_of_a_frame_with_a_descriptor,
        hang_up_with_work_running_and_waiting,
        hang_up_with_replies_unread,
        half_close_after_pings_still_brings_their_replies,
        half_close_is_a_hang_up,
        client_killed_with_shared_memory_in_use,
        daemon_without_descriptors_survives_and_serves_again,
    };
    Suite *suite = wire_suite("wire_faults", tests, sizeof tests / sizeof tests[0]);
    TCase *limited = tcase_create("connections");

    tcase_set_timeout(limited, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(limited, setup_for_four, wire_teardown);
    tcase_add_test(limited, fifth_of_four_connections_is_refused_until_one_leaves);
    suite_add_tcase(suite, limited);
    return suite;
}
