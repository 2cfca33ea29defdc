/* fa_stats against scripted daemons: what they tell, in pages, and what they make up. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Sets a field of a protobuf struct. */
#define PUT(message, field, value) ((message)->has_##field = true, (message)->field = (value))

/* Reads a Stats and tells what it has as after. False when the client closed. */
static bool read_stats(int fd, struct fake_frame *frame, uint64_t *after)
{
    Fad__Stats *stats;

    if (!fake_read(fd, frame))
        return false;
    ck_assert_int_eq(frame->frame.type, FA_FRAME_STATS);
    ck_assert_uint_eq(frame->frame.payload_length, 0);
    ck_assert_int_eq(frame->fd, -1);
    stats = fad__stats__unpack(NULL, frame->frame.message_length, frame->message);
    ck_assert_ptr_nonnull(stats);
    *after = stats->after;
    fad__stats__free_unpacked(stats, NULL);
    return true;
}

static void answer(int fd, struct fake_frame *frame, Fad__StatsReply *stats)
{
    Fad__Reply reply = FAD__REPLY__INIT;

    PUT(&reply, status, FAD__STATUS__OK);
    reply.stats = stats;
    fake_reply(fd, frame, &reply, NULL, 0);
    fake_frame_release(frame);
}

/* --- Everything that can be told -------------------------------------------------------------- */

static void tell_latency(Fad__Latency *latency, uint64_t count)
{
    fad__latency__init(latency);
    PUT(latency, count, count);
    PUT(latency, mean_us, (double)count + 0.25);
    PUT(latency, p50_us, (double)count + 1);
    PUT(latency, p90_us, (double)count + 2);
    PUT(latency, p99_us, (double)count + 3);
    PUT(latency, p999_us, (double)count + 4);
    PUT(latency, max_us, (double)count + 5);
}

static void check_latency(const struct fa_latency *latency, uint64_t count)
{
    ck_assert_uint_eq(latency->count, count);
    ck_assert(latency->mean_us == (double)count + 0.25);
    ck_assert(latency->p50_us == (double)count + 1);
    ck_assert(latency->p90_us == (double)count + 2);
    ck_assert(latency->p99_us == (double)count + 3);
    ck_assert(latency->p999_us == (double)count + 4);
    ck_assert(latency->max_us == (double)count + 5);
}

static void tell_usage(Fad__Usage *usage, uint64_t base)
{
    fad__usage__init(usage);
    PUT(usage, connections, base);
    PUT(usage, connections_limit, base + 1);
    PUT(usage, jobs, base + 2);
    PUT(usage, jobs_limit, base + 3);
    PUT(usage, staged_bytes, base + 4);
    PUT(usage, staged_limit, base + 5);
    PUT(usage, mapped_bytes, base + 6);
    PUT(usage, mapped_limit, base + 7);
    PUT(usage, regions, base + 8);
    PUT(usage, regions_limit, base + 9);
}

static void check_usage(const struct fa_usage *usage, uint64_t base)
{
    ck_assert(usage->connections == base && usage->connections_limit == base + 1);
    ck_assert(usage->jobs == base + 2 && usage->jobs_limit == base + 3);
    ck_assert(usage->staged_bytes == base + 4 && usage->staged_limit == base + 5);
    ck_assert(usage->mapped_bytes == base + 6 && usage->mapped_limit == base + 7);
    ck_assert(usage->regions == base + 8 && usage->regions_limit == base + 9);
}

/* Two errors of known kinds, and some that are to be left out. */
static void tell_counters(Fad__Counters *counters, uint64_t requests)
{
    static const int statuses[] = {FA_CANCELLED, 40, 0, -1, FA_TIMEOUT, 1 << 30, FA_INTERNAL};
    static Fad__StatusCount errors[COUNT(statuses)];
    static Fad__StatusCount *list[COUNT(statuses)];

    for (size_t i = 0; i < COUNT(statuses); i++) {
        fad__status_count__init(&errors[i]);
        PUT(&errors[i], status, (Fad__Status)statuses[i]);
        PUT(&errors[i], count, 10 + i);
        list[i] = &errors[i];
    }
    fad__counters__init(counters);
    PUT(counters, requests, requests);
    PUT(counters, received_bytes, requests + 1);
    PUT(counters, sent_bytes, requests + 2);
    counters->errors = list;
    counters->n_errors = COUNT(statuses);
}

static void check_counters(const struct fa_counters *counters, uint64_t requests)
{
    ck_assert_uint_eq(counters->requests, requests);
    ck_assert_uint_eq(counters->received_bytes, requests + 1);
    ck_assert_uint_eq(counters->sent_bytes, requests + 2);
    ck_assert_uint_eq(counters->errors, 26);
    for (int i = 0; i < FA_STATUS_COUNTS; i++)
        ck_assert_uint_eq(counters->by_status[i], i == FA_CANCELLED  ? 10
                                                  : i == FA_INTERNAL ? 16
                                                                     : 0);
}

static void all_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__StatsReply stats = FAD__STATS_REPLY__INIT;
    Fad__VersionStats versions[3] = {FAD__VERSION_STATS__INIT, FAD__VERSION_STATS__INIT,
                                     FAD__VERSION_STATS__INIT};
    Fad__VersionStats *version_list[] = {&versions[0], &versions[1], &versions[2]};
    Fad__ClientStats client = FAD__CLIENT_STATS__INIT, *client_list[] = {&client};
    Fad__ClientStats user = FAD__CLIENT_STATS__INIT, *user_list[] = {&user};
    Fad__Counters counters[3];
    Fad__Latency latency[6];
    Fad__Usage usage[3];
    struct fake_frame frame;
    uint64_t after;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(read_stats(fd, &frame, &after));
    ck_assert_uint_eq(after, 0);
    for (uint64_t i = 0; i < 6; i++)
        tell_latency(&latency[i], 100 * i);
    for (uint64_t i = 0; i < 3; i++) {
        tell_counters(&counters[i], 7 * i);
        tell_usage(&usage[i], 50 * i);
    }
    PUT(&stats, uptime_us, 123);
    PUT(&stats, log_lines_held, 456);
    PUT(&stats, more_clients, false);
    stats.daemon = &usage[0];
    stats.versions = version_list, stats.n_versions = 3;
    stats.clients = client_list, stats.n_clients = 1;
    stats.users = user_list, stats.n_users = 1;
    versions[0].version = FAKE_TEXT("a version with a long name");
    PUT(&versions[0], dtype, FAD__DTYPE__FLOAT16);
    versions[0].counters = &counters[0];
    versions[0].queue = &latency[0], versions[0].transfer = &latency[1];
    versions[0].kernel = &latency[2], versions[0].total = &latency[3];
    versions[1].version = FAKE_TEXT("future");
    PUT(&versions[1], dtype, (Fad__DType)9); /* left out; the third has nothing at all */
    PUT(&client, connection, UINT64_MAX);
    PUT(&client, uid, UINT32_MAX);
    PUT(&client, pid, 77);
    client.counters = &counters[1], client.total = &latency[4], client.usage = &usage[1];
    PUT(&user, uid, 1000);
    user.counters = &counters[2], user.total = &latency[5], user.usage = &usage[2];
    answer(fd, &frame, &stats);
}

START_TEST(takes_everything)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_stats *stats;

    fake_start(&fake, all_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_stats(client, &stats), FA_OK);
    ck_assert_uint_eq(stats->uptime_us, 123);
    ck_assert_uint_eq(stats->log_lines_held, 456);
    check_usage(&stats->daemon, 0);
    ck_assert_uint_eq(stats->version_count, 2);
    ck_assert_str_eq(stats->versions[0].version, "a version with ");
    ck_assert_int_eq(stats->versions[0].dtype, FA_DTYPE_FLOAT16);
    check_counters(&stats->versions[0].counters, 0);
    check_latency(&stats->versions[0].queue, 0);
    check_latency(&stats->versions[0].transfer, 100);
    check_latency(&stats->versions[0].kernel, 200);
    check_latency(&stats->versions[0].total, 300);
    ck_assert_str_eq(stats->versions[1].version, "");
    ck_assert_int_eq(stats->versions[1].dtype, 0);
    ck_assert_uint_eq(stats->versions[1].counters.requests, 0);
    ck_assert_uint_eq(stats->versions[1].total.count, 0);
    ck_assert_uint_eq(stats->client_count, 1);
    ck_assert_uint_eq(stats->clients[0].connection, UINT64_MAX);
    ck_assert_uint_eq(stats->clients[0].uid, UINT32_MAX);
    ck_assert_uint_eq(stats->clients[0].pid, 77);
    check_counters(&stats->clients[0].counters, 7);
    check_latency(&stats->clients[0].total, 400);
    check_usage(&stats->clients[0].usage, 50);
    ck_assert_uint_eq(stats->user_count, 1);
    ck_assert_uint_eq(stats->users[0].connection + stats->users[0].pid, 0);
    ck_assert_uint_eq(stats->users[0].uid, 1000);
    check_counters(&stats->users[0].counters, 14);
    check_latency(&stats->users[0].total, 500);
    check_usage(&stats->users[0].usage, 100);
    fa_stats_free(stats);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Pages ------------------------------------------------------------------------------------ */

#define PAGE 256

/* Answers with that many clients, numbered by twos from after + 2. */
static void answer_page(int fd, struct fake_frame *frame, uint64_t after, size_t count, bool more)
{
    Fad__StatsReply stats = FAD__STATS_REPLY__INIT;
    Fad__ClientStats clients[PAGE], *list[PAGE];

    for (size_t i = 0; i < count; i++) {
        fad__client_stats__init(&clients[i]);
        PUT(&clients[i], connection, after + 2 * i + 2);
        list[i] = &clients[i];
    }
    stats.clients = list;
    stats.n_clients = count;
    PUT(&stats, more_clients, more);
    answer(fd, frame, &stats);
}

/* Three pages; the last has no more_clients. Then a second time, and a refusal. */
static void pages_script(struct fake_daemon *fake, int fd, int round)
{
    static const size_t counts[] = {3, 1, 2};
    struct fake_frame frame;
    uint64_t after, expected;
    (void)fake, (void)round;

    fake_hello(fd);
    for (int time = 0; time < 2; time++) {
        expected = 0;
        for (size_t i = 0; i < 3; i++) {
            ck_assert(read_stats(fd, &frame, &after));
            ck_assert_uint_eq(after, expected);
            answer_page(fd, &frame, after, counts[i], i < 2);
            expected += 2 * counts[i];
        }
    }
    ck_assert(read_stats(fd, &frame, &after));
    answer_page(fd, &frame, after, 3, true);
    ck_assert(read_stats(fd, &frame, &after));
    fake_refuse(fd, &frame, FA_UNIMPLEMENTED, "header.type", "no such thing");
    fake_frame_release(&frame);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.frame.type, FA_FRAME_PING);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
}

START_TEST(fetches_pages)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_stats *stats;

    fake_start(&fake, pages_script, NULL, 1);
    client = fake_open(&fake);
    for (int time = 0; time < 2; time++) {
        ck_assert_int_eq(fa_stats(client, &stats), FA_OK);
        ck_assert_uint_eq(stats->client_count, 6);
        for (size_t i = 0; i < 6; i++)
            ck_assert_uint_eq(stats->clients[i].connection, 2 * i + 2);
        fa_stats_free(stats);
    }
    ck_assert_int_eq(fa_stats(client, &stats), FA_UNIMPLEMENTED);
    ck_assert_ptr_null(stats);
    ck_assert_str_eq(fa_last_error(client), "UNIMPLEMENTED: header.type: no such thing");
    ck_assert_int_eq(fa_ping(client), FA_OK); /* the refusal cost nothing more */
    ck_assert_int_eq(fa_stats(client, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_stats(NULL, &stats), FA_INVALID_ARGUMENT);
    fa_stats_free(NULL);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Lies ------------------------------------------------------------------------------------- */

static const struct lie {
    const char *field;
    size_t count; /* clients a page */
    bool same;    /* on every page */
    bool none;    /* a reply without statistics */
} lies[] = {
    {.field = "stats.clients", .count = PAGE}, /* more than any daemon has, each number once */
    {.field = "stats.clients.connection", .count = 1, .same = true},
    {.field = "stats.more_clients", .count = 0},
    {.field = "stats", .none = true},
};

static void lie_script(struct fake_daemon *fake, int fd, int round)
{
    const struct lie *lie = fake->data;
    struct fake_frame frame;
    uint64_t after;
    (void)round;

    fake_hello(fd);
    while (read_stats(fd, &frame, &after)) { /* until the client closes */
        if (lie->none)
            answer(fd, &frame, NULL);
        else
            answer_page(fd, &frame, lie->same ? 0 : after, lie->count, true);
    }
}

static const double no_times[] = {-1e-9, -INFINITY, INFINITY, NAN};

/* A time that is none, in one of three lists. */
static void time_script(struct fake_daemon *fake, int fd, int round)
{
    const int which = *(const int *)fake->data;
    Fad__Latency latency = FAD__LATENCY__INIT;
    Fad__StatsReply stats = FAD__STATS_REPLY__INIT;
    Fad__VersionStats version = FAD__VERSION_STATS__INIT, *version_list[] = {&version};
    Fad__ClientStats client = FAD__CLIENT_STATS__INIT, *client_list[] = {&client};
    Fad__ClientStats user = FAD__CLIENT_STATS__INIT, *user_list[] = {&user};
    struct fake_frame frame;
    uint64_t after;
    (void)round;

    fake_hello(fd);
    ck_assert(read_stats(fd, &frame, &after));
    PUT(&latency, p99_us, no_times[which % (int)COUNT(no_times)]);
    PUT(&client, connection, 1);
    stats.versions = version_list, stats.n_versions = 1;
    stats.clients = client_list, stats.n_clients = 1;
    stats.users = user_list, stats.n_users = 1;
    switch (which / (int)COUNT(no_times)) {
    case 0:
        version.kernel = &latency;
        break;
    case 1:
        client.total = &latency;
        break;
    default:
        user.total = &latency;
    }
    answer(fd, &frame, &stats);
}

static void expect_distrust(fake_script *script, const void *data, const char *field)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_stats *stats;

    fake_start(&fake, script, (void *)(uintptr_t)data, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_stats(client, &stats), FA_PROTOCOL_ERROR);
    ck_assert_ptr_null(stats);
    ck_assert_str_eq(fa_last_error_record(client)->field, field);
    fake_check_closed(client, FA_PROTOCOL_ERROR);
    fa_client_close(client);
    fake_stop(&fake);
}

START_TEST(distrusts)
{
    expect_distrust(lie_script, &lies[_i], lies[_i].field);
}
END_TEST

START_TEST(distrusts_times)
{
    static const char *const fields[] = {"stats.versions", "stats.clients", "stats.users"};

    expect_distrust(time_script, &_i, fields[_i / (int)COUNT(no_times)]);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_stats");
    TCase *tcase = tcase_create("client_stats");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, takes_everything);
    tcase_add_test(tcase, fetches_pages);
    tcase_add_loop_test(tcase, distrusts, 0, COUNT(lies));
    tcase_add_loop_test(tcase, distrusts_times, 0, 3 * (int)COUNT(no_times));
    suite_add_tcase(suite, tcase);
    return suite;
}
