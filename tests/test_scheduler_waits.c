/* Who waits how long, in virtual time. A failure prints the test's name and its seed:
 * "name:seed". */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/simulation.h"
#include "tests/helpers/test.h"

#include <stdlib.h>

#define US 1000ull
#define MS 1000000ull

/* What a range should take. */
#define RANGE (250 * US)

#define STREAMS 2
#define FLOODS  16

static struct fad_group group;
static struct fad_flow flows[FLOODS + 1];

static void setup(void)
{
    sim_begin(STREAMS);
    fad_group_init(&group);
    for (unsigned f = 0; f < FLOODS + 1; f++)
        fad_flow_init(&flows[f], &group);
}

START_TEST(a_low_flow_progresses_among_many_high_ones)
{
    struct sim_client *low = sim_flood(&flows[0], FA_PRIORITY_LOW), *high[8];
    uint64_t before = 0, last = 0, most = 0;

    for (unsigned c = 0; c < 8; c++)
        high[c] = sim_flood(&flows[1 + c], FA_PRIORITY_HIGH);
    for (int i = 0; i < 100000; i++) {
        uint64_t others = 0;
        sim_run(25 * US);
        for (unsigned c = 0; c < 8; c++)
            others += high[c]->launches;
        /* At first it was alone and took all places. */
        if (low->launches > 2 * STREAMS + 1 && others - last > most)
            most = others - last;
        if (low->launches != before)
            last = others;
        before = low->launches;
    }
    /* For a range of LOW's each of the others has 16, and one that is overdrawn; and it may have to
     * wait for what is ahead of it on the streams. */
    ck_assert_uint_le(most, 8 * (16 + 1) + 2 * STREAMS);
    ck_assert_uint_ge(low->launches, 100000 * 25 * US * STREAMS / RANGE / (1 + 8 * 16) - 1);
    sim_end();
}
END_TEST

static uint64_t a_long_while(struct sim_client *client)
{
    (void)client;
    return 20 * MS + (uint64_t)random() % (10 * MS);
}

/* At any moment, among many. At most two ranges are ahead on the stream that it gets. */
START_TEST(a_small_job_of_one_who_asks_little_goes_first)
{
    struct sim_client *client;

    srandom((unsigned)_i);
    for (unsigned f = 0; f < FLOODS; f++)
        sim_flood(&flows[f], FA_PRIORITY_NORMAL);
    sim_run(10 * MS);
    client = sim_add(&flows[FLOODS], FA_PRIORITY_NORMAL, 20e3);
    client->think_ns = a_long_while;
    sim_run(50 * MS); /* it has been here a round */
    ck_assert_uint_ge(client->done, 1);
    client->longest_ns = 0;
    sim_run(3000 * MS);
    ck_assert_uint_ge(client->done, 50);
    ck_assert_uint_le(client->longest_ns, 2 * RANGE);
    sim_end();
}
END_TEST

static uint64_t reconnects_later(struct sim_client *client)
{
    fad_flow_init(client->flow, client->flow->group);
    return a_long_while(client);
}

START_TEST(a_first_job_waits_for_one_range_of_each)
{
    struct sim_client *client;

    srandom((unsigned)_i);
    for (unsigned f = 0; f < FLOODS; f++)
        sim_flood(&flows[f], FA_PRIORITY_NORMAL);
    sim_run(10 * MS);
    client = sim_add(&flows[FLOODS], FA_PRIORITY_NORMAL, 20e3);
    client->think_ns = reconnects_later;
    sim_run(3000 * MS);
    ck_assert_uint_ge(client->done, 50);
    /* It begins with a range's debt, and each of the others may overdraw a range. */
    ck_assert_uint_le(client->longest_ns, 2 * RANGE + FLOODS * 2 * RANGE / STREAMS);
    sim_end();
}
END_TEST

START_TEST(those_who_ask_little_wait_only_for_each_other)
{
    struct sim_client *clients[8];

    sim_flood(&flows[8], FA_PRIORITY_NORMAL);
    for (unsigned c = 0; c < 8; c++) {
        clients[c] = sim_add(&flows[c], FA_PRIORITY_NORMAL, 20e3);
        clients[c]->think_ns = a_long_while;
    }
    srandom((unsigned)_i);
    sim_run(2000 * MS);
    for (unsigned c = 0; c < 8; c++) {
        ck_assert_uint_ge(clients[c]->done, 50);
        ck_assert_uint_le(clients[c]->longest_ns, 2 * RANGE + 8 * 20 * US);
    }
    sim_end();
}
END_TEST

static uint64_t a_moment(struct sim_client *client)
{
    (void)client;
    return 20 * US;
}

START_TEST(equals_with_small_jobs_are_served_in_order)
{
    struct sim_client *clients[16];

    for (unsigned c = 0; c < 16; c++) {
        clients[c] = sim_add(&flows[c], FA_PRIORITY_NORMAL, 20e3);
        clients[c]->think_ns = a_moment;
    }
    sim_run(1000 * MS);
    for (unsigned c = 0; c < 16; c++) {
        ck_assert_uint_ge(clients[c]->done, 6200); /* of 6250 */
        ck_assert_uint_le(clients[c]->longest_ns, 16 * 20 * US);
    }
    sim_end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler_waits");
    TCase *tests = tcase_create("waits");

    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, a_low_flow_progresses_among_many_high_ones);
    tcase_add_loop_test(tests, a_small_job_of_one_who_asks_little_goes_first, 1, 4);
    tcase_add_loop_test(tests, a_first_job_waits_for_one_range_of_each, 1, 4);
    tcase_add_loop_test(tests, those_who_ask_little_wait_only_for_each_other, 1, 4);
    tcase_add_test(tests, equals_with_small_jobs_are_served_in_order);
    suite_add_tcase(suite, tests);
    return suite;
}
