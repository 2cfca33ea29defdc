#include "tests/helpers/loss.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS_MAX 8
#define PROGRAM       test_program("tests/fad-faulty"), "--backend", test_backend()

/* --- The daemon ------------------------------------------------------------------------------ */

static int prepare(void)
{
    struct test_daemon *daemon = wire_daemon();
    int log;

    test_make_directory(daemon->directory);
    snprintf(daemon->socket, sizeof daemon->socket, "%s/fad.sock", daemon->directory);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", daemon->directory);
    log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(log, 0);
    return log;
}

static void begin(const char *const argv[], const int *fds, int count, int log)
{
    struct test_process process;

    manager_begin(&process, argv, fds, count, log);
    wire_daemon()->pid = process.pid;
    close(process.out);
    close(log);
}

void loss_begin(const char *const extra[])
{
    const char *argv[5 + ARGUMENTS_MAX + 1] = {PROGRAM, "--socket", wire_daemon()->socket};
    const int log = prepare();

    for (size_t i = 0; extra && extra[i]; i++) {
        ck_assert_uint_lt(i, ARGUMENTS_MAX);
        argv[5 + i] = extra[i];
    }
    begin(argv, NULL, 0, log);
}

void loss_begin_inherited(void)
{
    const char *argv[] = {PROGRAM, NULL};
    const int log = prepare(), listening = manager_socket(SOCK_STREAM, wire_daemon()->socket);

    begin(argv, &listening, 1, log);
    close(listening);
}

void loss_setup(void)
{
    loss_begin(NULL);
    close(manager_connect(wire_daemon()->socket));
}

void loss_teardown(void)
{
    test_daemon_stop(wire_daemon());
}

void loss_expect_exit(int code)
{
    const int status = test_wait(wire_daemon()->pid, WIRE_SECONDS);
    char *log = test_daemon_log(wire_daemon());

    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == code, "ended with 0x%x: %s", status,
                  log);
    free(log);
    ck_assert_msg(access(wire_daemon()->socket, F_OK) != 0, "the socket is left");
    test_remove_directory(wire_daemon()->directory);
}

/* --- The loss -------------------------------------------------------------------------------- */

void loss_append(struct wire_bytes *bytes, uint64_t id, double scale)
{
    struct wire_forward f;

    wire_forward_make(&f, WIRE_SMALL, 0);
    f.message.has_scale = true;
    f.message.scale = scale;
    wire_forward_append(&f, id, bytes);
    wire_forward_free(&f);
}

void loss_send(int fd, uint64_t id, double scale)
{
    struct wire_bytes bytes = {0};

    loss_append(&bytes, id, scale);
    wire_send_bytes(fd, &bytes);
}

void loss_happens(uint64_t count)
{
    int fd = wire_greet();

    loss_send(fd, 5, FAULTY_SCALE_LOSE);
    wire_expect(fd, 5, FA_DEVICE_LOST, "");
    wire_expect_end(fd);
    loss_await(count);
}

const char *loss_reason(void)
{
    return test_on_cuda() ? "an illegal memory access" : "an illegal access was feigned";
}

bool loss_has_logged(const char *words)
{
    char *log = test_daemon_log(wire_daemon());
    const bool there = strstr(log, words) != NULL;

    free(log);
    return there;
}

void loss_await_log(const char *words)
{
    const long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;

    while (!loss_has_logged(words)) {
        ck_assert_msg(test_now_ms() < deadline, "not logged: %s", words);
        test_sleep_ms(1);
    }
}

void loss_await(uint64_t count)
{
    char words[32];

    snprintf(words, sizeof words, "(loss %" PRIu64 ")", count);
    loss_await_log(words);
}

/* --- The statistics --------------------------------------------------------------------------- */

static uint64_t lost_of(const Fad__Counters *counters)
{
    for (size_t i = 0; i < counters->n_errors; i++)
        if (counters->errors[i]->status == FAD__STATUS__DEVICE_LOST)
            return counters->errors[i]->count;
    return 0;
}

uint64_t loss_counted_lost(int fd)
{
    struct wire_reply reply;
    uint64_t count = 0;

    wire_stats(fd, &reply);
    for (size_t i = 0; i < reply.message->stats->n_versions; i++)
        count += lost_of(reply.message->stats->versions[i]->counters);
    ck_assert_uint_eq(reply.message->stats->n_users, 1);
    ck_assert_uint_eq(lost_of(reply.message->stats->users[0]->counters), count);
    wire_release(&reply);
    return count;
}

uint64_t loss_counted(int fd)
{
    struct wire_reply reply;
    uint64_t count = 0;

    wire_stats(fd, &reply);
    for (size_t i = 0; i < reply.message->stats->n_versions; i++)
        count += reply.message->stats->versions[i]->counters->requests;
    wire_release(&reply);
    return count;
}
