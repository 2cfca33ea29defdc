/* Who gets how much of a device, in virtual time: clients of all sizes, wrongly judged, pausing and
 * coming anew. A failure prints the test's name and its seed: "name:seed". */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/simulation.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>

#define US 1000ull
#define MS 1000000ull

/* What a range should take, and what is kept at most of one's time (of NORMAL). */
#define RANGE (250 * US)
#define KEPT  (250 * US)

#define STREAMS 2

static struct fad_group groups[2];
static struct fad_flow flows[12];

static void setup(void)
{
    sim_begin(STREAMS);
    for (unsigned g = 0; g < 2; g++)
        fad_group_init(&groups[g]);
    for (unsigned f = 0; f < 12; f++)
        fad_flow_init(&flows[f], &groups[0]);
}

/* Jobs from 10 us to 10 ms, judged up to ten times too short or long. */
static struct sim_client *any_flood(struct fad_flow *flow, enum fa_priority priority)
{
    double job_ns = sim_random_log(10e3, 10e6);
    double unit_ns = sim_random_log(5e3, 50e3);
    struct sim_client *client = sim_add(flow, priority, unit_ns < job_ns ? unit_ns : job_ns);

    client->units = (uint32_t)(job_ns / client->unit_ns);
    client->misjudged = sim_random_log(0.1, 10);
    return sim_backlog(client);
}

static void assert_within_1_percent(double is, double should_be)
{
    ck_assert_msg(fabs(is / should_be - 1) < 0.01, "%g instead of %g", is, should_be);
}

START_TEST(backlogged_flows_share_equally)
{
    struct sim_client *clients[8];
    double all = 0;

    srandom((unsigned)_i);
    for (unsigned c = 0; c < 8; c++)
        clients[c] = any_flood(&flows[c], FA_PRIORITY_NORMAL);
    clients[0]->units = 1; /* whatever the seed: a thousand times apart, misjudged both ways */
    clients[0]->unit_ns = 10e3;
    clients[0]->misjudged = 10;
    sim_backlog(clients[0]);
    clients[1]->units = 1000;
    clients[1]->unit_ns = 10e3;
    clients[1]->misjudged = 0.1;
    sim_run(8000 * MS);
    for (unsigned c = 0; c < 8; c++)
        all += clients[c]->used_ns;
    assert_within_1_percent(all, STREAMS * 8000.0 * MS);
    for (unsigned c = 0; c < 8; c++)
        assert_within_1_percent(clients[c]->used_ns, all / 8);
    sim_end();
}
END_TEST

START_TEST(weights_hold_within_a_uid)
{
    struct sim_client *clients[6];

    srandom((unsigned)_i);
    for (unsigned c = 0; c < 6; c++) /* the last three are one connection's */
        clients[c] = any_flood(&flows[c < 3 ? c : 3], (enum fa_priority)(1 + c % 3));
    sim_run(15000 * MS);
    for (unsigned c = 0; c < 6; c++) {
        static const double weights[3] = {1, 4, 16};
        assert_within_1_percent(clients[c]->used_ns, STREAMS * 15000.0 * MS * weights[c % 3] / 42);
    }
    sim_end();
}
END_TEST

START_TEST(uids_share_equally_whatever_their_connections_are)
{
    double used[2] = {0, 0};
    struct sim_client *clients[11];

    srandom((unsigned)_i);
    fad_flow_init(&flows[0], &groups[1]);
    for (unsigned c = 0; c < 11; c++)
        clients[c] = any_flood(&flows[c], c % 2 ? FA_PRIORITY_HIGH : FA_PRIORITY_LOW);
    sim_run(3000 * MS);
    for (unsigned c = 0; c < 11; c++)
        used[c == 0] += clients[c]->used_ns;
    assert_within_1_percent(used[0], STREAMS * 1500.0 * MS);
    assert_within_1_percent(used[1], STREAMS * 1500.0 * MS);
    sim_end();
}
END_TEST

START_TEST(devices_are_independent)
{
    struct sim_client *clients[4];

    srandom((unsigned)_i);
    for (unsigned c = 0; c < 4; c++) {
        clients[c] = any_flood(&flows[c / 2], FA_PRIORITY_NORMAL);
        clients[c]->device = c == 0 ? 0 : 1;
    }
    sim_run(4000 * MS);
    assert_within_1_percent(clients[0]->used_ns, STREAMS * 4000.0 * MS);
    /* The first flow's time on the other device does not count here. */
    assert_within_1_percent(clients[1]->used_ns, STREAMS * 2000.0 * MS);
    assert_within_1_percent(clients[2]->used_ns + clients[3]->used_ns, STREAMS * 2000.0 * MS);
    sim_end();
}
END_TEST

START_TEST(a_launch_costs_something)
{
    struct sim_client *tiny = sim_add(&flows[0], FA_PRIORITY_NORMAL, 100);

    tiny->depth = SIM_DEPTH_MAX;
    sim_flood(&flows[1], FA_PRIORITY_NORMAL);
    sim_run(1000 * MS);
    /* Charged 3 us each, the jobs would take half of the device; they do in a thirtieth of that. */
    assert_within_1_percent((double)tiny->done, STREAMS * 1000.0 * MS / (3000 + 100));
    sim_end();
}
END_TEST

static uint64_t a_moment(struct sim_client *client)
{
    (void)client;
    return 20 * US;
}

START_TEST(one_job_in_flight_is_enough_for_a_fair_share)
{
    static const uint32_t units[3] = {25, 100, 1000}; /* a range, four, forty */
    struct sim_client *client = sim_add(&flows[5], FA_PRIORITY_NORMAL, 10e3);

    client->units = units[_i];
    client->think_ns = a_moment;
    for (unsigned f = 0; f < 5; f++)
        sim_flood(&flows[f], FA_PRIORITY_NORMAL);
    sim_run(6000 * MS);
    assert_within_1_percent(client->used_ns, STREAMS * 1000.0 * MS);
    sim_end();
}
END_TEST

static uint64_t any_pause(struct sim_client *client)
{
    client->units = (uint32_t)sim_random_log(1, 300);
    return random() % 2 ? 0 : (uint64_t)sim_random_log(1e3, 20e6);
}

START_TEST(nobody_gains_by_pausing)
{
    struct sim_client *client, *other;

    srandom((unsigned)_i);
    client = sim_add(&flows[0], FA_PRIORITY_NORMAL, 10e3);
    client->misjudged = sim_random_log(0.1, 10);
    client->depth = 1 + (uint32_t)random() % 4;
    client->think_ns = any_pause;
    other = any_flood(&flows[1], FA_PRIORITY_NORMAL);
    any_flood(&flows[2], FA_PRIORITY_NORMAL);
    for (int i = 0; i < 2000; i++) {
        sim_run((uint64_t)sim_random_log(1e3, 10e6));
        if (random() % 3 == 0)
            sim_give_up(client);
        /* What is kept, and on every place a range judged ten times too short, of both. */
        ck_assert_double_lt(client->used_ns,
                            other->used_ns + KEPT + 2 * 10.0 * RANGE * 2 * STREAMS);
    }
    sim_end();
}
END_TEST

static uint64_t a_second(struct sim_client *client)
{
    (void)client;
    return 1000 * MS;
}

START_TEST(a_pause_is_not_saved_up)
{
    struct sim_client *idle = sim_add(&flows[0], FA_PRIORITY_NORMAL, 10e3);
    struct sim_client *other = sim_flood(&flows[1], FA_PRIORITY_NORMAL);
    double before;

    idle->think_ns = a_second;
    sim_run(990 * MS);
    before = other->used_ns;
    sim_flood(&flows[0], FA_PRIORITY_NORMAL);
    sim_run(100 * MS);
    /* What is kept, and a range that each overdraws. */
    ck_assert_double_ge(other->used_ns - before, STREAMS * 50.0 * MS - KEPT - 2 * RANGE);
    sim_end();
}
END_TEST

START_TEST(ranges_become_as_long_as_they_should_whatever_was_estimated)
{
    static const double misjudged[4] = {0.01, 0.1, 10, 100};
    struct sim_client *client = sim_add(&flows[0], FA_PRIORITY_NORMAL, 1e3);

    client->units = 1000000; /* a second, so that the first ranges do not count */
    client->misjudged = misjudged[_i];
    sim_run(400 * MS);
    client->used_ns = 0;
    client->launches = 0;
    sim_run(50 * MS);
    ck_assert_double_gt(client->used_ns / (double)client->launches, 0.95 * RANGE);
    ck_assert_double_le(client->used_ns / (double)client->launches, RANGE);
    sim_end();
}
END_TEST

static uint64_t reconnects(struct sim_client *client)
{
    fad_flow_init(client->flow, client->flow->group);
    return 0;
}

START_TEST(short_lived_connections_do_not_keep_a_long_one_from_its_turns)
{
    struct sim_client *steady = sim_flood(&flows[0], FA_PRIORITY_NORMAL);

    for (unsigned c = 0; c < 8; c++) {
        struct sim_client *client = sim_add(&flows[1 + c], FA_PRIORITY_NORMAL, 200e3);
        client->think_ns = reconnects;
    }
    sim_run(1000 * MS);
    ck_assert_double_ge(steady->used_ns, STREAMS * 1000.0 * MS / 9);
    sim_end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler_shares");
    TCase *tests = tcase_create("shares");

    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_loop_test(tests, backlogged_flows_share_equally, 1, 5);
    tcase_add_loop_test(tests, weights_hold_within_a_uid, 1, 5);
    tcase_add_loop_test(tests, uids_share_equally_whatever_their_connections_are, 1, 5);
    tcase_add_loop_test(tests, devices_are_independent, 1, 5);
    tcase_add_test(tests, a_launch_costs_something);
    tcase_add_loop_test(tests, one_job_in_flight_is_enough_for_a_fair_share, 0, 3);
    tcase_add_loop_test(tests, nobody_gains_by_pausing, 1, 11);
    tcase_add_test(tests, a_pause_is_not_saved_up);
    tcase_add_loop_test(tests, ranges_become_as_long_as_they_should_whatever_was_estimated, 0, 4);
    tcase_add_test(tests, short_lived_connections_do_not_keep_a_long_one_from_its_turns);
    suite_add_tcase(suite, tests);
    return suite;
}
