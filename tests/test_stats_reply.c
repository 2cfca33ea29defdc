/* Stats replies: they tell what was noted and what is held, and are never too large. */
#include "daemon/connection/stats_reply.h"
#include "proto/fa_arena.h"
#include "proto/fa_frame.h"
#include "tests/helpers/test.h"

#include <string.h>

static struct fad_statistics statistics;
static struct fad_stats_reply reply;
static struct fad_account account;
static const struct fa_version *versions;

static void setup(void)
{
    static const struct fad_amounts limit = {{[FAD_JOBS] = 64,
                                              [FAD_STAGED] = 1 << 20,
                                              [FAD_MAPPED] = 1 << 21,
                                              [FAD_REGIONS] = 8,
                                              [FAD_CONNECTIONS] = 512}};

    size_t version_count;

    versions = fa_versions(&version_count);
    ck_assert_int_eq(fad_statistics_init(&statistics, 0), 0);
    fad_account_init(&account, "the daemon", NULL, false, &limit);
    memset(&reply, 0xee, sizeof reply); /* init must not need zeroes */
}

static void teardown(void)
{
    fad_statistics_deinit(&statistics);
}

static struct fad_outcome outcome_of(const struct fa_version *version, enum fa_status status)
{
    return (struct fad_outcome){.version = version,
                                .dtype = FA_DTYPE_FLOAT32,
                                .status = status,
                                .received_bytes = 1000,
                                .sent_bytes = 10,
                                .queue_ns = 1,
                                .transfer_ns = 2,
                                .kernel_ns = 3,
                                .total_ns = 6};
}

/* --- Replies ---------------------------------------------------------------------------------- */

/* What a client reads: the reply packed and unpacked again, as libfa does. Good until the next. */
static const Fad__StatsReply *travelled(void)
{
    static struct fa_arena arena;
    static uint8_t bytes[FA_FRAME_MESSAGE_MAX];
    Fad__Reply whole = FAD__REPLY__INIT;
    const Fad__Reply *got;

    whole.has_status = true;
    whole.stats = &reply.message;
    ck_assert_uint_le(fad__reply__get_packed_size(&whole), sizeof bytes);
    fa_arena_init(&arena);
    got = fad__reply__unpack(&arena.allocator, fad__reply__pack(&whole, bytes), bytes);
    ck_assert_ptr_nonnull(got);
    ck_assert_uint_le(arena.used, reply.unpacked);
    ck_assert_uint_le(reply.unpacked, FA_ARENA_SIZE);
    return got->stats;
}

static void check_latency(const Fad__Latency *latency, uint64_t count, double mean, double p50,
                          double tail)
{
    ck_assert(latency->has_count && latency->has_mean_us && latency->has_p50_us &&
              latency->has_p90_us && latency->has_p99_us && latency->has_p999_us &&
              latency->has_max_us);
    ck_assert_uint_eq(latency->count, count);
    ck_assert_double_eq_tol(latency->mean_us, mean, 1e-9);
    ck_assert_double_eq_tol(latency->p50_us, p50, 1e-9);
    ck_assert_double_eq_tol(latency->p90_us, tail, 1e-9);
    ck_assert_double_eq_tol(latency->p99_us, tail, 1e-9);
    ck_assert_double_eq_tol(latency->p999_us, tail, 1e-9);
    ck_assert_double_eq_tol(latency->max_us, tail, 1e-9);
}

START_TEST(tells_versions)
{
    struct fad_outcome outcome = outcome_of(&versions[1], FA_OK);
    const Fad__StatsReply *got;

    fad_statistics_note(&statistics, &outcome);
    outcome.queue_ns = 3000, outcome.transfer_ns = 4000, outcome.kernel_ns = 5000;
    outcome.total_ns = 12000;
    fad_statistics_note(&statistics, &outcome);
    outcome = outcome_of(&versions[1], FA_CANCELLED);
    fad_statistics_note(&statistics, &outcome);
    outcome = (struct fad_outcome){.status = FA_INVALID_ARGUMENT};
    fad_statistics_note(&statistics, &outcome);
    fad_stats_reply_init(&reply, 1234567, &account, 17);
    fad_stats_put_versions(&reply, &statistics);
    got = travelled();

    ck_assert_uint_eq(got->uptime_us, 1234);
    ck_assert_uint_eq(got->log_lines_held, 17);
    ck_assert(got->has_more_clients && !got->more_clients);
    ck_assert_uint_eq(got->n_clients + got->n_users, 0);
    ck_assert_uint_eq(got->n_versions, 2);
    ck_assert_str_eq(got->versions[0]->version, versions[1].name);
    ck_assert_int_eq(got->versions[0]->dtype, FAD__DTYPE__FLOAT32);
    ck_assert_uint_eq(got->versions[0]->counters->requests, 3);
    ck_assert_uint_eq(got->versions[0]->counters->received_bytes, 3000);
    ck_assert_uint_eq(got->versions[0]->counters->sent_bytes, 30);
    ck_assert_uint_eq(got->versions[0]->counters->n_errors, 1);
    ck_assert_int_eq(got->versions[0]->counters->errors[0]->status, FAD__STATUS__CANCELLED);
    ck_assert_uint_eq(got->versions[0]->counters->errors[0]->count, 1);
    check_latency(got->versions[0]->queue, 2, 1.5005, 0.001, 3);
    check_latency(got->versions[0]->transfer, 2, 2.001, 0.002, 4);
    check_latency(got->versions[0]->kernel, 2, 2.5015, 0.003, 5);
    check_latency(got->versions[0]->total, 2, 6.003, 0.006, 12);
    ck_assert_str_eq(got->versions[1]->version, "");
    ck_assert(!got->versions[1]->has_dtype);
    ck_assert_int_eq(got->versions[1]->counters->errors[0]->status, FAD__STATUS__INVALID_ARGUMENT);
    check_latency(got->versions[1]->total, 0, 0, 0, 0);
}
END_TEST

static void check_usage(const Fad__Usage *usage)
{
    ck_assert(usage->connections == 2 && usage->connections_limit == 512);
    ck_assert(usage->jobs == 3 && usage->jobs_limit == 64);
    ck_assert(usage->staged_bytes == 500 && usage->staged_limit == 1 << 20);
    ck_assert(usage->mapped_bytes == 600 && usage->mapped_limit == 1 << 21);
    ck_assert(usage->regions == 4 && usage->regions_limit == 8);
}

START_TEST(tells_usage_of_each)
{
    static struct fad_tally tally;
    static const struct fad_amounts held = {{[FAD_JOBS] = 3,
                                             [FAD_STAGED] = 500,
                                             [FAD_MAPPED] = 600,
                                             [FAD_REGIONS] = 4,
                                             [FAD_CONNECTIONS] = 2}};
    struct fad_outcome outcome = outcome_of(&versions[0], FA_OK);
    struct fad_stats_party party = {
        .connection = 99, .uid = 1000, .pid = 321, .tally = &tally, .account = &account};
    const Fad__StatsReply *got;
    struct fa_error error;

    ck_assert_int_eq(fad_account_charge(&account, &held, &error), FA_OK);
    fad_tally_note(&tally, &outcome);
    fad_stats_reply_init(&reply, 0, &account, 0);
    ck_assert(fad_stats_put_user(&reply, &party));
    ck_assert(fad_stats_put_client(&reply, &party));
    got = travelled();
    check_usage(got->daemon);
    ck_assert_uint_eq(got->n_clients, 1);
    ck_assert_uint_eq(got->clients[0]->connection, 99);
    ck_assert_uint_eq(got->clients[0]->uid, 1000);
    ck_assert_uint_eq(got->clients[0]->pid, 321);
    ck_assert_uint_eq(got->clients[0]->counters->requests, 1);
    ck_assert_uint_eq(got->clients[0]->counters->sent_bytes, 10);
    check_latency(got->clients[0]->total, 1, 0.006, 0.006, 0.006);
    check_usage(got->clients[0]->usage);
    ck_assert_uint_eq(got->n_users, 1);
    ck_assert_uint_eq(got->users[0]->uid, 1000);
    ck_assert_uint_eq(got->users[0]->counters->requests, 1);
    check_latency(got->users[0]->total, 1, 0.006, 0.006, 0.006);
    check_usage(got->users[0]->usage);
}
END_TEST

START_TEST(tells_as_many_users_as_there_is_room_for)
{
    static struct fad_tally tally;
    struct fad_stats_party user = {.tally = &tally, .account = &account};
    const Fad__StatsReply *got;

    fad_stats_reply_init(&reply, 0, &account, 0);
    for (uint32_t i = 0; i < 200; i++) {
        user.uid = i;
        ck_assert_int_eq(fad_stats_put_user(&reply, &user), i < FAD_STATS_USERS_MAX);
    }
    got = travelled();
    ck_assert_uint_eq(got->n_users, FAD_STATS_USERS_MAX);
    for (uint32_t i = 0; i < FAD_STATS_USERS_MAX; i++)
        ck_assert_uint_eq(got->users[i]->uid, i);
}
END_TEST

/* --- Sizes ------------------------------------------------------------------------------------ */

/* A tally with the largest numbers there are, and errors of the kinds in the mask. */
static void fill(struct fad_counters *counters, uint32_t kinds)
{
    memset(counters, 0, sizeof *counters);
    counters->requests = counters->received_bytes = counters->sent_bytes = UINT64_MAX;
    for (int status = 0; status < FAD_STATUS_COUNTS; status++)
        counters->by_status[status] = kinds >> status & 1 ? UINT64_MAX : 0;
}

/* The page after `after` of clients numbered from 1 with the tallies; the last number it has. */
static size_t put_page(const struct fad_tally *tallies, size_t clients, size_t after)
{
    struct fad_stats_party party = {.uid = UINT32_MAX, .pid = UINT32_MAX, .account = &account};
    size_t next = after;

    fad_stats_reply_init(&reply, UINT64_MAX, &account, UINT64_MAX);
    if (after == 0) {
        fad_stats_put_versions(&reply, &statistics);
        for (size_t i = 0; i < FAD_STATS_USERS_MAX; i++) {
            party.tally = &tallies[i % clients];
            if (!fad_stats_put_user(&reply, &party))
                break;
        }
    }
    for (; next < clients; next++) {
        party.connection = next + 1;
        party.tally = &tallies[next];
        if (!fad_stats_put_client(&reply, &party))
            break;
    }
    return next;
}

/* Pages have all clients once and in order; each page has some. Their number. */
static int check_pages(const struct fad_tally *tallies, size_t clients, size_t *first_users)
{
    size_t told = 0;
    int pages = 0;
    bool more = true;

    while (more) {
        size_t next = put_page(tallies, clients, told);
        const Fad__StatsReply *got = travelled();

        if (pages++ == 0)
            *first_users = got->n_users;
        ck_assert_uint_ge(got->n_clients, 1);
        ck_assert_uint_eq(got->n_clients, next - told);
        for (size_t i = 0; i < got->n_clients; i++)
            ck_assert_uint_eq(got->clients[i]->connection, ++told);
        more = got->more_clients;
        ck_assert_int_eq(more, told < clients);
    }
    return pages;
}

#define CLIENTS 128
static struct fad_tally tallies[CLIENTS];

START_TEST(fits_without_errors)
{
    size_t users;

    for (size_t i = 0; i < CLIENTS; i++)
        fill(&tallies[i].counters, 0);
    ck_assert_int_le(check_pages(tallies, CLIENTS, &users), CLIENTS / FAD_STATS_CLIENTS_MAX + 1);
    ck_assert_uint_eq(users, FAD_STATS_USERS_MAX);
}
END_TEST

/* The most that there can be: errors of every kind for every version, user and client. */
START_TEST(fits_with_every_error)
{
    size_t users;

    for (size_t i = 0; i < statistics.row_count; i++)
        fill(&statistics.rows[i].counters, UINT32_MAX);
    for (size_t i = 0; i < CLIENTS; i++)
        fill(&tallies[i].counters, UINT32_MAX);
    check_pages(tallies, CLIENTS, &users);
}
END_TEST

START_TEST(fits_with_some_errors)
{
    uint64_t state = 3;

    for (int round = 0; round < 200; round++) {
        const unsigned shift = (unsigned)(round % 16) + 48;
        size_t users;

        for (size_t i = 0; i < CLIENTS; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
            fill(&tallies[i].counters, (uint32_t)(state >> shift));
            fill(&statistics.rows[i % statistics.row_count].counters,
                 (uint32_t)(state >> (shift - 16)));
        }
        check_pages(tallies, 1 + (size_t)(state >> 57), &users);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("stats_reply");
    TCase *tcase = tcase_create("stats_reply");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, tells_versions);
    tcase_add_test(tcase, tells_usage_of_each);
    tcase_add_test(tcase, tells_as_many_users_as_there_is_room_for);
    tcase_add_test(tcase, fits_without_errors);
    tcase_add_test(tcase, fits_with_every_error);
    tcase_add_test(tcase, fits_with_some_errors);
    suite_add_tcase(suite, tcase);
    return suite;
}
