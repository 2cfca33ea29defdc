/* fa-cli run: the files that it writes, and the words in which it names versions and transports. */
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- Files ------------------------------------------------------------------------------------ */

static const char *file(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", cli_directory, name);
    return out;
}

START_TEST(outputs_are_two_files)
{
    char first[128], second[128];
    struct test_output output =
        CLI("run", "--out", file(first, "x.npy"), "--lse", file(second, "./x.npy"));

    cli_expect_error(&output, 2, "are the same file");
    ck_assert_int_eq(symlink("x.npy", file(second, "link")), 0);
    output = CLI("run", "--lse", first, "--out", second);
    cli_expect_error(&output, 2, "are the same file");
    ck_assert_int_eq(unlink(second), 0);
    output =
        CLI("run", "--spawn", "--shape", "1,1,1,8", "--out", "/dev/null", "--lse", "/dev/null");
    cli_expect_output(&output, "latency");
    output = CLI("run", "--spawn", "--shape", "1,1,1,8", "--out", first, "--lse",
                 file(second, "lse.npy"));
    cli_expect_output(&output, "latency");
}
END_TEST

/* A shell's limit, in blocks of 512 or 1024 bytes: o has 16 KiB. */
START_TEST(a_file_over_the_limit_is_a_failure)
{
    char script[4400], out[128];
    struct test_output output;

    snprintf(script, sizeof script,
             "ulimit -f 2; exec '%s' run --spawn --json --shape 1,1,512,8 --out \"$0\"",
             test_program("fa-cli"));
    output = test_run("/bin/sh", "-c", script, file(out, "o.npy"));
    cli_expect_error(&output, 1, "o.npy: could not be written: File too large");
    ck_assert_int_eq(rmdir(cli_directory), 0); /* nothing is left */
    ck_assert_int_eq(mkdir(cli_directory, 0700), 0);
}
END_TEST

/* --- Words ------------------------------------------------------------------------------------ */

START_TEST(names_the_versions)
{
    char longer[200];
    struct test_output output = CLI("run", "--spawn", "--json", "--version", "v99");

    cli_expect_error(&output, 2, "--version 'v99': there is none of that name; there are auto, v0");
    memset(longer, 'v', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    output = CLI("run", "--spawn", "--json", "--version", longer);
    cli_expect_error(&output, 2, "there are auto, v0");
}
END_TEST

/* What does not travel has no way to do so. */
START_TEST(names_what_travels)
{
    struct test_output output =
        CLI("run", "--spawn", "--shape", "1,1,1,8", "--transport", "lse=memfd");

    ck_assert_ptr_nonnull(strstr(output.out, ", sent inline\n"));
    cli_expect_output(&output, ", 1 key in 1 kv head, ");
    output = CLI("run", "--spawn", "--shape", "1,2,3,8", "--transport", "q=memfd,lse=memfd");
    ck_assert_ptr_nonnull(strstr(output.out, ", sent q=memfd,k=inline,v=inline,o=inline\n"));
    cli_expect_output(&output, ", 3 keys in 2 kv heads, ");
    output =
        CLI("run", "--spawn", "--shape", "1,2,3,8", "--transport", "memfd,lse=inline", "--json");
    cli_expect_output(&output, "\"transport\":\"memfd\"");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-outputs");
    TCase *tcase = tcase_create("cli-outputs");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, outputs_are_two_files);
    tcase_add_test(tcase, a_file_over_the_limit_is_a_failure);
    tcase_add_test(tcase, names_the_versions);
    tcase_add_test(tcase, names_what_travels);
    suite_add_tcase(suite, tcase);
    return suite;
}
