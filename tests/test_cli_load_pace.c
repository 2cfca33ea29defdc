/* fa-cli load: what of a slow or refusing daemon is measured, and what is not. */
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_load.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <string.h>

/* --- With a rate ----------------------------------------------------------------------------- */

/* The first answer takes 100 ms, and only one request may be in flight: those that were due
 * meanwhile, each 10 ms, wait, and their latencies have that in them. */
START_TEST(a_stall_shows)
{
    struct script script = {.fault = STALLS, .first = 1, .stall_ms = 100};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "0.3",
                                        "--rate", "100", "--inflight", "1");
    cJSON *object = cJSON_Parse(output.out);
    const cJSON *latency;

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    ck_assert_int_eq(output.code, cli_number(object, "unsent") > 0);
    latency = cJSON_GetObjectItem(object, "latency_us");
    ck_assert(cli_number(object, "scheduled") == 30);
    ck_assert(cli_number(object, "requests") + cli_number(object, "unsent") == 30);
    /* Sent after 100 ms at the soonest: those due at 10, 20, ... 90 ms. */
    ck_assert(cli_number(object, "late") + cli_number(object, "unsent") >= 9);
    ck_assert(cli_number(latency, "max") >= 100e3);
    if (cli_number(object, "unsent") == 0) {
        ck_assert(cli_number(latency, "mean") * 30 >= 550e3 - 1);
        ck_assert(cli_number(object, "late_max_us") >= 90e3);
    }
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* It takes 20 ms for a request, and one is due each 5: what the warm-up leaves over is dropped, so
 * that the measurement has some of its own. */
START_TEST(a_daemon_slower_than_the_rate_is_measured)
{
    struct script script = {.fault = STALLS, .first = 1, .every = 1, .stall_ms = 20};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0.5", "--duration", "1",
                                        "--rate", "200", "--inflight", "1");
    cJSON *object = cJSON_Parse(output.out);
    double unsent;

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    unsent = cli_number(object, "unsent");
    ck_assert(cli_number(object, "scheduled") == 200);
    ck_assert(cli_number(object, "answered") > 0);
    ck_assert(cli_number(object, "requests") > 0);
    ck_assert(cli_number(object, "requests") + unsent == 200);
    ck_assert(unsent >= 149);
    ck_assert(cli_number(object, "late") >= unsent);
    ck_assert(cli_number(object, "late_max_us") >= 740e3);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(object, "latency_omits_unsent")));
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "the daemon is slower than the rate: ");
}
END_TEST

START_TEST(a_person_sees_what_was_asked)
{
    struct script script = {.fault = STALLS, .first = 1, .every = 1, .stall_ms = 20};
    struct test_output output =
        LOAD_ON(&script, "--warmup", "0", "--duration", "1", "--rate", "200", "--inflight", "1");

    ck_assert_ptr_nonnull(strstr(output.out, " requests/s (asked 200/s), "));
    ck_assert_ptr_nonnull(strstr(output.out, " that were never sent: with them, latencies would"));
    cli_expect_error(&output, 1, " were never sent");
}
END_TEST

/* Due at 0, 0.25 and 0.5 s: the first, which finds all cold, is the warm-up's. */
START_TEST(the_first_request_is_the_warm_ups)
{
    struct script script = {.fault = STALLS, .first = 99};
    struct test_output output =
        LOAD_ON(&script, "--json", "--warmup", "0.1", "--duration", "0.5", "--rate", "4");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    ck_assert(cli_number(object, "scheduled") == 2);
    ck_assert(cli_number(object, "requests") == 2);
    ck_assert_int_eq(script.forwards, 4);
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* --- Without a rate -------------------------------------------------------------------------- */

/* One that was sent in the warm-up is answered in the measurement: it used the daemon in it. One
 * that is sent then is not answered any more. */
START_TEST(replies_count_when_they_come)
{
    struct script script = {.fault = INTERRUPTS_TWICE, .first = 2, .slow = 1, .stall_ms = 400};
    struct test_output output =
        LOAD_ON(&script, "--json", "--warmup", "0.2", "--duration", "86400");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    ck_assert(cli_number(object, "answered") == 1);
    ck_assert(cli_number(object, "requests_per_s") > 0);
    ck_assert(cli_number(object, "requests") == 0);
    ck_assert(cli_number(object, "unanswered") == 1);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(object, "latency_us"), "max")));
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* The answer comes after the measurement: there is a latency, but no rate. */
START_TEST(a_measurement_without_replies_fails)
{
    struct script script = {.fault = STALLS, .first = 1, .stall_ms = 300};
    struct test_output output = LOAD_ON(&script, "--json", "--warmup", "0", "--duration", "0.1");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    ck_assert(cli_number(object, "answered") == 0);
    ck_assert(cli_number(object, "requests") == 1);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(object, "requests_per_s")));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(object, "gflops")));
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "none was answered in the measurement; take a longer --duration");
    script = (struct script){.fault = STALLS, .first = 1, .stall_ms = 300};
    output = LOAD_ON(&script, "--warmup", "0", "--duration", "0.1");
    ck_assert_ptr_nonnull(strstr(output.out, "requests  none was answered in the measurement, "));
    cli_expect_error(&output, 1, "none was answered in the measurement");
}
END_TEST

/* A rest of 1 ms follows each. */
START_TEST(refusals_are_no_flood)
{
    struct script script = {.fault = REFUSES, .first = 1, .every = 1};
    struct test_output output = LOAD_ON(&script, "--warmup", "0", "--duration", "0.2");

    ck_assert_int_gt(script.faults, 0);
    ck_assert_int_le(script.faults, 201);
    ck_assert_ptr_nonnull(strstr(output.out, "requests  none OK in 0.200 s\n"));
    cli_expect_error(&output, 1, " failed; see above");
}
END_TEST

/* The fake daemon says 64. */
START_TEST(more_in_flight_than_the_daemon_takes_is_refused)
{
    struct script script = {.fault = STALLS, .first = 99};
    struct test_output output = LOAD_ON(&script, "--inflight", "65");

    ck_assert_str_eq(output.out, "");
    ck_assert_int_eq(script.forwards, 0);
    cli_expect_error(&output, 2, "--inflight 65: the daemon takes 64 requests in flight of a");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-load-pace");
    TCase *tcase = tcase_create("cli-load-pace");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, a_stall_shows);
    tcase_add_test(tcase, a_daemon_slower_than_the_rate_is_measured);
    tcase_add_test(tcase, a_person_sees_what_was_asked);
    tcase_add_test(tcase, the_first_request_is_the_warm_ups);
    tcase_add_test(tcase, replies_count_when_they_come);
    tcase_add_test(tcase, a_measurement_without_replies_fails);
    tcase_add_test(tcase, refusals_are_no_flood);
    tcase_add_test(tcase, more_in_flight_than_the_daemon_takes_is_refused);
    suite_add_tcase(suite, tcase);
    return suite;
}
