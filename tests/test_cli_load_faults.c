/* fa-cli load on a daemon that refuses, stalls, answers wrongly or goes away, and on Ctrl-C. */
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_load.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Asserts that one status has all failures, and its text. */
static void check_status(const cJSON *object, const char *name, double count, const char *words)
{
    const cJSON *by_status = cJSON_GetObjectItem(object, "by_status");
    const char *text = cli_text(cJSON_GetObjectItem(object, "examples"), name);

    ck_assert_int_eq(cJSON_GetArraySize(by_status), 1);
    ck_assert(cli_number(by_status, name) == count);
    ck_assert(cli_number(object, "failed") == count);
    ck_assert_msg(strstr(text, words) != NULL, "%s", text);
}

/* --- Failures -------------------------------------------------------------------------------- */

START_TEST(refusals_are_counted)
{
    struct script script = {.fault = REFUSES, .first = 1, .every = 3};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "0.05");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "%s", output.err);
    check_status(object, "RESOURCE_EXHAUSTED", script.faults, "staged: too much to do");
    ck_assert(cli_number(object, "requests") == script.forwards - 1);
    ck_assert(cli_number(object, "warmup_failed") == 0);
    ck_assert_str_eq(cli_text(object, "ended"), "complete");
    cJSON_Delete(object);
    cli_expect_error(&output, 1, " failed; see above");
}
END_TEST

/* One that all is well with afterwards is a failure too. */
START_TEST(refusals_in_the_warm_up_fail)
{
    struct script script = {.fault = REFUSES, .first = 1};
    struct test_output output = LOAD_ON(&script, "--warmup", "0.05", "--duration", "0.05");

    ck_assert_ptr_nonnull(strstr(output.out, "failed    1 in the warm-up\n"));
    ck_assert_ptr_nonnull(strstr(output.out, "  RESOURCE_EXHAUSTED          1 in the warm-up, such "
                                             "as: staged: too much to do\n"));
    cli_expect_error(&output, 1, "1 request failed; see above");
}
END_TEST

START_TEST(a_refusal_before_the_load_ends_it)
{
    struct script script = {.fault = REFUSES};
    struct test_output output = LOAD_ON(&script, "--json");

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: staged: too much to do");
    ck_assert_int_eq(script.forwards, 1);
}
END_TEST

/* As long as the load would be, it ends with the daemon, and what was measured is printed. */
START_TEST(a_daemon_that_goes_away_ends_the_load)
{
    struct script script = {.fault = _i ? SHUTS_DOWN : CLOSES, .first = 11};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "86400");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "%s", output.err);
    check_status(object, _i ? "SHUTTING_DOWN" : "DISCONNECTED", 1, _i ? "good night" : "");
    ck_assert(cli_number(object, "requests") == 11);
    ck_assert(cli_number(cJSON_GetObjectItem(object, "latency_us"), "min") > 0);
    ck_assert_str_eq(cli_text(object, "ended"), "lost");
    ck_assert(cli_number(object, "seconds") < 86400);
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "the daemon went away, the load ended early: ");
}
END_TEST

START_TEST(a_timeout_ends_the_load)
{
    struct script script = {.fault = IS_SILENT, .first = 4};
    struct test_output output =
        LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "86400", "--timeout", "0.2");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "%s", output.err);
    ck_assert(cli_number(object, "requests") == 3);
    ck_assert(cli_number(object, "unanswered") == 1);
    ck_assert_str_eq(cli_text(object, "ended"), "timeout");
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "in 0.2 s; give a longer --timeout");
}
END_TEST

/* The reply comes, but too late. */
START_TEST(a_late_reply_ends_the_load)
{
    struct script script = {.fault = STALLS, .first = 4, .stall_ms = 560};
    struct test_output output =
        LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "86400", "--timeout", "0.55");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "%s", output.err);
    ck_assert_str_eq(cli_text(object, "ended"), "timeout");
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "in 0.55 s; give a longer --timeout");
}
END_TEST

/* --- Wrong results --------------------------------------------------------------------------- */

/* -0 is as right as 0, but they are not the same bits. The last result of all counts. */
START_TEST(a_result_with_other_bits_fails)
{
    struct script script = {.fault = LIES, .first = 1, .every = 1};
    struct test_output output = LOAD_ON(&script, "--warmup", "0", "--duration", "0.5");

    ck_assert_ptr_nonnull(strstr(output.out, "check     FAIL: of 1 client 1 got a result that "
                                             "differs from a pass alone"));
    cli_expect_error(&output, 4, "1 of 1 client got a result that differs from that of a pass");
    script = (struct script){.fault = LIES, .first = 1};
    output = LOAD_ON(&script, "--warmup", "0.5", "--duration", "0.5");
    cli_expect_output(&output, "1 of 1 client: the bits of a pass alone");
}
END_TEST

/* A mean of one key: o must be v, not 0. */
START_TEST(a_wrong_pass_before_the_load_ends_it)
{
    struct script script = {.fault = REFUSES, .first = 99};
    struct test_output output = LOAD_ON(&script, "--kv-len", "1");

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 4, "a pass alone, before the load, is not what it should be");
}
END_TEST

/* --- Ctrl-C ---------------------------------------------------------------------------------- */

START_TEST(an_interrupt_ends_the_load)
{
    struct script script = {.fault = INTERRUPTS, .first = 5};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "86400");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(output.code == 0 && object, "exit code %d: %s", output.code, output.err);
    ck_assert_str_eq(output.err, "");
    ck_assert(cli_number(object, "requests") == 5);
    ck_assert_int_eq(script.forwards, 6);
    ck_assert(cli_number(object, "unanswered") == 0);
    ck_assert_str_eq(cli_text(object, "ended"), "interrupted");
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

START_TEST(an_interrupt_in_the_warm_up_measures_nothing)
{
    struct script script = {.fault = INTERRUPTS, .first = 5};
    struct test_output output = LOAD_ON(&script, "--warmup", "86400");

    ck_assert_ptr_nonnull(strstr(output.out, "ended     early, by Ctrl-C\n"));
    ck_assert_ptr_null(strstr(output.out, "nan"));
    cli_expect_output(&output, "requests  none: the load ended in its warm-up\n");
    script = (struct script){.fault = INTERRUPTS, .first = 5};
    output = LOAD_ON(&script, "--warmup", "86400", "--json");
    ck_assert_ptr_nonnull(strstr(output.out, "\"gflops\":null"));
    ck_assert_ptr_nonnull(strstr(output.out, "\"latency_us\":{\"min\":null"));
    cli_expect_output(&output, "\"requests_per_s\":null");
}
END_TEST

/* The daemon does not answer any more; the second Ctrl-C ends waiting for it. */
START_TEST(a_second_interrupt_ends_waiting)
{
    struct script script = {.fault = INTERRUPTS_TWICE, .first = 5};
    struct test_output output = LOAD_ON(&script, "--warmup", "0", "--duration", "86400");

    ck_assert_ptr_nonnull(strstr(output.out, "requests  4 OK in "));
    ck_assert_ptr_nonnull(strstr(output.out, "check     none compared with a pass alone"));
    cli_expect_output(&output, "waiting   1 requests were not answered when waiting ended\n");
}
END_TEST

/* As of a shell's background jobs. */
START_TEST(an_ignored_interrupt_stays_ignored)
{
    struct script script = {.fault = INTERRUPTS, .first = 5};
    struct test_output output;

    signal(SIGINT, SIG_IGN);
    output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "0.5");
    signal(SIGINT, SIG_DFL);
    cli_expect_output(&output, "\"ended\":\"complete\"");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-load-faults");
    TCase *tcase = tcase_create("cli-load-faults");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, refusals_are_counted);
    tcase_add_test(tcase, refusals_in_the_warm_up_fail);
    tcase_add_test(tcase, a_refusal_before_the_load_ends_it);
    tcase_add_loop_test(tcase, a_daemon_that_goes_away_ends_the_load, 0, 2);
    tcase_add_test(tcase, a_timeout_ends_the_load);
    tcase_add_test(tcase, a_result_with_other_bits_fails);
    tcase_add_test(tcase, a_wrong_pass_before_the_load_ends_it);
    tcase_add_test(tcase, an_interrupt_ends_the_load);
    tcase_add_test(tcase, an_interrupt_in_the_warm_up_measures_nothing);
    tcase_add_test(tcase, a_second_interrupt_ends_waiting);
    tcase_add_test(tcase, a_late_reply_ends_the_load);
    tcase_add_test(tcase, an_ignored_interrupt_stays_ignored);
    suite_add_tcase(suite, tcase);
    return suite;
}
