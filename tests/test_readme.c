/* The programs that README.md and proto/README.md print, as printed: they run against a daemon, and
 * the C one fails in one line without one. */
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *example(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tests/%s", test_build_dir(), name);
    return path;
}

#define RAN "v4 ran: o[0] = 1, the mean of the rows of v, since q and k are 0\n"

START_TEST(the_example_runs)
{
    struct test_daemon daemon;
    struct test_output output;

    test_daemon_start(&daemon, NULL);
    setenv("FAD_SOCKET", daemon.socket, 1);
    output = test_run(example("readme_example"));
    ck_assert_str_eq(output.err, "");
    ck_assert_int_eq(output.code, 0);
    ck_assert_str_eq(output.out, RAN);
    test_output_release(&output);
    test_daemon_stop(&daemon);
}
END_TEST

START_TEST(the_python_client_runs)
{
    struct test_daemon daemon;
    struct test_output output;

    test_daemon_start(&daemon, NULL);
    output = test_run("python3", example("proto_example.py"), daemon.socket);
    ck_assert_str_eq(output.err, "");
    ck_assert_int_eq(output.code, 0);
    ck_assert_ptr_nonnull(strstr(output.out, "o is right:"));
    test_output_release(&output);
    test_daemon_stop(&daemon);
}
END_TEST

START_TEST(the_example_says_that_no_daemon_is_there)
{
    struct test_output output;

    setenv("FAD_SOCKET", "/nonexistent/fad.sock", 1);
    output = test_run(example("readme_example"));
    ck_assert_int_eq(output.code, 1);
    ck_assert_str_eq(output.out, "");
    ck_assert(strncmp(output.err, "UNAVAILABLE: ", 13) == 0);
    ck_assert_ptr_eq(strchr(output.err, '\n'), output.err + strlen(output.err) - 1);
    test_output_release(&output);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("readme");
    TCase *tests = tcase_create("example");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_test(tests, the_example_runs);
    tcase_add_test(tests, the_example_says_that_no_daemon_is_there);
    if (system("python3 -c '' 2>/dev/null") == 0)
        tcase_add_test(tests, the_python_client_runs);
    else
        test_skip("the_python_client_runs", "no python3");
    suite_add_tcase(suite, tests);
    return suite;
}
