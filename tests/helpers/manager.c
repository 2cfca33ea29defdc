#include "tests/helpers/manager.h"

#include "tests/helpers/test.h"
#include "tests/helpers/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3
#define FDS_MAX  4

/* The child. This process has no threads, so that it may change the environment. */
static void become(const char *const argv[], const int *fds, int count, int out, int err)
{
    int kept[FDS_MAX];
    char text[24];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    for (int i = 0; i < count; i++) /* out of the way of each other's places */
        kept[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, 100);
    for (int i = 0; i < count; i++)
        if (kept[i] < 0)
            close(FIRST_FD + i);
        else if (dup2(kept[i], FIRST_FD + i) < 0)
            _exit(126);
    close_range((unsigned)(FIRST_FD + count), ~0u, 0);
    if (count > 0) {
        snprintf(text, sizeof text, "%d", (int)getpid());
        setenv("LISTEN_PID", text, 1);
        snprintf(text, sizeof text, "%d", count);
        setenv("LISTEN_FDS", text, 1);
    }
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

void manager_begin(struct test_process *process, const char *const argv[], const int *fds,
                   int count, int err)
{
    int out[2], own[2] = {-1, err};

    ck_assert_int_le(count, FDS_MAX);
    ck_assert_int_eq(pipe2(out, O_CLOEXEC), 0);
    if (err < 0)
        ck_assert_int_eq(pipe2(own, O_CLOEXEC), 0);
    process->pid = fork();
    ck_assert_msg(process->pid >= 0, "fork: %s", strerror(errno));
    if (process->pid == 0)
        become(argv, fds, count, out[1], own[1]);
    close(out[1]);
    if (err < 0)
        close(own[1]);
    process->out = out[0];
    process->err = own[0];
}

static socklen_t make_address(struct sockaddr_un *address, const char *path)
{
    const size_t length = strlen(path);

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    ck_assert_uint_lt(length, sizeof address->sun_path);
    memcpy(address->sun_path, path, length);
    if (path[0] != '@')
        return sizeof *address;
    address->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

int manager_socket(int type, const char *path)
{
    struct sockaddr_un address;
    const socklen_t size = make_address(&address, path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_msg(bind(fd, (struct sockaddr *)&address, size) == 0, "bind %s: %s", path,
                  strerror(errno));
    if (type == SOCK_STREAM)
        ck_assert_int_eq(listen(fd, 16), 0);
    return fd;
}

int manager_connect(const char *path)
{
    const long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;
    struct sockaddr_un address;
    const socklen_t size = make_address(&address, path);

    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (connect(fd, (struct sockaddr *)&address, size) == 0)
            return fd;
        close(fd);
        ck_assert_msg(test_now_ms() < deadline, "no daemon at %s", path);
        test_sleep_ms(2);
    }
}

void manager_hear(int fd, char out[256])
{
    struct pollfd polled = {fd, POLLIN, 0};
    ssize_t size;

    ck_assert_msg(poll(&polled, 1, WIRE_SECONDS * 1000) == 1, "nothing more is told");
    size = recv(fd, out, 255, 0);
    ck_assert_int_ge(size, 0);
    out[size] = '\0';
}

void manager_await(int fd, const char *line, char out[256])
{
    const size_t length = strlen(line);

    for (int heard = 0; heard < 10000; heard++) {
        manager_hear(fd, out);
        for (const char *at = out; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
            if (strncmp(at, line, length) == 0 && (at[length] == '\n' || !at[length]))
                return;
    }
    ck_abort_msg("'%s' is not told", line);
}
