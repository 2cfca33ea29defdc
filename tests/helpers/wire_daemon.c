/* wire_daemon.c: the daemon that the raw client talks to, and what it may hold at rest. */
#include "tests/helpers/wire.h"
#include "tests/helpers/wire_region.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- The daemon under test ------------------------------------------------------------------- */

static struct test_daemon daemon_under_test;
static int fds_at_rest;

struct test_daemon *wire_daemon(void)
{
    return &daemon_under_test;
}

int wire_daemon_fds(void)
{
    char path[64];
    int count = 0;
    DIR *directory;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_under_test.pid);
    directory = opendir(path);
    ck_assert_msg(directory != NULL, "the daemon is gone");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count - 2; /* . and .. */
}

long wire_daemon_resident(void)
{
    char path[64], *text, *line;
    long kib;

    snprintf(path, sizeof path, "/proc/%d/status", (int)daemon_under_test.pid);
    text = test_read_file(path, NULL);
    line = strstr(text, "VmRSS:");
    ck_assert_ptr_nonnull(line);
    kib = strtol(line + 6, NULL, 10);
    free(text);
    return kib;
}

int wire_daemon_mappings(void)
{
    char path[64], *text;
    int count = 0;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)daemon_under_test.pid);
    text = test_read_file(path, NULL);
    for (const char *at = text; (at = strstr(at, "/memfd:")); at++)
        count++;
    free(text);
    return count;
}

void wire_setup_with(const char *const extra[])
{
    int fd;

    test_daemon_start(&daemon_under_test, extra);
    fd = wire_greet();
    wire_ping(fd, 1); /* by now the connection that awaited the daemon is gone */
    fds_at_rest = wire_daemon_fds() - 1;
    close(fd);
}

void wire_setup(void)
{
    wire_setup_with(NULL);
}

void wire_expect_rest(void)
{
    long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;

    while (wire_daemon_fds() > fds_at_rest || wire_daemon_mappings() > 0) {
        ck_assert_msg(test_now_ms() < deadline,
                      "the daemon holds %d descriptors, %d at rest, and %d mappings",
                      wire_daemon_fds(), fds_at_rest, wire_daemon_mappings());
        test_sleep_ms(1);
    }
}

void wire_teardown(void)
{
    int fd = wire_greet();

    wire_expect_idle(fd);
    close(fd);
    wire_expect_rest();
    test_daemon_stop(&daemon_under_test);
}

Suite *wire_suite(const char *name, const TTest *const tests[], size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, wire_setup, wire_teardown);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return suite;
}
