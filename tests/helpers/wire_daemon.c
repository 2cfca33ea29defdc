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

/* The CUDA driver opens devices when it wants to, and keeps them. */
static bool is_the_drivers(DIR *directory, const char *name)
{
    char target[256];
    ssize_t length = readlinkat(dirfd(directory), name, target, sizeof target - 1);

    target[length > 0 ? length : 0] = '\0';
    return strncmp(target, "/dev/nvidia", strlen("/dev/nvidia")) == 0;
}

static DIR *open_fds(void)
{
    char path[64];
    DIR *directory;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)daemon_under_test.pid);
    directory = opendir(path);
    ck_assert_msg(directory != NULL, "the daemon is gone");
    return directory;
}

int wire_daemon_fds(void)
{
    DIR *directory = open_fds();
    const struct dirent *entry;
    int count = 0;

    while ((entry = readdir(directory)))
        count += entry->d_name[0] != '.' && !is_the_drivers(directory, entry->d_name);
    closedir(directory);
    return count;
}

int wire_daemon_fd_limit(int more)
{
    static bool used[4096];
    DIR *directory = open_fds();
    const struct dirent *entry;
    int limit = 0;

    memset(used, 0, sizeof used);
    while ((entry = readdir(directory))) {
        long fd = strtol(entry->d_name, NULL, 10);
        if (entry->d_name[0] != '.' && fd < 4096)
            used[fd] = true;
    }
    closedir(directory);
    for (; more > 0 && limit < 4096; limit++)
        more -= !used[limit];
    return limit;
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
    for (const char *at = text; (at = strstr(at, "/memfd:" WIRE_MEMFD)); at++)
        count++;
    free(text);
    return count;
}

/* Of this connection alone, which is closed. */
static void note_rest(int fd)
{
    wire_ping(fd, 1); /* by now the connection that awaited the daemon is gone */
    fds_at_rest = wire_daemon_fds() - 1;
    close(fd);
}

void wire_setup_with(const char *const extra[])
{
    test_daemon_start(&daemon_under_test, extra);
    note_rest(wire_greet());
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

static void expect_nothing_left(void)
{
    int fd = wire_greet();

    wire_expect_idle(fd);
    close(fd);
    wire_expect_rest();
}

void wire_teardown(void)
{
    expect_nothing_left();
    test_daemon_stop(&daemon_under_test);
}

/* --- A suite --------------------------------------------------------------------------------- */

/* A driver opens descriptors and makes threads with the first of many things. */
static void start(void)
{
    struct wire_forward f;
    int fd;

    test_daemon_start(&daemon_under_test, NULL);
    fd = wire_greet();
    wire_forward_make(&f, WIRE_SMALL, 0x1f);
    wire_forward_run(fd, &f, 2);
    wire_forward_free(&f);
    wire_serves(fd);
    note_rest(fd);
}

static void stop(void)
{
    test_daemon_stop(&daemon_under_test);
}

Suite *wire_suite(const char *name, const TTest *const tests[], size_t count)
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    if (test_on_cuda()) {
        /* A context takes the better part of a second to make: one for all of the case. */
        tcase_add_unchecked_fixture(tcase, start, stop);
        tcase_add_checked_fixture(tcase, NULL, expect_nothing_left);
    } else {
        tcase_add_checked_fixture(tcase, wire_setup, wire_teardown);
    }
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return suite;
}
