/* The statistics of the real daemon: exactly what was asked of it, and to whom it tells what. */
#include "client/fa.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/wire.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct fa_client *open_client(void)
{
    struct fa_client *client;

    ck_assert_int_eq(fa_client_open(&client, wire_daemon()->socket), FA_OK);
    return client;
}

static struct fa_stats *fetch(struct fa_client *client)
{
    struct fa_stats *stats;

    ck_assert_msg(fa_stats(client, &stats) == FA_OK, "%s", fa_last_error(client));
    return stats;
}

/* Fetches until the daemon has seen that all but count connections are closed. */
static struct fa_stats *fetch_when_left(struct fa_client *client, size_t count)
{
    for (;;) { /* the test's timeout ends it */
        struct fa_stats *stats = fetch(client);

        if (stats->client_count == count)
            return stats;
        fa_stats_free(stats);
        test_sleep_ms(1);
    }
}

static enum fa_status forward(struct fa_client *client, const char *version)
{
    struct fake_problem problem;

    fake_problem_init(&problem);
    problem.args.version = version;
    return fa_forward(client, &problem.args, NULL);
}

/* q 144, k at 192 of 120, v at 320 of 120; o 144, lse at 192 of 48. */
static void check_counters(const struct fa_counters *counters, uint64_t requests, uint64_t refused)
{
    ck_assert_uint_eq(counters->requests, requests);
    ck_assert_uint_eq(counters->errors, refused);
    ck_assert_uint_eq(counters->by_status[FA_INVALID_ARGUMENT], refused);
    ck_assert_uint_eq(counters->sent_bytes, (requests - refused) * FAKE_REPLY_PAYLOAD);
}

static void check_latency(const struct fa_latency *latency, uint64_t count)
{
    ck_assert_uint_eq(latency->count, count);
    ck_assert(latency->p50_us <= latency->p90_us && latency->p90_us <= latency->p99_us &&
              latency->p99_us <= latency->p999_us && latency->p999_us <= latency->max_us);
    ck_assert(latency->mean_us <= latency->max_us);
}

/* Two clients: each has its own counts, versions and the uid have the sums. */
START_TEST(counts_forwards)
{
    struct fa_client *first = open_client(), *second = open_client();
    struct fa_stats *stats;

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(forward(first, "v0"), FA_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(forward(second, "v4"), FA_OK);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(forward(second, "v9"), FA_INVALID_ARGUMENT);
    stats = fetch_when_left(first, 2);
    ck_assert_uint_eq(stats->version_count, 3);
    ck_assert_str_eq(stats->versions[0].version, "v0");
    ck_assert_int_eq(stats->versions[0].dtype, FA_DTYPE_FLOAT32);
    check_counters(&stats->versions[0].counters, 3, 0);
    ck_assert_uint_eq(stats->versions[0].counters.received_bytes, 3 * FAKE_REQUEST_PAYLOAD);
    check_latency(&stats->versions[0].queue, 3);
    check_latency(&stats->versions[0].transfer, 3);
    check_latency(&stats->versions[0].kernel, 3);
    check_latency(&stats->versions[0].total, 3);
    ck_assert(stats->versions[0].total.max_us > 0);
    check_counters(&stats->versions[1].counters, 4, 0);
    ck_assert_str_eq(stats->versions[2].version, "");
    check_counters(&stats->versions[2].counters, 2, 2);
    check_latency(&stats->versions[2].total, 0);

    ck_assert_uint_eq(stats->clients[0].pid, (uint32_t)getpid());
    ck_assert_uint_eq(stats->clients[0].uid, getuid());
    ck_assert_uint_eq(stats->clients[0].connection, fa_client_info(first)->connection);
    ck_assert_uint_eq(stats->clients[1].connection, fa_client_info(second)->connection);
    check_counters(&stats->clients[0].counters, 3, 0);
    check_latency(&stats->clients[0].total, 3);
    check_counters(&stats->clients[1].counters, 6, 2);
    check_latency(&stats->clients[1].total, 4);
    ck_assert_uint_eq(stats->clients[1].usage.jobs, 0);
    ck_assert_uint_eq(stats->clients[1].usage.jobs_limit, fa_client_info(first)->jobs);
    ck_assert_uint_eq(stats->user_count, 1);
    ck_assert_uint_eq(stats->users[0].uid, getuid());
    check_counters(&stats->users[0].counters, 9, 2);
    check_latency(&stats->users[0].total, 7);
    ck_assert_uint_eq(stats->users[0].usage.connections, 2);
    ck_assert_uint_eq(stats->daemon.connections, 2);
    fa_stats_free(stats);

    /* What the client did stays its user's. */
    fa_client_close(second);
    stats = fetch_when_left(first, 1);
    check_counters(&stats->users[0].counters, 9, 2);
    check_latency(&stats->users[0].total, 7);
    fa_stats_free(stats);
    fa_client_close(first);
}
END_TEST

/* The same by fa-cli alone. */
START_TEST(shows_what_ran)
{
    const char *socket = wire_daemon()->socket;
    struct test_output output =
        CLI("run", "--socket", socket, "--version", "v4", "--shape", "1,2,3,64", "--repeat", "5");
    cJSON *object, *entry;

    ck_assert_int_eq(output.code, 0);
    test_output_release(&output);
    output = CLI("run", "--socket", socket, "--version", "v1", "--shape", "1,2,3,8");
    ck_assert_int_eq(output.code, 0);
    test_output_release(&output);
    output = CLI("stats", "--socket", socket, "--json");
    ck_assert_int_eq(output.code, 0);
    object = cJSON_Parse(output.out);
    entry = cJSON_GetObjectItem(object, "versions")->child;
    ck_assert_str_eq(cJSON_GetObjectItem(entry, "version")->valuestring, "v1");
    ck_assert_int_eq(cJSON_GetObjectItem(entry, "requests")->valueint, 1);
    entry = entry->next;
    ck_assert_str_eq(cJSON_GetObjectItem(entry, "version")->valuestring, "v4");
    ck_assert_int_eq(cJSON_GetObjectItem(entry, "requests")->valueint, 5);
    ck_assert_int_eq(cJSON_GetObjectItem(entry, "errors")->valueint, 0);
    ck_assert_ptr_null(entry->next);
    entry = cJSON_GetObjectItem(object, "users")->child;
    ck_assert_int_eq(cJSON_GetObjectItem(entry, "requests")->valueint, 6);
    cJSON_Delete(object);
    test_output_release(&output);
    output = CLI("stats", "--socket", socket);
    cli_expect_output(&output, "v4 float32: 5 requests, 0 errors, ");
}
END_TEST

START_TEST(shows_a_daemon_of_its_own)
{
    struct test_output output;

    ck_assert_int_eq(setenv("FAD_DAEMON", test_program("fad"), 1), 0);
    output = CLI("stats", "--spawn");
    ck_assert_ptr_nonnull(strstr(output.out, "clients    1 of "));
    cli_expect_output(&output, "forward passes by version: none yet\n");
    output = CLI("stats", "--socket", "/none/sock");
    cli_expect_error(&output, 3, "/none/sock");
}
END_TEST

/* More clients than a reply has room for. */
START_TEST(lists_many_clients)
{
    struct fa_client *clients[70];
    struct fa_stats *stats;

    for (size_t i = 0; i < COUNT(clients); i++)
        clients[i] = open_client();
    stats = fetch_when_left(clients[0], COUNT(clients));
    for (size_t i = 0; i < COUNT(clients); i++)
        ck_assert_uint_eq(stats->clients[i].connection, fa_client_info(clients[i])->connection);
    fa_stats_free(stats);
    for (size_t i = 0; i < COUNT(clients); i++)
        fa_client_close(clients[i]);
}
END_TEST

/* A Stats is bare, and asks for no more than what comes after. */
START_TEST(checks_the_request)
{
    static const uint8_t after_all[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0x0f}, junk[] = {0xff};
    struct wire_reply reply;
    int fd = wire_greet();
    struct wire_frame frame = wire_make(FA_FRAME_STATS, 5, NULL, 0, "1234", 4);

    wire_send_frame(fd, &frame);
    wire_expect(fd, 5, FA_INVALID_ARGUMENT, "header.payload_length");
    frame = wire_make(FA_FRAME_STATS, 6, junk, sizeof junk, NULL, 0);
    wire_send_frame(fd, &frame);
    wire_expect(fd, 6, FA_INVALID_ARGUMENT, "message");
    frame = wire_make(FA_FRAME_STATS, 7, after_all, sizeof after_all, NULL, 0);
    wire_send_frame(fd, &frame);
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, 7);
    ck_assert_ptr_nonnull(reply.message->stats);
    ck_assert_uint_eq(reply.message->stats->n_clients + reply.message->stats->n_users, 0);
    ck_assert(!reply.message->stats->more_clients);
    wire_release(&reply);
    close(fd);
}
END_TEST

/* --- Other users ------------------------------------------------------------------------------ */

#define OTHER_UID 54321

/* In a process of another uid: what it sees is its own. */
static void look_as_other(void)
{
    struct fa_client *client;
    struct fa_stats *stats;

    ck_assert_int_eq(setuid(OTHER_UID), 0);
    client = open_client();
    ck_assert_int_eq(forward(client, "v0"), FA_OK);
    stats = fetch(client);
    ck_assert_uint_eq(stats->client_count, 1);
    ck_assert_uint_eq(stats->clients[0].uid, OTHER_UID);
    check_counters(&stats->clients[0].counters, 1, 0);
    ck_assert_uint_eq(stats->user_count, 1);
    ck_assert_uint_eq(stats->users[0].uid, OTHER_UID);
    check_counters(&stats->versions[0].counters, 3, 0); /* of all users */
    fa_stats_free(stats);
    fa_client_close(client);
}

START_TEST(tells_root_all_and_others_their_own)
{
    struct fa_client *client = open_client();
    struct fa_stats *stats;
    pid_t child;

    ck_assert_int_eq(chmod(wire_daemon()->directory, 0755), 0);
    ck_assert_int_eq(chmod(wire_daemon()->socket, 0666), 0);
    ck_assert_int_eq(forward(client, "v0"), FA_OK);
    ck_assert_int_eq(forward(client, "v0"), FA_OK);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        look_as_other();
        _exit(EXIT_SUCCESS);
    }
    ck_assert_int_eq(test_wait(child, TEST_PROGRAM_SECONDS), 0);
    stats = fetch_when_left(client, 1);
    ck_assert_uint_eq(stats->user_count, 2);
    ck_assert_uint_eq(stats->users[0].uid, 0); /* it is there, the other has gone */
    check_counters(&stats->users[0].counters, 2, 0);
    ck_assert_uint_eq(stats->users[0].usage.connections, 1);
    ck_assert_uint_eq(stats->users[1].uid, OTHER_UID);
    check_counters(&stats->users[1].counters, 1, 0);
    ck_assert_uint_eq(stats->users[1].usage.connections, 0);
    fa_stats_free(stats);
    fa_client_close(client);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("stats");
    TCase *tcase = tcase_create("stats");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, wire_setup, wire_teardown);
    tcase_add_test(tcase, counts_forwards);
    tcase_add_test(tcase, shows_what_ran);
    tcase_add_test(tcase, shows_a_daemon_of_its_own);
    tcase_add_test(tcase, lists_many_clients);
    tcase_add_test(tcase, checks_the_request);
    if (getuid() == 0)
        tcase_add_test(tcase, tells_root_all_and_others_their_own);
    else
        test_skip("tells_root_all_and_others_their_own", "needs root, to become another user");
    suite_add_tcase(suite, tcase);
    return suite;
}
