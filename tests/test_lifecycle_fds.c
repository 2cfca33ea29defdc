/* A daemon on a socket that a service manager hands over: LISTEN_FDS, by hand and by
 * systemd-socket-activate; and what systemd-analyze says of the units. */
#include "tests/helpers/manager.h"
#include "tests/helpers/test.h"
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKET_ACTIVATE "/usr/bin/systemd-socket-activate"
#define ANALYZE         "/usr/bin/systemd-analyze"

static char directory[64], path[96];

static void setup(void)
{
    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/fad.sock", directory);
    setenv("FAD_SOCKET", path, 1); /* one that should not start starts at least not elsewhere */
}

static void teardown(void)
{
    unlink(path);
    test_remove_directory(directory);
}

static void expect_serves(void)
{
    int fd = manager_connect(path);

    wire_hello(fd);
    wire_serves(fd);
    close(fd);
}

static void begin_on(struct test_process *process, int fd)
{
    const char *argv[] = {test_program("fad"), NULL};
    manager_begin(process, argv, &fd, 1, -1);
}

/* Ends it; it has logged the words. */
static void expect_stop(struct test_process *process, const char *words)
{
    struct test_output output;

    kill(process->pid, SIGTERM);
    output = test_finish(process);
    ck_assert_msg(output.code == 0, "%d: %s", output.code, output.err);
    ck_assert_msg(strstr(output.err, words) != NULL, "%s", output.err);
    test_output_release(&output);
}

/* Does not start, and says both words. */
static void expect_no_start(struct test_process *process, const char *first, const char *second)
{
    struct test_output output = test_finish(process);

    ck_assert_msg(output.code == 1, "%d: %s", output.code, output.err);
    ck_assert_msg(strstr(output.err, first) && strstr(output.err, second), "%s", output.err);
    test_output_release(&output);
}

/* --- Served ---------------------------------------------------------------------------------- */

/* Whoever connects while no daemon runs is served by the next. */
START_TEST(socket_outlives_its_daemons)
{
    int listening = manager_socket(SOCK_STREAM, path), waiting;
    struct test_process process;

    for (int life = 0; life < 2; life++) {
        waiting = manager_connect(path);
        begin_on(&process, listening);
        wire_hello(waiting);
        wire_serves(waiting);
        expect_serves();
        close(waiting);
        expect_stop(&process, path);
        ck_assert_int_eq(access(path, F_OK), 0);
    }
    close(listening);
}
END_TEST

/* They connect to the socket as ever, which the stopping daemon serves no more. */
START_TEST(clients_that_come_during_the_drain_are_the_successors)
{
    int listening = manager_socket(SOCK_STREAM, path), idle, busy, waiting;
    struct test_process process;
    struct test_output output;
    struct wire_forward f;

    begin_on(&process, listening);
    idle = manager_connect(path);
    wire_hello(idle);
    busy = manager_connect(path);
    wire_hello(busy);
    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(busy, &f, 1));
    wire_ping(busy, 2);
    wire_forward_free(&f);
    kill(process.pid, SIGTERM);
    wire_expect_last(idle, 0, FA_SHUTTING_DOWN, "");
    waiting = manager_connect(path);
    close(busy);
    output = test_finish(&process);
    ck_assert_int_eq(output.code, 0);
    test_output_release(&output);
    begin_on(&process, listening);
    wire_hello(waiting);
    wire_serves(waiting);
    close(waiting);
    expect_stop(&process, "stopped");
    close(listening);
}
END_TEST

/* Of an open descriptor, from /proc: octal. */
static unsigned long flags_of(pid_t pid, int fd)
{
    char name[64], *text, *line;
    unsigned long flags;

    snprintf(name, sizeof name, "/proc/%d/fdinfo/%d", (int)pid, fd);
    text = test_read_file(name, NULL);
    line = strstr(text, "flags:");
    ck_assert_ptr_nonnull(line);
    flags = strtoul(line + 6, NULL, 8);
    free(text);
    return flags;
}

START_TEST(descriptor_does_not_block_and_is_not_passed_on)
{
    int listening = manager_socket(SOCK_STREAM, path);
    struct test_process process;
    unsigned long flags;

    begin_on(&process, listening);
    expect_serves();
    flags = flags_of(process.pid, 3);
    ck_assert(flags & O_CLOEXEC);
    ck_assert(flags & O_NONBLOCK);
    expect_stop(&process, "serving");
    close(listening);
}
END_TEST

START_TEST(second_daemon_on_the_same_socket_is_refused)
{
    int listening = manager_socket(SOCK_STREAM, path);
    struct test_process first, second;

    begin_on(&first, listening);
    expect_serves();
    begin_on(&second, listening);
    expect_no_start(&second, "another fad", path);
    expect_serves();
    expect_stop(&first, "serving");
    close(listening);
}
END_TEST

START_TEST(no_lock_is_no_reason_not_to_serve)
{
    int listening = manager_socket(SOCK_STREAM, path);
    struct test_process process;
    char lock[128];

    snprintf(lock, sizeof lock, "%s.lock", path);
    ck_assert_int_eq(symlink("/nowhere/at/all", lock), 0); /* not followed, by root either */
    begin_on(&process, listening);
    expect_serves();
    expect_stop(&process, "no lock: cannot open");
    ck_assert_int_eq(unlink(lock), 0);
    close(listening);
}
END_TEST

/* Variables that are meant for another process. */
START_TEST(anothers_descriptors_are_not_taken)
{
    const char *argv[] = {test_program("fad"), "--socket", path, NULL};
    struct test_process process;

    setenv("LISTEN_PID", "1", 1);
    setenv("LISTEN_FDS", "1", 1);
    manager_begin(&process, argv, NULL, 0, -1);
    expect_serves();
    expect_stop(&process, "serving");
    ck_assert_int_ne(access(path, F_OK), 0); /* it was bound, and is gone */
}
END_TEST

/* --- Refused --------------------------------------------------------------------------------- */

START_TEST(socket_option_beside_a_socket_handed_over_is_refused)
{
    const char *argv[] = {test_program("fad"), "--socket", path, NULL};
    int listening = manager_socket(SOCK_STREAM, path);
    struct test_process process;

    manager_begin(&process, argv, &listening, 1, -1);
    expect_no_start(&process, "--socket", "LISTEN_FDS");
    close(listening);
}
END_TEST

START_TEST(two_sockets_are_refused)
{
    const char *argv[] = {test_program("fad"), NULL};
    int fds[2] = {manager_socket(SOCK_STREAM, path), -1};
    struct test_process process;

    fds[1] = fds[0];
    manager_begin(&process, argv, fds, 2, -1);
    expect_no_start(&process, "LISTEN_FDS", "2 sockets");
    close(fds[0]);
}
END_TEST

START_TEST(what_is_no_listening_unix_stream_socket_is_refused)
{
    char datagram[128], abstract[96];
    int pair[2], fds[6];
    struct test_process process;

    snprintf(datagram, sizeof datagram, "%s/datagram", directory);
    snprintf(abstract, sizeof abstract, "@fad-test%s", directory);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fds[0] = -1;
    fds[1] = open("/dev/null", O_RDWR | O_CLOEXEC);
    fds[2] = manager_socket(SOCK_DGRAM, datagram);
    fds[3] = pair[0];
    fds[4] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[5] = manager_socket(SOCK_STREAM, abstract);
    ck_assert(fds[1] >= 0 && fds[4] >= 0);
    ck_assert_int_eq(listen(fds[4], 1), 0); /* on any port */
    for (int i = 0; i < 6; i++) {
        begin_on(&process, fds[i]);
        expect_no_start(&process,
                        "LISTEN_FDS: ", i == 5 ? "no path" : "no listening Unix stream socket");
        close(fds[i]);
    }
    close(pair[1]);
    unlink(datagram);
}
END_TEST

START_TEST(variables_that_are_no_numbers_are_refused)
{
    static const char *const values[][2] = {{"x", "1"}, {"", "1"},   {"1x", "1"}, {"1", "x"},
                                            {"1", ""},  {"1", "1 "}, {"1", "-1"}};
    const char *argv[] = {test_program("fad"), NULL};
    struct test_process process;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("LISTEN_PID", values[i][0], 1);
        setenv("LISTEN_FDS", values[i][1], 1);
        manager_begin(&process, argv, NULL, 0, -1);
        expect_no_start(&process, "LISTEN_PID", "numbers");
    }
}
END_TEST

/* --- systemd --------------------------------------------------------------------------------- */

START_TEST(systemd_socket_activate)
{
    const char *argv[] = {SOCKET_ACTIVATE, "-l", path, test_program("fad"), NULL};
    struct test_process process;

    test_begin(&process, argv);
    expect_serves();
    expect_serves();
    expect_stop(&process, path); /* it has become the daemon */
    ck_assert_int_eq(access(path, F_OK), 0);
}
END_TEST

/* The service with the built daemon in its ExecStart, beside the socket, in the directory. */
static void copy_units(char service[128], char socket_unit[128])
{
    char *text = test_read_file("systemd/fad.service", NULL), *line = strstr(text, "\nExecStart=");
    FILE *out;

    ck_assert_ptr_nonnull(line);
    snprintf(service, 128, "%s/fad.service", directory);
    snprintf(socket_unit, 128, "%s/fad.socket", directory);
    out = fopen(service, "w");
    ck_assert_ptr_nonnull(out);
    fprintf(out, "%.*sExecStart=%s%s", (int)(line + 1 - text), text, test_program("fad"),
            strchr(line + 1, '\n'));
    ck_assert_int_eq(fclose(out), 0);
    free(text);
    text = test_read_file("systemd/fad.socket", NULL);
    out = fopen(socket_unit, "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    ck_assert_int_eq(fclose(out), 0);
    free(text);
}

/* It warns of other units of the machine, too, and exits with 0 after warnings. */
START_TEST(systemd_analyze_finds_nothing)
{
    char service[128], socket_unit[128];
    struct test_output output;

    copy_units(service, socket_unit);
    output = test_run(ANALYZE, "verify", "--man=no", service, socket_unit);
    ck_assert_msg(output.code == 0 && !strstr(output.err, "fad."), "%d: %s%s", output.code,
                  output.out, output.err);
    test_output_release(&output);
    unlink(service);
    unlink(socket_unit);
}
END_TEST

/* --------------------------------------------------------------------------------------------- */

Suite *test_suite(void)
{
    Suite *suite = suite_create("lifecycle_fds");
    TCase *tcase = tcase_create("lifecycle_fds");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, socket_outlives_its_daemons);
    tcase_add_test(tcase, clients_that_come_during_the_drain_are_the_successors);
    tcase_add_test(tcase, descriptor_does_not_block_and_is_not_passed_on);
    tcase_add_test(tcase, second_daemon_on_the_same_socket_is_refused);
    tcase_add_test(tcase, no_lock_is_no_reason_not_to_serve);
    tcase_add_test(tcase, anothers_descriptors_are_not_taken);
    tcase_add_test(tcase, socket_option_beside_a_socket_handed_over_is_refused);
    tcase_add_test(tcase, two_sockets_are_refused);
    tcase_add_test(tcase, what_is_no_listening_unix_stream_socket_is_refused);
    tcase_add_test(tcase, variables_that_are_no_numbers_are_refused);
    if (access(SOCKET_ACTIVATE, X_OK) == 0)
        tcase_add_test(tcase, systemd_socket_activate);
    else
        test_skip("systemd_socket_activate", "there is no " SOCKET_ACTIVATE);
    if (access(ANALYZE, X_OK) != 0)
        test_skip("systemd_analyze_finds_nothing", "there is no " ANALYZE);
    else if (access("systemd/fad.service", R_OK) != 0)
        test_skip("systemd_analyze_finds_nothing", "not run in the sources' directory");
    else
        tcase_add_test(tcase, systemd_analyze_finds_nothing);
    suite_add_tcase(suite, tcase);
    return suite;
}
