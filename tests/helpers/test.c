#include "tests/helpers/test.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int skipped;
static const char *argument;

void test_skip(const char *name, const char *reason)
{
    printf("SKIP %s: %s\n", name, reason);
    skipped++;
}

const char *test_build_dir(void)
{
    static char path[PATH_MAX];
    const char *given = getenv("FA_BUILD");
    ssize_t length;

    if (given)
        return given;
    length = readlink("/proc/self/exe", path, sizeof path - 1);
    ck_assert_int_gt(length, 0);
    path[length] = '\0';
    return dirname(dirname(path));
}

const char *test_data_dir(void)
{
    const char *given = getenv("FA_DATA");
    return given && access(given, R_OK) == 0 ? given : NULL;
}

const char *test_argument(void)
{
    return argument;
}

int main(int argc, char **argv)
{
    SRunner *runner;
    const char *results = getenv("FA_TEST_RESULTS");
    int run, failed;

    setvbuf(stdout, NULL, _IOLBF, 0);
    argument = argc > 1 ? argv[1] : NULL;
    runner = srunner_create(test_suite());
    srunner_run_all(runner, CK_ENV);
    run = srunner_ntests_run(runner);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (results) {
        FILE *out = fopen(results, "w");
        if (!out || fprintf(out, "%d %d %d\n", run - failed, failed, skipped) < 0 || fclose(out)) {
            perror(results);
            return EXIT_FAILURE;
        }
    }
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
