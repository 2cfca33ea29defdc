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
    ck_assert_uint_eq(options.limits[FAD_LEVEL_USER].of[FAD_CONNECTIONS], 128);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_DAEMON].of[FAD_CONNECTIONS], 512);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_CONNECTION].of[FAD_JOBS], 64);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_USER].of[FAD_JOBS], 256);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_DAEMON].of[FAD_JOBS], 1024);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_CONNECTION].of[FAD_MAPPED], (uint64_t)8 << 30);
    ck_assert_uint_eq(options.limits[FAD_LEVEL_DAEMON].of[FAD_STAGED], 0);
    ck_assert_uint_eq(options.payload_max, 512 << 20);
    ck_assert_uint_eq(options.stall_seconds, 30);
    ck_assert_uint_eq(options.drain_seconds, 10);
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

START_TEST(bytes_take_a_suffix)
{
    static const char *const bad[] = {"", "K", "1k", "1KK", "1 K", "4095", "1025G", "K1", "3K"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(PARSE((char *)"--payload-max", (char *)bad[i]), "payload-max",
                       "from 4096 to 1099511627776, K, M or G");
    ck_assert_int_eq(PARSE((char *)"--payload-max", (char *)"4K"), FA_OK);
    ck_assert_uint_eq(options.payload_max, 4096);
    ck_assert_int_eq(PARSE((char *)"--payload-max=1024G"), FA_OK);
    ck_assert_uint_eq(options.payload_max, (uint64_t)1 << 40);
    ck_assert_int_eq(PARSE((char *)"--payload-max=5000"), FA_OK);
    ck_assert_uint_eq(options.payload_max, 5000);
}
END_TEST

static uint64_t limit_of(enum fad_level level, enum fad_resource resource)
{
    return options.limits[level].of[resource];
}

START_TEST(limits_are_lists)
{
    static const char *const bad[] = {"",      "1",      "1,2",    "1,2,3,4", "1,2,3,",
                                      "0,1,1", "1,-1,1", "1K,1,1", "a,b,c",   "1,2 ,3"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_refused(PARSE((char *)"--jobs", (char *)bad[i]), "jobs", "must be CONN,UID,ALL");
    expect_refused(PARSE((char *)"--connections", (char *)"1,2,3"), "connections",
                   "must be UID,ALL: numbers from 1 to 65536");
    ck_assert_int_eq(PARSE((char *)"--jobs=1,2,3", (char *)"--connections", (char *)"4,5",
                           (char *)"--staged=1M,,6G", (char *)"--regions=,,"),
                     FA_OK);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_CONNECTION, FAD_JOBS), 1);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_USER, FAD_JOBS), 2);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_DAEMON, FAD_JOBS), 3);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_USER, FAD_CONNECTIONS), 4);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_DAEMON, FAD_CONNECTIONS), 5);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_CONNECTION, FAD_STAGED), 1 << 20);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_USER, FAD_STAGED), 0);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_DAEMON, FAD_STAGED), (uint64_t)6 << 30);
    ck_assert_uint_eq(limit_of(FAD_LEVEL_USER, FAD_REGIONS), 256);
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
    tcase_add_test(tests, bytes_take_a_suffix);
    tcase_add_test(tests, limits_are_lists);
    tcase_add_test(tests, the_program_says_so);
    suite_add_tcase(suite, tests);
    return suite;
}
