/* test_wire_socket.c: whose socket a path is. */
#include "tests/helpers/manager.h"
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct test_output run_daemon(const char *path)
{
    return test_run(test_program("fad"), "--socket", path);
}

/* --- Whose path ------------------------------------------------------------------------------ */

START_TEST(second_daemon_is_refused_naming_the_path)
{
    struct test_output output = run_daemon(wire_daemon()->socket);
    int fd = wire_greet();

    ck_assert_int_eq(output.code, 1);
    ck_assert_msg(strstr(output.err, wire_daemon()->socket) && strstr(output.err, "another fad"),
                  "it said: %s", output.err);
    test_output_release(&output);
    wire_serves(fd); /* the first has lost nothing */
    close(fd);
    wire_teardown();
}
END_TEST

START_TEST(stale_socket_is_replaced)
{
    struct test_daemon *daemon = wire_daemon();
    const char *argv[] = {test_program("fad"), "--socket", daemon->socket, NULL};
    struct test_process process;
    struct test_output output;
    int fd;

    kill(daemon->pid, SIGKILL);
    test_wait(daemon->pid, WIRE_SECONDS);
    ck_assert_int_eq(access(daemon->socket, F_OK), 0); /* left by the dead one */
    test_begin(&process, argv);
    fd = manager_connect(daemon->socket);
    wire_hello(fd);
    wire_serves(fd);
    close(fd);
    kill(process.pid, SIGTERM);
    output = test_finish(&process);
    ck_assert_int_eq(output.code, 0);
    ck_assert_int_ne(access(daemon->socket, F_OK), 0);
    test_output_release(&output);
    test_remove_directory(daemon->directory);
}
END_TEST

START_TEST(log_that_nobody_reads_any_more_does_not_end_it)
{
    char directory[64], path[96];
    const char *argv[] = {test_program("fad"), "--socket", path, NULL};
    struct test_process process;
    int fd;

    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/fad.sock", directory);
    test_begin(&process, argv);
    fd = manager_connect(path);
    close(process.err);
    close(process.out);
    wire_send(fd, "no frame begins like this, and the log says so", 46);
    wire_expect_last(fd, 0, FA_PROTOCOL_ERROR, "header.magic");
    fd = manager_connect(path);
    wire_hello(fd);
    wire_serves(fd);
    close(fd);
    kill(process.pid, SIGTERM);
    ck_assert_int_eq(test_wait(process.pid, WIRE_SECONDS), 0);
    test_remove_directory(directory);
}
END_TEST

START_TEST(socket_is_only_the_owners)
{
    struct stat there;

    ck_assert_int_eq(lstat(wire_daemon()->socket, &there), 0);
    ck_assert(S_ISSOCK(there.st_mode));
    ck_assert_uint_eq(there.st_mode & 07777, 0600);
    wire_teardown();
}
END_TEST

/* A socket that another has put in its place is not the daemon's to remove. */
START_TEST(only_what_it_bound_is_unlinked)
{
    struct test_daemon *daemon = wire_daemon();
    int file;

    ck_assert_int_eq(unlink(daemon->socket), 0);
    file = open(daemon->socket, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_ge(file, 0);
    close(file);
    kill(daemon->pid, SIGTERM);
    ck_assert_int_eq(test_wait(daemon->pid, WIRE_SECONDS), 0);
    ck_assert_int_eq(access(daemon->socket, F_OK), 0);
    test_remove_directory(daemon->directory);
}
END_TEST

START_TEST(path_of_a_file_is_refused_and_the_file_untouched)
{
    char directory[64], path[96], *text;
    struct test_output output;
    int file;

    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/precious", directory);
    file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(file, "keep", 4), 4);
    close(file);
    output = run_daemon(path);
    ck_assert_int_eq(output.code, 1);
    ck_assert_msg(strstr(output.err, path) && strstr(output.err, "no socket"), "it said: %s",
                  output.err);
    text = test_read_file(path, NULL);
    ck_assert_str_eq(text, "keep");
    free(text);
    test_output_release(&output);
    test_remove_directory(directory);
}
END_TEST

START_TEST(path_too_long_or_without_a_directory_is_refused)
{
    char path[200];
    struct test_output output;

    memset(path, 'a', sizeof path);
    memcpy(path, "/tmp/", 5);
    path[sizeof path - 1] = '\0';
    output = run_daemon(path);
    ck_assert_int_eq(output.code, 1);
    ck_assert_ptr_nonnull(strstr(output.err, "107"));
    test_output_release(&output);
    output = run_daemon("/nowhere-at-all/deep/fad.sock");
    ck_assert_int_eq(output.code, 1);
    ck_assert_ptr_nonnull(strstr(output.err, "/nowhere-at-all/deep/fad.sock"));
    test_output_release(&output);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("wire_socket");
    TCase *running = tcase_create("running"), *fresh = tcase_create("fresh");

    tcase_set_timeout(running, TEST_CASE_SECONDS);
    tcase_set_timeout(fresh, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(running, wire_setup,
                              NULL); /* each test ends the daemon its own way */
    tcase_add_test(running, second_daemon_is_refused_naming_the_path);
    tcase_add_test(running, stale_socket_is_replaced);
    tcase_add_test(running, socket_is_only_the_owners);
    tcase_add_test(running, only_what_it_bound_is_unlinked);
    tcase_add_test(fresh, path_of_a_file_is_refused_and_the_file_untouched);
    tcase_add_test(fresh, log_that_nobody_reads_any_more_does_not_end_it);
    tcase_add_test(fresh, path_too_long_or_without_a_directory_is_refused);
    suite_add_tcase(suite, running);
    suite_add_tcase(suite, fresh);
    return suite;
}
