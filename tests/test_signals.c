/* SIGTERM and SIGINT where the process has a thread that the daemon knows nothing of, and that the
 * system may give them to. */
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static void start(struct test_daemon *daemon)
{
    char path[PATH_MAX + 32];
    const char *build = getenv("FA_BUILD");

    snprintf(path, sizeof path, "%s/tests/early-thread.so", build ? build : "build/release");
    ck_assert_int_eq(setenv("LD_PRELOAD", path, 1), 0);
    test_daemon_start(daemon, NULL);
    unsetenv("LD_PRELOAD");
}

START_TEST(sigterm_ends_it_cleanly)
{
    struct test_daemon daemon;

    start(&daemon);
    test_daemon_stop(&daemon);
}
END_TEST

START_TEST(sigint_ends_it_cleanly)
{
    struct test_daemon daemon;
    int status;
    char *log;

    start(&daemon);
    ck_assert_int_eq(kill(daemon.pid, SIGINT), 0);
    status = test_wait(daemon.pid, TEST_PROGRAM_SECONDS);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    log = test_daemon_log(&daemon);
    ck_assert_ptr_nonnull(strstr(log, "stopping: SIGINT"));
    free(log);
    test_remove_directory(daemon.directory);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("signals");
    TCase *tcase = tcase_create("early thread");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    if (SANITIZED) {
        test_skip("sigterm_ends_it_cleanly", "a sanitizer's library must be the first");
        test_skip("sigint_ends_it_cleanly", "a sanitizer's library must be the first");
    } else {
        tcase_add_test(tcase, sigterm_ends_it_cleanly);
        tcase_add_test(tcase, sigint_ends_it_cleanly);
    }
    suite_add_tcase(suite, tcase);
    return suite;
}
