/* fa-cli without a daemon: help, refusals and exit codes. */
#include "proto/fa_version.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Without a daemon ------------------------------------------------------------------------- */

START_TEST(says_its_version)
{
    struct test_output output = CLI("--version");

    ck_assert_str_eq(output.out, "fa-cli " FA_VERSION "\n");
    ck_assert_str_eq(output.err, "");
    cli_expect_output(&output, FA_VERSION);
}
END_TEST

START_TEST(helps)
{
    static const char *const commands[] = {"run", "info", "ping", "load", "stats"};
    struct test_output output = CLI("--help");

    ck_assert_ptr_nonnull(strstr(output.out, "exit codes:"));
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_nonnull(strstr(output.out, commands[i]));
    cli_expect_output(&output, "usage: fa-cli");
    output = CLI("help");
    cli_expect_output(&output, "exit codes:");
    for (int i = 0; i < 3; i++) {
        output = CLI("help", commands[i]);
        cli_expect_output(&output, "--spawn");
        output = CLI(commands[i], "--json", "--help");
        cli_expect_output(&output, "--socket PATH");
    }
    output = CLI("help", "run");
    ck_assert_ptr_nonnull(strstr(output.out, "6e-8 times the largest logit"));
    cli_expect_output(&output, "(default: 1,12,128,64)");
}
END_TEST

/* The words that must be in the line, then the arguments. */
static const char *const refused[][10] = {
    {"such command", "walk"},
    {"such command", "help", "walk"},
    {"such command", "--nothing"},
    {"--nothing", "run", "--nothing"},
    {"--nothing", "run", "--nothing=3"},
    {"-x", "ping", "-x"},
    {"--sh: no such option", "run", "--sh", "1,2,3,8"},
    {"--vers=v0: no such option", "run", "--check", "--vers=v0"},
    {"--jso: no such option", "info", "--jso"},
    {"'extra'", "help", "run", "extra"},
    {"'4'", "ping", "4"},
    {"--json takes no value", "info", "--json=yes"},
    {"--shape needs a value: B,H,S,D", "run", "--shape"},
    {"--shape '1,2,3'", "run", "--shape", "1,2,3"},
    {"--shape '1,2,3,4,5'", "run", "--shape", "1,2,3,4,5"},
    {"--shape '1,2,3,x'", "run", "--shape", "1,2,3,x"},
    {"--shape '1,,3,4'", "run", "--shape", "1,,3,4"},
    {"--shape '1,2,3,-4'", "run", "--shape", "1,2,3,-4"},
    {"--shape ' 1,2,3,4'", "run", "--shape", " 1,2,3,4"},
    {"--shape '1,2,3,2147483648'", "run", "--shape", "1,2,3,2147483648"},
    {"--shape '1,2,3,99999999999999999999'", "run", "--shape", "1,2,3,99999999999999999999"},
    {"--shape: head_dim", "run", "--shape", "1,2,3,257"},
    {"--shape: head_dim", "run", "--shape", "1,2,3,0"},
    {"too large", "run", "--shape", "2000000000,2000000000,2000000000,256"},
    {"--kv-len ''", "run", "--kv-len", ""},
    {"--kv-len '12 '", "run", "--kv-len", "12 "},
    {"--kv-len '+12'", "run", "--kv-len", "+12"},
    {"--kv-heads '1e3'", "run", "--kv-heads", "1e3"},
    {"--kv-heads: 2 does not", "run", "--shape", "1,3,4,8", "--kv-heads", "2"},
    {"--kv-heads: 0 does not", "run", "--shape", "1,3,4,8", "--kv-heads", "0"},
    {"--mask 'causal'", "run", "--mask", "causal"},
    {"--scale 'nan'", "run", "--scale", "nan"},
    {"--scale 'inf'", "run", "--scale", "inf"},
    {"--scale '1e999'", "run", "--scale", "1e999"},
    {"--scale '0x1'", "run", "--scale", "0x1"},
    {"--scale '1.5.'", "run", "--scale", "1.5."},
    {"--scale: 1e+300 is not", "run", "--scale", "1e300"},
    {"--transport 'pigeon'", "run", "--transport", "pigeon"},
    {"--transport 'x=memfd'", "run", "--transport", "x=memfd"},
    {"--transport 'q=memfd,'", "run", "--transport", "q=memfd,"},
    {"--transport 'q='", "run", "--transport", "q="},
    {"--transport '=memfd'", "run", "--transport", "=memfd"},
    {"--seed '-1'", "run", "--seed", "-1"},
    {"--seed '18446744073709551616'", "run", "--seed", "18446744073709551616"},
    {"--repeat '0'", "run", "--repeat", "0"},
    {"--repeat '1000001'", "run", "--repeat", "1000001"},
    {"--count '3x'", "ping", "--count", "3x"},
    {"--timeout '0'", "run", "--timeout", "0"},
    {"--timeout '-1'", "run", "--timeout", "-1"},
    {"--timeout '1e9'", "run", "--timeout", "1e9"},
    {"--socket ''", "ping", "--socket", ""},
    {"--version ''", "run", "--version", ""},
    {"--socket and --spawn", "ping", "--spawn", "--socket", "/tmp/x"},
    {"--k is missing", "run", "--q", "/none.npy"},
    {"--v is missing", "run", "--q", "/none.npy", "--k", "/none.npy"},
    {"--q is missing", "run", "--v", "/none.npy"},
    {"--seed", "run", "--seed", "1", "--q", "/none", "--k", "/none", "--v", "/none"},
    {"--out needs a value", "run", "--out"},
    {"/none/o.npy: cannot be written", "run", "--out", "/none/o.npy"},
    {"/none/l.npy: cannot be written", "run", "--lse", "/none/l.npy"},
    {"--out /proc/self/fd/1: ", "run", "--out", "/proc/self/fd/1"},
    {"--lse /dev/fd/1: ", "run", "--json", "--lse", "/dev/fd/1"},
};

START_TEST(refuses_by_name)
{
    const char *const *words = refused[_i];
    struct test_output output = CLI(words[1], words[2], words[3], words[4], words[5], words[6],
                                    words[7], words[8], words[9]);

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 2, words[0]);
}
END_TEST

START_TEST(refuses_nothing_said)
{
    struct test_output output = test_run(test_program("fa-cli"));

    cli_expect_error(&output, 2, "fa-cli --help");
}
END_TEST

START_TEST(finds_no_daemon)
{
    static const char *const commands[] = {"run", "info", "ping", "load", "stats"};
    char socket[96], longer[200];
    struct test_output output;

    snprintf(socket, sizeof socket, "%s/none.sock", cli_directory);
    for (int i = 0; i < 3; i++) {
        output = CLI(commands[i], "--socket", socket);
        cli_expect_error(&output, 3, socket);
    }
    ck_assert_int_eq(setenv("FAD_SOCKET", socket, 1), 0);
    output = CLI("ping");
    cli_expect_error(&output, 3, socket);

    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    output = CLI("ping", "--socket", longer);
    cli_expect_error(&output, 2, "107");
}
END_TEST

/* Over all memory there is, but not over what can be addressed. */
START_TEST(refuses_more_than_there_is)
{
    struct test_output output = CLI("run", "--shape", "1024,1024,65536,256");

    cli_expect_error(&output, 1, "take a smaller shape");
    output = CLI("run", "--shape", "1024,1024,65536,256", "--transport", "memfd");
    cli_expect_error(&output, 1, "take a smaller shape");
}
END_TEST

START_TEST(says_when_stdout_is_full)
{
    char command[4200];
    struct test_output output;

    snprintf(command, sizeof command, "exec '%s' --help >/dev/full", test_program("fa-cli"));
    output = test_run("/bin/sh", "-c", command);
    cli_expect_error(&output, 1, "standard output");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli");
    TCase *tcase = tcase_create("cli");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, says_its_version);
    tcase_add_test(tcase, helps);
    tcase_add_loop_test(tcase, refuses_by_name, 0, sizeof refused / sizeof refused[0]);
    tcase_add_test(tcase, refuses_nothing_said);
    tcase_add_test(tcase, finds_no_daemon);
    tcase_add_test(tcase, refuses_more_than_there_is);
    tcase_add_test(tcase, says_when_stdout_is_full);
    suite_add_tcase(suite, tcase);
    return suite;
}
