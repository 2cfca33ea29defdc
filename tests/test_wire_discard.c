/* Descriptors that no request gets, and whose close takes its time: here sockets that hold, unread,
 * others that linger until their peer takes what was sent. Only the client that sent them waits. */
#include "daemon/connection/discard.h"
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS 24

/* A socket whose last close is that of the descriptor, too, which it takes. */
static int holding(int descriptor)
{
    int pair[2];
    struct wire_bytes byte = {0};

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    wire_append(&byte, "", 1);
    ck_assert(wire_try_send_fds(pair[1], byte.data, 1, 1, &descriptor, 1));
    wire_free(&byte);
    close(pair[1]);
    close(descriptor);
    return pair[0];
}

/* A loopback connection that is full of bytes which nobody reads, and that waits for them to be
 * read when it is closed. The peer's end is returned. */
static int lingering(int listener, int *peer)
{
    static const struct linger linger = {.l_onoff = 1, .l_linger = 4 * WIRE_SECONDS};
    static const char bytes[1 << 16];
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, size), 0);
    *peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(*peer, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
    return fd;
}

static int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, SOCKETS), 0);
    return fd;
}

/* A ping with a descriptor, which it may not have. */
static void send_with(int fd, uint64_t id, int descriptor)
{
    struct wire_frame ping = wire_ping_frame(id);
    struct wire_bytes bytes = {0};

    ping.nfds = 1;
    wire_append_frame(&bytes, &ping);
    ck_assert(wire_try_send_fds(fd, bytes.data, bytes.size, bytes.size, &descriptor, 1));
    wire_free(&bytes);
}

/* Requests from 10 on. */
static void send_lingering(int fd, const struct test_daemon *daemon, int peers[SOCKETS])
{
    int listener = listen_anywhere();

    /* So that the daemon's is the last close of each. */
    ck_assert_int_eq(kill(daemon->pid, SIGSTOP), 0);
    for (int i = 0; i < SOCKETS; i++) {
        int lingers = holding(lingering(listener, &peers[i]));
        send_with(fd, 10 + (uint64_t)i, lingers);
        close(lingers);
    }
    ck_assert_int_eq(kill(daemon->pid, SIGCONT), 0);
    close(listener);
}

START_TEST(descriptors_that_linger_hold_up_who_sent_them)
{
    int peers[SOCKETS], fd = wire_greet(), other = wire_greet(), before = wire_daemon_fds();

    send_lingering(fd, wire_daemon(), peers);
    for (uint64_t i = 0; i < FAD_DISCARDS_MAX; i++)
        wire_expect(fd, 10 + i, FA_INVALID_ARGUMENT, "header.nfds");
    for (uint64_t i = 0; i < 50; i++) /* turns of the loop in which it could take more */
        wire_ping(other, 100 + i);
    wire_serves(other);
    ck_assert_int_le(wire_daemon_fds(), before + 2 * (int)FAD_DISCARDS_MAX);
    for (int i = 0; i < SOCKETS; i++)
        close(peers[i]);
    for (uint64_t i = FAD_DISCARDS_MAX; i < SOCKETS; i++)
        wire_expect(fd, 10 + i, FA_INVALID_ARGUMENT, "header.nfds");
    wire_serves(fd);
    close(fd);
    close(other);
}
END_TEST

START_TEST(descriptors_that_linger_do_not_keep_the_daemon)
{
    int peers[SOCKETS], fd = wire_greet();

    send_lingering(fd, wire_daemon(), peers);
    for (uint64_t i = 0; i < FAD_DISCARDS_MAX; i++)
        wire_expect(fd, 10 + i, FA_INVALID_ARGUMENT, "header.nfds");
    test_daemon_stop(wire_daemon()); /* before the sockets have lingered out */
    for (int i = 0; i < SOCKETS; i++)
        close(peers[i]);
    close(fd);
}
END_TEST

static void setup_not_to_drain(void)
{
    wire_setup_with((const char *const[]){"--drain-seconds", "0", NULL});
}

/* Unread in the daemon's own socket when it closes that, or too many for one message. */
START_TEST(descriptors_that_linger_hold_up_nobody_else)
{
    int listener = listen_anywhere(), peers[SOCKETS], descriptors[SOCKETS];
    int other = wire_greet(), fd = wire_greet();

    ck_assert_int_eq(kill(wire_daemon()->pid, SIGSTOP), 0);
    for (int i = 0; i < SOCKETS; i++)
        descriptors[i] = lingering(listener, &peers[i]);
    ck_assert(wire_try_send_fds(fd, "", 1, 1, descriptors, SOCKETS / 2));
    /* After that nothing more is read. */
    for (int i = SOCKETS / 2; i < SOCKETS; i++)
        send_with(fd, 10 + (uint64_t)i, descriptors[i]);
    for (int i = 0; i < SOCKETS; i++)
        close(descriptors[i]);
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGCONT), 0);
    wire_serves(other); /* within WIRE_SECONDS, but they linger for longer */
    wire_expect_last(fd, 0, FA_PROTOCOL_ERROR, "header.nfds");
    wire_serves(other);
    for (int i = 0; i < SOCKETS; i++)
        close(peers[i]);
    close(other);
    close(listener);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {descriptors_that_linger_hold_up_who_sent_them,
                                  descriptors_that_linger_hold_up_nobody_else};
    Suite *suite = wire_suite("wire_discard", tests, sizeof tests / sizeof tests[0]);
    TCase *stopping = tcase_create("stopping");

    tcase_set_timeout(stopping, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(stopping, setup_not_to_drain, NULL);
    tcase_add_test(stopping, descriptors_that_linger_do_not_keep_the_daemon);
    suite_add_tcase(suite, stopping);
    return suite;
}
