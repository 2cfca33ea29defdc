/* What the service manager is told, and how the daemon fares when it tells nobody. */
#include "daemon/server/notify.h"
#include "tests/helpers/manager.h"
#include "tests/helpers/test.h"
#include "tests/helpers/wire_forward.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64], path[96];

static void setup(void)
{
    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/notify", directory);
    unsetenv("WATCHDOG_PID");
    unsetenv("WATCHDOG_USEC");
}

static void teardown(void)
{
    unlink(path);
    test_remove_directory(directory);
}

/* --- By itself ------------------------------------------------------------------------------- */

static void expect_heard(int fd, const char *text)
{
    char heard[256];

    manager_hear(fd, heard);
    ck_assert_str_eq(heard, text);
}

static void expect_silence(int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};
    ck_assert_int_eq(poll(&polled, 1, 0), 0);
}

static void expect_all_is_told(const char *name)
{
    struct fad_notify notify;
    int fd = manager_socket(SOCK_DGRAM, name);

    setenv("NOTIFY_SOCKET", name, 1);
    fad_notify_init(&notify);
    ck_assert_uint_eq(notify.watchdog_ms, 0);
    expect_silence(fd);
    fad_notify_tell(&notify, "READY=1", "a");
    expect_heard(fd, "READY=1\nSTATUS=a\n");
    fad_notify_tell(&notify, "READY=1", "a");
    expect_silence(fd);
    fad_notify_tell(&notify, "READY=1", "b");
    expect_heard(fd, "STATUS=b\n");
    fad_notify_watchdog(&notify);
    expect_heard(fd, "WATCHDOG=1\n");
    fad_notify_tell(&notify, "STOPPING=1", "b");
    expect_heard(fd, "STOPPING=1\nSTATUS=b\n");
    fad_notify_deinit(&notify);
    close(fd);
}

START_TEST(only_what_is_new_is_told)
{
    char name[96];

    expect_all_is_told(path);
    snprintf(name, sizeof name, "@fad-test%s", directory);
    expect_all_is_told(name);
}
END_TEST

START_TEST(what_is_not_heard_is_told_again)
{
    struct fad_notify notify;
    int fd;

    setenv("NOTIFY_SOCKET", path, 1);
    fad_notify_init(&notify);
    fad_notify_tell(&notify, "READY=1", "a"); /* nobody is there */
    fd = manager_socket(SOCK_DGRAM, path);
    fad_notify_tell(&notify, "READY=1", "a");
    expect_heard(fd, "READY=1\nSTATUS=a\n");
    for (int i = 0; i < 10000; i++) /* nobody reads; this must not wait for it */
        fad_notify_watchdog(&notify);
    fad_notify_tell(&notify, "READY=1", "b");
    expect_heard(fd, "WATCHDOG=1\n");
    fad_notify_tell(&notify, "READY=1", "b");
    fad_notify_deinit(&notify);
    close(fd);
}
END_TEST

START_TEST(a_long_status_is_cut)
{
    struct fad_notify notify;
    char status[4096], heard[256];
    int fd = manager_socket(SOCK_DGRAM, path);

    memset(status, 'x', sizeof status - 1);
    status[sizeof status - 1] = '\0';
    setenv("NOTIFY_SOCKET", path, 1);
    fad_notify_init(&notify);
    fad_notify_tell(&notify, "READY=1", status);
    manager_hear(fd, heard);
    ck_assert_int_eq(strncmp(heard, "READY=1\nSTATUS=xxx", 18), 0);
    ck_assert_int_eq(heard[strlen(heard) - 1], '\n');
    fad_notify_tell(&notify, "READY=1", status);
    expect_silence(fd);
    fad_notify_deinit(&notify);
    close(fd);
}
END_TEST

START_TEST(without_a_socket_nothing_is_done)
{
    static char too_long[200] = "/";
    const char *const names[] = {NULL, "", "relative", "vsock:2:1234", too_long};
    struct fad_notify notify;

    memset(too_long + 1, 'x', sizeof too_long - 2);
    setenv("WATCHDOG_USEC", "1000000", 1);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unsetenv("NOTIFY_SOCKET");
        if (names[i])
            setenv("NOTIFY_SOCKET", names[i], 1);
        fad_notify_init(&notify);
        ck_assert_int_eq(notify.fd, -1);
        ck_assert_uint_eq(notify.watchdog_ms, 0);
        fad_notify_tell(&notify, "READY=1", "a");
        fad_notify_watchdog(&notify);
        fad_notify_deinit(&notify);
    }
}
END_TEST

START_TEST(watchdog_is_half_of_what_is_asked)
{
    char own[24];
    const struct {
        const char *pid, *usec;
        uint64_t ms;
    } rows[] = {
        {NULL, NULL, 0},        {NULL, "30000000", 15000},
        {own, "3000000", 1500}, {"1", "3000000", 0},
        {NULL, "1", 1},         {NULL, "0", 0},
        {NULL, "-5", 0},        {NULL, "5x", 0},
        {"x", "5000", 0},       {"", "5000", 0},
        {NULL, "", 0},          {own, NULL, 0},
    };

    snprintf(own, sizeof own, "%d", (int)getpid());
    setenv("NOTIFY_SOCKET", path, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fad_notify notify;

        unsetenv("WATCHDOG_PID");
        unsetenv("WATCHDOG_USEC");
        if (rows[i].pid)
            setenv("WATCHDOG_PID", rows[i].pid, 1);
        if (rows[i].usec)
            setenv("WATCHDOG_USEC", rows[i].usec, 1);
        fad_notify_init(&notify);
        ck_assert_msg(notify.watchdog_ms == rows[i].ms, "row %zu: %ju ms", i,
                      (uintmax_t)notify.watchdog_ms);
        fad_notify_deinit(&notify);
    }
}
END_TEST

/* --- The daemon ------------------------------------------------------------------------------ */

/* What it tells from its start to its end, with the connections and requests in between. */
static void expect_life_is_told(const char *name)
{
    struct test_daemon daemon;
    struct wire_forward f;
    char heard[256];
    int manager = manager_socket(SOCK_DGRAM, name), fd;

    setenv("NOTIFY_SOCKET", name, 1);
    test_daemon_start(&daemon, NULL);
    manager_hear(manager, heard);
    ck_assert_str_eq(heard, "READY=1\nSTATUS=serving: 0 clients, 0 requests in flight\n");
    fd = manager_connect(daemon.socket);
    wire_hello(fd);
    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(fd, &f, 1) && wire_forward_send(fd, &f, 2));
    manager_await(manager, "STATUS=serving: 1 client, 2 requests in flight", heard);
    close(fd);
    manager_await(manager, "STATUS=serving: 0 clients, 0 requests in flight", heard);
    kill(daemon.pid, SIGTERM);
    manager_hear(manager, heard);
    ck_assert_str_eq(heard, "STOPPING=1\nSTATUS=stopping: 0 clients, 0 requests in flight\n");
    ck_assert_int_eq(test_wait(daemon.pid, WIRE_SECONDS), 0);
    expect_silence(manager);
    wire_forward_free(&f);
    test_remove_directory(daemon.directory);
    close(manager);
}

START_TEST(the_daemon_tells_its_life)
{
    char name[96];

    expect_life_is_told(path);
    snprintf(name, sizeof name, "@fad-test%s", directory);
    expect_life_is_told(name);
}
END_TEST

START_TEST(watchdog_is_told_until_the_daemon_hangs)
{
    struct pollfd polled = {.events = POLLIN};
    struct test_daemon daemon;
    char heard[256];
    int status;

    polled.fd = manager_socket(SOCK_DGRAM, path);
    setenv("NOTIFY_SOCKET", path, 1);
    setenv("WATCHDOG_USEC", "20000", 1);
    test_daemon_start(&daemon, NULL);
    for (int i = 0; i < 5; i++)
        manager_await(polled.fd, "WATCHDOG=1", heard);
    ck_assert_int_eq(kill(daemon.pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(daemon.pid, &status, WUNTRACED), daemon.pid);
    ck_assert(WIFSTOPPED(status));
    while (poll(&polled, 1, 0) == 1)
        manager_hear(polled.fd, heard);
    ck_assert_int_eq(poll(&polled, 1, 200), 0); /* ten times as long */
    ck_assert_int_eq(kill(daemon.pid, SIGCONT), 0);
    for (int i = 0; i < 5; i++)
        manager_await(polled.fd, "WATCHDOG=1", heard);
    test_daemon_stop(&daemon);
    close(polled.fd);
}
END_TEST

START_TEST(a_manager_that_is_gone_is_no_fault)
{
    struct test_daemon daemon;
    char *log;
    int fd;

    setenv("NOTIFY_SOCKET", path, 1); /* where nothing is */
    setenv("WATCHDOG_USEC", "2000", 1);
    test_daemon_start(&daemon, NULL);
    fd = manager_connect(daemon.socket);
    wire_hello(fd);
    wire_serves(fd);
    close(fd);
    log = test_daemon_log(&daemon);
    ck_assert_ptr_nonnull(strstr(log, "cannot tell the service manager"));
    free(log);
    test_daemon_stop(&daemon);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("notify");
    TCase *alone = tcase_create("alone"), *whole = tcase_create("daemon");

    tcase_add_checked_fixture(alone, setup, teardown);
    tcase_add_test(alone, only_what_is_new_is_told);
    tcase_add_test(alone, what_is_not_heard_is_told_again);
    tcase_add_test(alone, a_long_status_is_cut);
    tcase_add_test(alone, without_a_socket_nothing_is_done);
    tcase_add_test(alone, watchdog_is_half_of_what_is_asked);
    tcase_add_checked_fixture(whole, setup, teardown);
    tcase_set_timeout(whole, TEST_CASE_SECONDS);
    tcase_add_test(whole, the_daemon_tells_its_life);
    tcase_add_test(whole, watchdog_is_told_until_the_daemon_hangs);
    tcase_add_test(whole, a_manager_that_is_gone_is_no_fault);
    suite_add_tcase(suite, alone);
    suite_add_tcase(suite, whole);
    return suite;
}
