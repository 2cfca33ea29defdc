/* The daemon's command line: exact names, strict numbers, and errors that name the option. */
#include "daemon/server/options.h"
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <string.h>

static struct fad_options options;
static struct fa_error error;

#define PARSE(...) parse((char *[]){(char *)"fad", __VA_ARGS__, NULL})

static enum fa_status parse(char *argv[])
{
    int argc = 0;
    while (argv[argc])
        argc++;
    return fad_options_parse(&options, argc, argv, &error);
}

static void expect_refused(enum fa_status status, const char *field, const char *words)
{
    ck_assert_int_eq(status, FA_INVALID_ARGUMENT);
    ck_assert_str_eq(error.field, field);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
}

START_TEST(defaults)
{
    char *argv[] = {(char *)"fad", NULL};
    ck_assert_int_eq(parse(argv), FA_OK);
    ck_assert_ptr_null(options.socket);
    ck_assert_uint_eq(options.workers, 0);
    ck_assert_uint_eq(options.connections, 512);
    ck_assert_uint_eq(options.payload_max, 512 << 20);
    ck_assert_uint_eq(options.stall_seconds, 30);
    ck_assert(!options.quiet && !options.help && !options.version);
}
END_TEST

START_TEST(both_forms_of_a_value)
{
    ck_assert_int_eq(PARSE((char *)"--socket", (char *)"/a=b", (char *)"--workers=3"), FA_OK);
    ck_assert_str_eq(options.socket, "/a=b");
    ck_assert_uint_eq(options.workers, 3);
    ck_assert_int_eq(PARSE((char *)"--quiet", (char *)"--version", (char *)"--help"), FA_OK);
    ck_assert(options.quiet && options.help && options.version);
}
END_TEST

START_TEST(what_is_no_option_is_refused)
{
    expect_refused(PARSE((char *)"--sock", (char *)"/x"), "", "'--sock'");
    expect_refused(PARSE((char *)"--bogus"), "", "'--bogus'");
    expect_refused(PARSE((char *)"word"), "", "'word'");
    expect_refused(PARSE((char *)"-h"), "", "'-h'");
    expect_refused(PARSE((char *)"--"), "", "'--'");
    expect_refused(PARSE((char *)"--socket"), "socket", "needs a value");
    expect_refused(PARSE((char *)"--quiet=yes"), "quiet", "takes no value");
}
END_TEST

START_TEST(numbers_are_strict)
{
    static const char *const bad[] = {
        "", "-1", "+1", " 1", "1 ", "1k", "0x1", "257", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(PARSE((char *)"--workers", (char *)bad[i]), "workers", "from 0 to 256");
    ck_assert_int_eq(PARSE((char *)"--workers", (char *)"256"), FA_OK);
    ck_assert_uint_eq(options.workers, 256);
}
END_TEST

START_TEST(the_program_says_so)
{
    struct test_output output = test_run(test_program("fad"), "--workers", "many");

    ck_assert_int_eq(output.code, 2);
    ck_assert_str_eq(output.err, "fad: --workers: 'many' must be a number from 0 to 256\n");
    test_output_release(&output);
    output = test_run(test_program("fad"), "--help");
    ck_assert_int_eq(output.code, 0);
    ck_assert_ptr_nonnull(strstr(output.out, "--stall-seconds N"));
    test_output_release(&output);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_test(tests, defaults);
    tcase_add_test(tests, both_forms_of_a_value);
    tcase_add_test(tests, what_is_no_option_is_refused);
    tcase_add_test(tests, numbers_are_strict);
    tcase_add_test(tests, the_program_says_so);
    suite_add_tcase(suite, tests);
    return suite;
}
