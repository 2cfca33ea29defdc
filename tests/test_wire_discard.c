/* Descriptors that no request gets, and whose close takes its time: here sockets that linger until
 * their peer takes what was sent. Only the client that sent them waits. */
#include "daemon/connection/discard.h"
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS 24

/* A loopback connection that is full of bytes which nobody reads, and that waits for them to be read
 * when it is closed. The peer's end is returned. */
static int lingering(int listener, int *peer)
{
    static const struct linger linger = {.l_onoff = 1, .l_linger = 2 * WIRE_SECONDS};
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

START_TEST(descriptors_that_linger_hold_up_who_sent_them)
{
    int listener = listen_anywhere(), peers[SOCKETS];
    int fd = wire_greet(), other = wire_greet(), before = wire_daemon_fds();

    /* So that the daemon's is the last close of each. */
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGSTOP), 0);
    for (int i = 0; i < SOCKETS; i++) {
        int lingers = lingering(listener, &peers[i]);
        send_with(fd, 10 + (uint64_t)i, lingers);
        close(lingers);
    }
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGCONT), 0);
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
    close(listener);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {descriptors_that_linger_hold_up_who_sent_them};
    return wire_suite("wire_discard", tests, sizeof tests / sizeof tests[0]);
}
