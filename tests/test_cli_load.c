/* fa-cli load against the real daemon: its counts, its JSON, its pace, what it refuses. */
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct test_daemon daemon_;

static void setup(void)
{
    cli_setup();
    test_daemon_start(&daemon_, NULL);
}

static void setup_for_two(void)
{
    cli_setup();
    test_daemon_start(&daemon_, (const char *const[]){"--jobs", "3,4,4", NULL});
}

/* The helper looks for a process in our directory: stop this one before. */
static void teardown(void)
{
    test_daemon_stop(&daemon_);
    cli_teardown();
}

#define LOAD(...) CLI("load", "--socket", daemon_.socket, __VA_ARGS__)

/* --- JSON ------------------------------------------------------------------------------------ */

static const char *const keys[] = {"version",
                                   "kernel",
                                   "redirected",
                                   "backend",
                                   "device",
                                   "dtype",
                                   "shape",
                                   "kv_len",
                                   "kv_heads",
                                   "mask",
                                   "scale",
                                   "transport",
                                   "priority",
                                   "deadline_us",
                                   "seed",
                                   "clients",
                                   "inflight",
                                   "rate",
                                   "warmup_s",
                                   "duration_s",
                                   "ended",
                                   "seconds",
                                   "requests",
                                   "failed",
                                   "unanswered",
                                   "warmup_failed",
                                   "by_status",
                                   "gflops",
                                   "requests_per_s",
                                   "latency_us",
                                   "queue_us",
                                   "transfer_us",
                                   "kernel_us",
                                   "total_us",
                                   "client_answered",
                                   "slowest_per_s",
                                   "scheduled",
                                   "unsent",
                                   "fastest_per_s",
                                   "late",
                                   "late_max_us",
                                   "compared",
                                   "different",
                                   "rel_l2",
                                   "answered",
                                   "warmup_by_status",
                                   "examples",
                                   "latency_omits_unsent"};

/* The object, which has every documented field. Asserts the exit code and that nothing else was
 * printed to stdout. */
static cJSON *parse(const struct test_output *output, int code)
{
    cJSON *object = cJSON_Parse(output->out);

    ck_assert_msg(output->code == code, "exit code %d: %s", output->code, output->err);
    ck_assert_msg(object != NULL, "no JSON: %s", output->out);
    ck_assert_str_eq(strchr(output->out, '\n'), "\n");
    for (size_t i = 0; i < COUNT(keys); i++)
        ck_assert_msg(cJSON_HasObjectItem(object, keys[i]), "no %s", keys[i]);
    ck_assert_int_eq(cJSON_GetArraySize(object), (int)COUNT(keys));
    return object;
}

/* Sums what each client did, and asserts that there are so many and that each did something. */
static double sum_of_clients(const cJSON *object, int clients)
{
    const cJSON *array = cJSON_GetObjectItem(object, "client_answered"), *item;
    double sum = 0;

    ck_assert_int_eq(cJSON_GetArraySize(array), clients);
    cJSON_ArrayForEach(item, array)
    {
        ck_assert(item->valuedouble > 0);
        sum += item->valuedouble;
    }
    return sum;
}

static void check_order(const cJSON *object, const char *name)
{
    static const char *const columns[] = {"min", "p50", "p90", "p99", "p999", "max"};
    const cJSON *times = cJSON_GetObjectItem(object, name);

    for (size_t i = 1; i < COUNT(columns); i++)
        ck_assert_msg(cli_number(times, columns[i - 1]) <= cli_number(times, columns[i]),
                      "%s: %s is over %s", name, columns[i - 1], columns[i]);
    ck_assert(cli_number(times, "min") <= cli_number(times, "mean"));
    ck_assert(cli_number(times, "mean") <= cli_number(times, "max"));
}

/* The daemon tells whole microseconds. */
static void check_whole(const cJSON *object, const char *name)
{
    static const char *const columns[] = {"min", "p50", "p90", "p99", "p999", "max"};
    const cJSON *times = cJSON_GetObjectItem(object, name);

    for (size_t i = 0; i < COUNT(columns); i++)
        ck_assert_msg(cli_number(times, columns[i]) == rint(cli_number(times, columns[i])),
                      "%s: %s is %g", name, columns[i], cli_number(times, columns[i]));
}

START_TEST(help_has_every_key)
{
    struct test_output output = CLI("help", "load");
    char *fields = strstr(output.out, "\nfields of --json:\n"), line[40];

    ck_assert_ptr_nonnull(fields);
    for (size_t i = 0; i < COUNT(keys); i++) {
        snprintf(line, sizeof line, "\n  %s ", keys[i]);
        ck_assert_msg(strstr(fields, line) != NULL, "no %s", keys[i]);
    }
    test_output_release(&output);
}
END_TEST

/* --- Counts ---------------------------------------------------------------------------------- */

static const char *const transports[] = {"inline", "memfd", "q=memfd,o=inline", "region",
                                         "q=region,o=memfd"};

START_TEST(counts_add_up)
{
    struct test_output output =
        LOAD("--json", "--clients", "3", "--inflight", "2", "--transport", transports[_i],
             "--shape", "1,2,33,16", "--mask", "causal-top-left", "--warmup", "0.05", "--duration",
             "0.2", "--priority", "high");
    cJSON *object = parse(&output, 0);

    ck_assert_str_eq(output.err, "");
    ck_assert(cli_number(object, "answered") == sum_of_clients(object, 3));
    ck_assert(cli_number(object, "requests") > 0);
    ck_assert(cli_number(object, "failed") == 0);
    ck_assert(cli_number(object, "warmup_failed") == 0);
    ck_assert(cli_number(object, "unanswered") == 0);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(object, "by_status")), 0);
    ck_assert_str_eq(cli_text(object, "ended"), "complete");
    ck_assert_str_eq(cli_text(object, "priority"), "high");
    ck_assert(cli_number(object, "compared") == 3);
    ck_assert(cli_number(object, "different") == 0);
    ck_assert(cli_number(object, "rel_l2") < 1e-6);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "latency_omits_unsent")));
    ck_assert(cli_number(object, "seconds") == 0.2);
    ck_assert(fabs(cli_number(object, "requests_per_s") * cli_number(object, "seconds") /
                       cli_number(object, "answered") -
                   1) < 1e-9);
    ck_assert(cli_number(object, "slowest_per_s") <= cli_number(object, "fastest_per_s"));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(object, "scheduled")));
    check_order(object, "latency_us");
    check_order(object, "total_us");
    check_order(object, "kernel_us");
    check_whole(object, "total_us");
    check_whole(object, "transfer_us");
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

START_TEST(prints_a_table)
{
    static const char *const parts[] = {
        "ran       v",
        "load      2 clients, 1 in flight each; ",
        "shape     B=1 H=2 S=3 D=8, 5 keys",
        "; sent inline, priority normal; 0.1 s after 0 s of warm-up\n",
        " requests/s, ",
        "GFLOP/s\n",
        "p99.9",
        "\n  here ",
        "\n  queue ",
        "\n  transfer ",
        "\n  kernel ",
        "\n  total ",
        "fairness  the slowest client had "};
    struct test_output output = LOAD("--clients", "2", "--shape", "1,2,3,8", "--kv-len", "5",
                                     "--warmup", "0", "--duration", "0.1");

    for (size_t i = 0; i < COUNT(parts); i++)
        ck_assert_msg(strstr(output.out, parts[i]) != NULL, "no '%s' in %s", parts[i], output.out);
    ck_assert_str_eq(output.err, "");
    cli_expect_output(&output, "check     the last results of 2 of 2 clients: the bits of a pass "
                               "alone, whose relative L2 error is ");
}
END_TEST

/* However long they take: so many are due, and each is accounted for. */
START_TEST(a_rate_is_kept)
{
    struct test_output output = LOAD("--json", "--clients", "3", "--rate", "250", "--warmup", "0.1",
                                     "--duration", "0.4", "--shape", "1,1,1,8");
    cJSON *object = parse(&output, output.code);

    ck_assert(cli_number(object, "scheduled") == 100);
    ck_assert(cli_number(object, "requests") + cli_number(object, "unsent") == 100);
    ck_assert_int_eq(output.code, cli_number(object, "unsent") > 0);
    ck_assert(cli_number(object, "answered") == sum_of_clients(object, 3));
    ck_assert(cli_number(object, "rate") == 250);
    ck_assert(cli_number(object, "inflight") == 16);
    ck_assert(cli_number(object, "late") <= 100);
    cJSON_Delete(object);
    test_output_release(&output);
    output = LOAD("--rate", "10", "--warmup", "0", "--duration", "0.5", "--shape", "1,1,1,8");
    cli_expect_output(&output, "pace      5 were due; ");
}
END_TEST

/* The daemon allows a connection 3, and half of its uid's 4. These are in flight long enough for
 * all to be there at once. */
START_TEST(too_many_in_flight_are_counted)
{
    struct test_output output = LOAD("--json", "--inflight", "3", "--transport", "memfd", "--shape",
                                     test_on_cuda() ? "1,16,1024,64" : "1,4,256,64", "--version",
                                     "v0", "--warmup", "0", "--duration", "0.1");
    cJSON *object = parse(&output, 1);
    const double refused =
        cli_number(cJSON_GetObjectItem(object, "by_status"), "RESOURCE_EXHAUSTED");
    const char *text = cli_text(cJSON_GetObjectItem(object, "examples"), "RESOURCE_EXHAUSTED");

    ck_assert(refused > 0);
    ck_assert(refused == cli_number(object, "failed"));
    ck_assert(cli_number(object, "requests") - cli_number(object, "failed") >= 2);
    ck_assert_msg(strstr(text, "limit of 2 requests") != NULL, "%s", text);
    cJSON_Delete(object);
    cli_expect_error(&output, 1, " requests failed; see above");
}
END_TEST

START_TEST(spawns_a_daemon)
{
    struct test_output output = CLI("load", "--spawn", "--clients", "2", "--shape", "1,1,1,8",
                                    "--warmup", "0", "--duration", "0.5");

    cli_expect_output(&output, "the last results of 2 of 2 clients: the bits of a pass alone");
}
END_TEST

START_TEST(names_the_versions)
{
    struct test_output output = LOAD("--version", "v99");

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 2, "--version 'v99': there is none of that name; there are auto, v0");
}
END_TEST

/* --- Without a daemon ------------------------------------------------------------------------ */

/* The words that must be in the line, then the arguments. */
static const char *const refused[][8] = {
    {"--clients '0'", "--clients", "0"},
    {"--clients '513'", "--clients", "513"},
    {"--clients 'x'", "--clients", "x"},
    {"--inflight '0'", "--inflight", "0"},
    {"--inflight '1025'", "--inflight", "1025"},
    {"--rate '0'", "--rate", "0"},
    {"--rate '-5'", "--rate", "-5"},
    {"--rate '1000001'", "--rate", "1000001"},
    {"--rate 'nan'", "--rate", "nan"},
    {"--rate: 0.01 a second are none in 2 s", "--rate", "0.01", "--duration", "2"},
    {"--duration '0'", "--duration", "0"},
    {"--duration '1e9'", "--duration", "1e9"},
    {"--warmup '-1'", "--warmup", "-1"},
    {"--warmup ''", "--warmup", ""},
    {"--priority 'urgent'", "--priority", "urgent"},
    {"--deadline-us '-1'", "--deadline-us", "-1"},
    {"--transport 'q=pigeon'", "--transport", "q=pigeon"},
    {"--shape '1,2,3'", "--shape", "1,2,3"},
    {"--kv-heads: 2 does not", "--shape", "1,3,4,8", "--kv-heads", "2"},
    {"--timeout '0'", "--timeout", "0"},
    {"--repeat: no such option", "--repeat", "3"},
    {"--q: no such option", "--q", "q.npy"},
    {"--socket and --spawn", "--spawn", "--socket", "/tmp/x"},
};

START_TEST(refuses_by_name)
{
    const char *const *words = refused[_i];
    struct test_output output =
        CLI("load", words[1], words[2], words[3], words[4], words[5], words[6], words[7]);

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 2, words[0]);
}
END_TEST

START_TEST(refuses_more_than_there_is)
{
    struct test_output output =
        CLI("load", "--clients", "512", "--inflight", "1024", "--shape", "1,8,1024,256");

    cli_expect_error(&output, 1, "take a smaller shape, --clients or --inflight");
}
END_TEST

START_TEST(finds_no_daemon)
{
    char socket[96];
    struct test_output output;

    snprintf(socket, sizeof socket, "%s/none.sock", cli_directory);
    output = CLI("load", "--socket", socket);
    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 3, socket);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-load");
    TCase *served = tcase_create("cli-load"), *alone = tcase_create("cli-load-alone");
    TCase *two = tcase_create("cli-load-two");

    tcase_set_timeout(served, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(served, setup, teardown);
    tcase_add_test(served, help_has_every_key);
    tcase_add_loop_test(served, counts_add_up, 0, (int)COUNT(transports));
    tcase_add_test(served, prints_a_table);
    tcase_add_test(served, a_rate_is_kept);
    tcase_add_test(served, names_the_versions);
    suite_add_tcase(suite, served);
    tcase_set_timeout(two, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(two, setup_for_two, teardown);
    tcase_add_test(two, too_many_in_flight_are_counted);
    suite_add_tcase(suite, two);
    tcase_set_timeout(alone, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(alone, cli_setup, cli_teardown);
    tcase_add_test(alone, spawns_a_daemon);
    tcase_add_loop_test(alone, refuses_by_name, 0, (int)COUNT(refused));
    tcase_add_test(alone, refuses_more_than_there_is);
    tcase_add_test(alone, finds_no_daemon);
    suite_add_tcase(suite, alone);
    return suite;
}
