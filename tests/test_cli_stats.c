/* fa-cli stats: every number in its place, against a scripted daemon. */
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#define COUNT(array)               (sizeof(array) / sizeof(array)[0])
#define PUT(message, field, value) ((message)->has_##field = true, (message)->field = (value))

/* --- A scripted daemon ------------------------------------------------------------------------ */

/* Parts that every list has; numbered so that no two are equal. */
struct parts {
    Fad__Counters counters;
    Fad__StatusCount errors[2], *error_list[2];
    Fad__Latency latency[4];
    Fad__Usage usage;
};

static void parts_init(struct parts *parts, uint64_t base)
{
    fad__counters__init(&parts->counters);
    PUT(&parts->counters, requests, base + 1);
    PUT(&parts->counters, received_bytes, (base + 2) << 20);
    PUT(&parts->counters, sent_bytes, base + 3);
    for (size_t i = 0; i < 2; i++) {
        fad__status_count__init(&parts->errors[i]);
        PUT(&parts->errors[i], status, i == 0 ? FAD__STATUS__CANCELLED : FAD__STATUS__INTERNAL);
        PUT(&parts->errors[i], count, base + 4 + i);
        parts->error_list[i] = &parts->errors[i];
    }
    parts->counters.errors = parts->error_list;
    parts->counters.n_errors = 2;
    for (size_t i = 0; i < 4; i++) {
        Fad__Latency *latency = &parts->latency[i];

        fad__latency__init(latency);
        PUT(latency, count, base + 10 * i);
        PUT(latency, mean_us, (double)(base + 10 * i) + 10.1);
        PUT(latency, p50_us, (double)(base + 10 * i) + 11.2);
        PUT(latency, p90_us, (double)(base + 10 * i) + 12.3);
        PUT(latency, p99_us, (double)(base + 10 * i) + 13.4);
        PUT(latency, p999_us, (double)(base + 10 * i) + 14.5);
        PUT(latency, max_us, (double)(base + 10 * i) + 15.625);
    }
    fad__usage__init(&parts->usage);
    PUT(&parts->usage, connections, base + 51);
    PUT(&parts->usage, connections_limit, base + 52);
    PUT(&parts->usage, jobs, base + 53);
    PUT(&parts->usage, jobs_limit, base + 54);
    PUT(&parts->usage, staged_bytes, base + 55);
    PUT(&parts->usage, staged_limit, (base + 56) << 30);
    PUT(&parts->usage, mapped_bytes, (base + 57) << 10);
    PUT(&parts->usage, mapped_limit, (base + 58) << 40);
    PUT(&parts->usage, regions, base + 59);
}

/* One of everything: a version, a refusal, two clients on pages of their own, a user. */
static void full_script(struct fake_daemon *fake, int fd, int round)
{
    static struct parts daemon, version, clients[2], user;
    struct fake_frame frame;
    (void)fake, (void)round;

    parts_init(&daemon, 100);
    parts_init(&version, 200);
    parts_init(&clients[0], 300);
    parts_init(&clients[1], 400);
    parts_init(&user, 500);
    fake_hello(fd);
    for (unsigned page = 0; page < 2; page++) {
        Fad__Reply reply = FAD__REPLY__INIT;
        Fad__StatsReply stats = FAD__STATS_REPLY__INIT;
        Fad__VersionStats versions[2] = {FAD__VERSION_STATS__INIT, FAD__VERSION_STATS__INIT};
        Fad__VersionStats *version_list[] = {&versions[0], &versions[1]};
        Fad__ClientStats client = FAD__CLIENT_STATS__INIT, *client_list[] = {&client};
        Fad__ClientStats only = FAD__CLIENT_STATS__INIT, *user_list[] = {&only};

        ck_assert(fake_read(fd, &frame));
        ck_assert_int_eq(frame.frame.type, FA_FRAME_STATS);
        PUT(&reply, status, FAD__STATUS__OK);
        reply.stats = &stats;
        PUT(&stats, uptime_us, UINT64_C(93784005678)); /* 1 day 2 h 3 min 4 s */
        PUT(&stats, log_lines_held, 42);
        PUT(&stats, more_clients, page == 0);
        stats.daemon = &daemon.usage;
        if (page == 0) {
            stats.versions = version_list, stats.n_versions = 2;
            stats.users = user_list, stats.n_users = 1;
        }
        stats.clients = client_list, stats.n_clients = 1;
        versions[0].version = FAKE_TEXT("v3");
        PUT(&versions[0], dtype, FAD__DTYPE__BFLOAT16);
        versions[0].counters = &version.counters;
        versions[0].queue = &version.latency[0], versions[0].transfer = &version.latency[1];
        versions[0].kernel = &version.latency[2], versions[0].total = &version.latency[3];
        versions[1].version = FAKE_TEXT("");
        PUT(&client, connection, 7 + page);
        PUT(&client, uid, 1234);
        PUT(&client, pid, 4321);
        client.counters = &clients[page].counters;
        client.total = &clients[page].latency[3];
        client.usage = &clients[page].usage;
        PUT(&only, uid, 1234);
        only.counters = &user.counters, only.total = &user.latency[3], only.usage = &user.usage;
        fake_reply(fd, &frame, &reply, NULL, 0);
        fake_frame_release(&frame);
    }
}

static void empty_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__StatsReply stats = FAD__STATS_REPLY__INIT;
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    PUT(&reply, status, FAD__STATUS__OK);
    reply.stats = &stats;
    fake_reply(fd, &frame, &reply, NULL, 0);
    fake_frame_release(&frame);
}

static void refusing_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    fake_refuse(fd, &frame, FA_UNIMPLEMENTED, "header.type", "what is that");
    fake_frame_release(&frame);
}

/* What `fa-cli stats` prints of a scripted daemon; json NULL: for a person. */
static struct test_output show(fake_script *script, const char *json)
{
    struct fake_daemon fake;
    struct test_output output;

    fake_start(&fake, script, NULL, 1);
    output = CLI("stats", "--socket", fake.path, json);
    fake_stop(&fake);
    return output;
}

/* The whole table: one place for each number, and columns that line up. */
static const char full_table[] =
    "uptime       1 day 2 h 3 min 4 s\n"
    "log          42 left out: there were too many lines a second\n"
    "\n"
    "in use, of the daemon's limits\n"
    "  clients    151 of 152 (connections)\n"
    "  in flight  153 of 154 (requests not yet answered)\n"
    "  staged     155 B of 156 GiB (payloads, inline outputs and scratch)\n"
    "  mapped     157 KiB of 158 TiB (shared memory and regions)\n"
    "  regions    159 (registered or allocated)\n"
    "\n"
    "forward passes by version; times in us, of those that succeeded (p99: 99 % took no longer)\n"
    "  queue: waiting for its turn; transfer: reading and moving data; kernel: computing;\n"
    "  total: in the daemon\n"
    "                     mean         p50         p90         p99       p99.9         max\n"
    "  v3 bfloat16: 201 requests, 409 errors (CANCELLED 204, INTERNAL 205), 202 MiB received, 203 "
    "B sent\n"
    "    queue           210.1       211.2       212.3       213.4       214.5       215.6\n"
    "    transfer        220.1       221.2       222.3       223.4       224.5       225.6\n"
    "    kernel          230.1       231.2       232.3       233.4       234.5       235.6\n"
    "    total           240.1       241.2       242.3       243.4       244.5       245.6\n"
    "  refused before a version was chosen: 0 requests, 0 errors, 0 B received, 0 B sent\n"
    "\n"
    "clients connected now (those of your uid; root sees all); times are totals, as above\n"
    "  connection     uid     pid  requests  errors  received      sent     p50 us     p99 us     "
    "max us in flight    staged    mapped regions\n"
    "           7    1234    4321       301     609   302 MiB     303 B      341.2      343.4      "
    "345.6       353     355 B   357 KiB     359\n"
    "           8    1234    4321       401     809   402 MiB     403 B      441.2      443.4      "
    "445.6       453     455 B   457 KiB     459\n"
    "\n"
    "users, clients that are gone included (you; root sees all); times are totals, as above\n"
    "                 uid clients  requests  errors  received      sent     p50 us     p99 us     "
    "max us in flight    staged    mapped regions\n"
    "                1234     551       501    1009   502 MiB     503 B      541.2      543.4      "
    "545.6       553     555 B   557 KiB     559\n";

START_TEST(prints_a_table)
{
    struct test_output output = show(full_script, NULL);

    ck_assert_int_eq(output.code, 0);
    ck_assert_str_eq(output.err, "");
    ck_assert_msg(strcmp(output.out, full_table) == 0, "%s", output.out);
    test_output_release(&output);
}
END_TEST

static const char empty_table[] =
    "uptime       0 s\n"
    "\n"
    "in use, of the daemon's limits\n"
    "  clients    0 (connections)\n"
    "  in flight  0 (requests not yet answered)\n"
    "  staged     0 B (payloads, inline outputs and scratch)\n"
    "  mapped     0 B (shared memory and regions)\n"
    "  regions    0 (registered or allocated)\n"
    "\n"
    "forward passes by version: none yet\n"
    "\n"
    "clients connected now (those of your uid; root sees all); times are totals, as above\n"
    "  connection     uid     pid  requests  errors  received      sent     p50 us     p99 us     "
    "max us in flight    staged    mapped regions\n"
    "\n"
    "users, clients that are gone included (you; root sees all); times are totals, as above\n"
    "                 uid clients  requests  errors  received      sent     p50 us     p99 us     "
    "max us in flight    staged    mapped regions\n";

START_TEST(prints_nothing_done)
{
    struct test_output output = show(empty_script, NULL);

    ck_assert_int_eq(output.code, 0);
    ck_assert_msg(strcmp(output.out, empty_table) == 0, "%s", output.out);
    test_output_release(&output);
}
END_TEST

START_TEST(prints_a_refusal)
{
    struct test_output output = show(refusing_script, NULL);

    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 1, "UNIMPLEMENTED: header.type: what is that");
}
END_TEST

/* --- JSON ------------------------------------------------------------------------------------- */

/* Parses the output's one line and releases it. */
static cJSON *parse(struct test_output *output)
{
    cJSON *object = cJSON_Parse(output->out);

    ck_assert_msg(output->code == 0, "exit code %d: %s", output->code, output->err);
    ck_assert_str_eq(output->err, "");
    ck_assert_msg(cJSON_IsObject(object), "no JSON object: %s", output->out);
    test_output_release(output);
    return object;
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", name);
    return item->valuedouble;
}

static const cJSON *list(const cJSON *object, const char *name, int count)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    ck_assert_msg(cJSON_IsArray(item), "%s is no array", name);
    ck_assert_int_eq(cJSON_GetArraySize(item), count);
    return item;
}

static bool is_null(const cJSON *object, const char *name)
{
    return cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(object, name));
}

static void check_counters(const cJSON *object, uint64_t base)
{
    const cJSON *by_status = cJSON_GetObjectItem(object, "by_status");

    ck_assert(number(object, "requests") == (double)(base + 1));
    ck_assert(number(object, "received_bytes") == (double)((base + 2) << 20));
    ck_assert(number(object, "sent_bytes") == (double)(base + 3));
    ck_assert(number(object, "errors") == (double)(2 * base + 9));
    ck_assert(number(by_status, "CANCELLED") == (double)(base + 4));
    ck_assert(number(by_status, "INTERNAL") == (double)(base + 5));
    ck_assert_int_eq(cJSON_GetArraySize(by_status), 2);
}

static void check_latency(const cJSON *object, const char *name, double base)
{
    static const char *const names[] = {"mean", "p50", "p90", "p99", "p999", "max"};
    static const double above[] = {10.1, 11.2, 12.3, 13.4, 14.5, 15.625};
    const cJSON *latency = cJSON_GetObjectItem(object, name);

    ck_assert(number(latency, "count") == base);
    for (size_t i = 0; i < COUNT(names); i++)
        ck_assert(fabs(number(latency, names[i]) - base - above[i]) < 1e-9);
    ck_assert_int_eq(cJSON_GetArraySize(latency), 7);
}

static void check_usage(const cJSON *object, uint64_t base)
{
    const cJSON *usage = cJSON_GetObjectItem(object, "usage");

    ck_assert(number(usage, "connections") == (double)(base + 51));
    ck_assert(number(usage, "connections_limit") == (double)(base + 52));
    ck_assert(number(usage, "jobs") == (double)(base + 53));
    ck_assert(number(usage, "jobs_limit") == (double)(base + 54));
    ck_assert(number(usage, "staged_bytes") == (double)(base + 55));
    ck_assert(number(usage, "staged_limit") == (double)((base + 56) << 30));
    ck_assert(number(usage, "mapped_bytes") == (double)((base + 57) << 10));
    ck_assert(number(usage, "mapped_limit") == (double)((base + 58) << 40));
    ck_assert(number(usage, "regions") == (double)(base + 59));
    ck_assert(is_null(usage, "regions_limit"));
    ck_assert_int_eq(cJSON_GetArraySize(usage), 10);
}

START_TEST(prints_json)
{
    struct test_output output = show(full_script, "--json");
    cJSON *object = parse(&output);
    const cJSON *entry = list(object, "versions", 2)->child;

    ck_assert(number(object, "uptime_us") == 93784005678.0);
    ck_assert(number(object, "log_lines_held") == 42);
    check_usage(object, 100);
    ck_assert_int_eq(cJSON_GetArraySize(object), 6);
    ck_assert_str_eq(cJSON_GetObjectItem(entry, "version")->valuestring, "v3");
    ck_assert_str_eq(cJSON_GetObjectItem(entry, "dtype")->valuestring, "bfloat16");
    check_counters(entry, 200);
    check_latency(entry, "queue_us", 200);
    check_latency(entry, "transfer_us", 210);
    check_latency(entry, "kernel_us", 220);
    check_latency(entry, "total_us", 230);
    entry = entry->next;
    ck_assert(is_null(entry, "version") && is_null(entry, "dtype"));
    ck_assert(number(cJSON_GetObjectItem(entry, "total_us"), "count") == 0);
    ck_assert(is_null(cJSON_GetObjectItem(entry, "total_us"), "p999"));
    entry = list(object, "clients", 2)->child;
    for (uint64_t i = 0; i < 2; i++, entry = entry->next) {
        ck_assert(number(entry, "connection") == (double)(7 + i));
        ck_assert(number(entry, "uid") == 1234 && number(entry, "pid") == 4321);
        check_counters(entry, 300 + 100 * i);
        check_latency(entry, "total_us", (double)(330 + 100 * i));
        check_usage(entry, 300 + 100 * i);
    }
    entry = list(object, "users", 1)->child;
    ck_assert(number(entry, "uid") == 1234);
    check_counters(entry, 500);
    check_latency(entry, "total_us", 530);
    check_usage(entry, 500);
    ck_assert_int_eq(cJSON_GetArraySize(entry), 8);
    cJSON_Delete(object);
}
END_TEST

/* Every key within the object is explained by the help. */
static void check_explained(const cJSON *object, const char *help)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, object)
    {
        if (item->string)
            ck_assert_msg(strstr(help, item->string) != NULL, "no %s in the help", item->string);
        if (!item->string || strcmp(item->string, "by_status") != 0)
            check_explained(item, help);
    }
}

START_TEST(explains_json)
{
    struct test_output output = show(full_script, "--json"), help = CLI("help", "stats");
    cJSON *object = parse(&output);

    check_explained(object, help.out);
    cJSON_Delete(object);
    test_output_release(&help);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli_stats");
    TCase *tcase = tcase_create("cli_stats");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, prints_a_table);
    tcase_add_test(tcase, prints_nothing_done);
    tcase_add_test(tcase, prints_a_refusal);
    tcase_add_test(tcase, prints_json);
    tcase_add_test(tcase, explains_json);
    suite_add_tcase(suite, tcase);
    return suite;
}
