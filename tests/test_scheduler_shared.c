/* A shared device in virtual time: who gets how much of it, and who waits how long. A failure
 * prints the test's name and a number whose lowest bit says whether the device serves long ranges
 * one after another; the rest is the seed or the case: "name:number". */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/simulation.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>

#define US 1000ull
#define MS 1000000ull

#define STREAMS 6
#define EXPRESS 2

/* What a range should take. */
#define RANGE (250 * US)

static struct fad_group groups[3];
static struct fad_flow flows[12]; /* flow f is of group f % 3 */

static void begin(int number)
{
    sim_begin_shared(STREAMS, EXPRESS, number % 2 != 0);
    srandom((unsigned)number / 2);
    for (unsigned g = 0; g < 3; g++)
        fad_group_init(&groups[g]);
    for (unsigned f = 0; f < 12; f++)
        fad_flow_init(&flows[f], &groups[f % 3]);
}

/* Jobs of 200 ms, of units of 10 us that fill a hundredth of the device each, and so take 1 ms. */
static struct sim_client *add_hog(struct fad_flow *flow, enum fa_priority priority)
{
    struct sim_client *client = sim_add(flow, priority, 10e3);

    client->units = 20000;
    client->fills = 0.01;
    client->depth = 8;
    return client;
}

/* Jobs of one unit: too many to wait for any. */
static struct sim_client *add_shorts(struct fad_flow *flow, enum fa_priority priority, double ns)
{
    struct sim_client *client = sim_add(flow, priority, ns);

    client->depth = 64;
    return client;
}

static uint64_t a_while(struct sim_client *client)
{
    (void)client;
    return 1 * MS + (uint64_t)random() % (9 * MS);
}

static void assert_near(const char *what, double is, double should_be, double part)
{
    ck_assert_msg(fabs(is / should_be - 1) <= part, "%s: %g instead of %g", what, is, should_be);
}

/* --- Waits ----------------------------------------------------------------------------------- */

START_TEST(an_occasional_short_work_goes_at_once_beside_hogs)
{
    struct sim_client *client;

    begin(_i);
    for (unsigned f = 0; f < 5; f++)
        if (f % 3 != 2)
            add_hog(&flows[f], FA_PRIORITY_HIGH);
    sim_run(20 * MS);
    client = sim_add(&flows[5], FA_PRIORITY_LOW, 20e3); /* alone in its group */
    client->fills = _i / 2 ? 0.1 : 1;                   /* 20 us, or 200 since it fills a tenth */
    client->think_ns = a_while;
    sim_run(3000 * MS);
    ck_assert_uint_ge(client->done, 400);
    ck_assert_uint_le(client->slowest_ns, (uint64_t)(20e3 / client->fills) + 5 * US);
    sim_end();
}
END_TEST

/* Of a uid that has a hog itself, while another uid has one, too. */
START_TEST(an_occasional_short_work_does_not_pay_for_its_own_uids_hog)
{
    struct sim_client *client;

    begin(_i);
    add_hog(&flows[0], FA_PRIORITY_NORMAL);
    add_hog(&flows[1], FA_PRIORITY_NORMAL);
    sim_run(20 * MS);
    client = sim_add(&flows[3], FA_PRIORITY_NORMAL, 20e3);
    client->think_ns = a_while;
    sim_run(3000 * MS);
    ck_assert_uint_ge(client->done, 400);
    ck_assert_uint_le(client->slowest_ns, 25 * US);
    sim_end();
}
END_TEST

/* Works of 200 us, whose units take a millisecond. Eight ranges are ahead on the streams, some of
 * them longer than they should be, on trial. */
START_TEST(works_between_the_two_wait_for_few_ranges)
{
    struct sim_client *client;

    begin(_i);
    add_hog(&flows[0], FA_PRIORITY_NORMAL);
    add_hog(&flows[1], FA_PRIORITY_NORMAL);
    sim_run(20 * MS);
    client = sim_add(&flows[2], FA_PRIORITY_NORMAL, 10e3);
    client->units = 20; /* 200 us: long */
    client->fills = 0.01;
    client->think_ns = a_while;
    sim_run(3000 * MS);
    ck_assert_uint_ge(client->done, 300);
    ck_assert_uint_le(client->slowest_ns, 8 * 4 * RANGE);
    sim_end();
}
END_TEST

/* --- Shares ---------------------------------------------------------------------------------- */

/* Short works that fill the device, that fill half of it each, and whose estimates are off. */
START_TEST(a_flood_of_short_works_and_a_hog_share_equally)
{
    static const struct {
        double ns, fills, misjudged, hog_misjudged;
    } cases[] = {
        {20e3, 1, 1, 1},   {20e3, 0.5, 1, 1}, {90e3, 1, 1, 1}, {5e3, 0.5, 1, 1},
        {20e3, 1, 1, 0.2}, {20e3, 1, 1, 5},   {20e3, 1, 2, 1},
    };
    struct sim_client *shorts, *hog;

    begin(_i);
    shorts = add_shorts(&flows[0], FA_PRIORITY_HIGH, cases[_i / 2].ns);
    shorts->fills = cases[_i / 2].fills;
    shorts->misjudged = cases[_i / 2].misjudged;
    hog = add_hog(&flows[1], FA_PRIORITY_LOW);
    hog->misjudged = cases[_i / 2].hog_misjudged;
    sim_run(4000 * MS);
    assert_near("shorts", shorts->used_ns, 2000.0 * MS, 0.1);
    assert_near("hog", hog->used_ns, 2000.0 * MS, 0.1);
    sim_end();
}
END_TEST

/* Two at a time, which use a fifth of the device: within their share, they are never held back. */
START_TEST(what_short_works_cannot_use_is_the_hogs)
{
    struct sim_client *shorts, *hog;

    begin(_i);
    shorts = add_shorts(&flows[0], FA_PRIORITY_NORMAL, 2e3);
    shorts->fills = 0.1;
    hog = add_hog(&flows[1], FA_PRIORITY_NORMAL);
    sim_run(2000 * MS);
    assert_near("shorts", shorts->used_ns, 400.0 * MS, 0.02);
    assert_near("hog", hog->used_ns, 1600.0 * MS, 0.02);
    sim_end();
}
END_TEST

START_TEST(several_of_each_share_equally)
{
    struct sim_client *clients[5];

    begin(_i);
    for (unsigned c = 0; c < 5; c++)
        clients[c] = c < 2 ? add_shorts(&flows[3 * (c % 4)], FA_PRIORITY_NORMAL, c ? 30e3 : 10e3)
                           : add_hog(&flows[3 * (c % 4)], FA_PRIORITY_NORMAL);
    fad_flow_init(&flows[1], &groups[0]);
    clients[4]->flow = &flows[1];
    sim_run(5000 * MS);
    for (unsigned c = 0; c < 5; c++)
        assert_near(c < 2 ? "shorts" : "hog", clients[c]->used_ns, 1000.0 * MS, 0.1);
    sim_end();
}
END_TEST

/* Jobs of 5 to 200 ms, of units of 1 to 10 us. */
START_TEST(two_hogs_share_equally)
{
    struct sim_client *clients[2];

    begin(_i);
    for (unsigned c = 0; c < 2; c++) {
        clients[c] = add_hog(&flows[c], c ? FA_PRIORITY_HIGH : FA_PRIORITY_LOW);
        clients[c]->unit_ns = sim_random_log(1e3, 10e3);
        clients[c]->units = (uint32_t)(sim_random_log(5e6, 200e6) / clients[c]->unit_ns);
    }
    sim_run(4000 * MS);
    assert_near("a hog", clients[0]->used_ns, 2000.0 * MS, 0.05);
    assert_near("another", clients[1]->used_ns, 2000.0 * MS, 0.05);
    sim_end();
}
END_TEST

/* The ranges of one grow to several times those of the other, which wait behind them. */
START_TEST(hogs_with_unlike_ranges_share_equally)
{
    struct sim_client *clients[2];

    begin(1);
    for (unsigned c = 0; c < 2; c++) {
        clients[c] = add_hog(&flows[c], FA_PRIORITY_NORMAL);
        clients[c]->unit_ns = c ? 50e3 : 2e3;
        clients[c]->units = (uint32_t)(1e9 / clients[c]->unit_ns);
    }
    sim_run(8000 * MS);
    assert_near("of short ranges", clients[0]->used_ns, 4000.0 * MS, 0.1);
    assert_near("of long ranges", clients[1]->used_ns, 4000.0 * MS, 0.1);
    sim_end();
}
END_TEST

/* When all of its ranges are under way there is still one whose turn the short works may not
 * take. */
START_TEST(one_hogs_job_at_a_time_beside_a_flood_has_its_half)
{
    static const uint32_t units[3] = {40, 100, 1000};
    struct sim_client *shorts, *hog;

    begin(_i);
    shorts = add_shorts(&flows[0], FA_PRIORITY_HIGH, 20e3);
    hog = add_hog(&flows[_i / 6 ? 3 : 1], FA_PRIORITY_HIGH);
    hog->depth = 1;
    hog->units = units[_i / 2 % 3];
    hog->fills = 1;
    sim_run(2000 * MS);
    assert_near("shorts", shorts->used_ns, 1000.0 * MS, 0.1);
    assert_near("hog", hog->used_ns, 1000.0 * MS, 0.1);
    sim_end();
}
END_TEST

/* Bit p of the case: whether the flow of priority p + 1 has short works. */
START_TEST(weights_hold_between_short_and_long)
{
    static const double weights[3] = {1, 4, 16};
    struct sim_client *clients[3];

    begin(_i);
    for (unsigned c = 0; c < 3; c++)
        clients[c] = _i / 2 >> c & 1 ? add_shorts(&flows[0], (enum fa_priority)(c + 1), 20e3)
                                     : add_hog(&flows[3], (enum fa_priority)(c + 1));
    sim_run(10000 * MS);
    for (unsigned c = 0; c < 3; c++)
        assert_near(c == 0   ? "low"
                    : c == 1 ? "normal"
                             : "high",
                    clients[c]->used_ns, 10000.0 * MS * weights[c] / 21, 0.1);
    sim_end();
}
END_TEST

/* --- Use of the device ----------------------------------------------------------------------- */

/* Units that take 0.2 to 12.8 ms by themselves; estimates that are off. */
START_TEST(a_single_work_fills_the_device)
{
    static const struct {
        double unit_ns, misjudged;
    } cases[] = {{2e3, 1},    {10e3, 1}, {50e3, 1},   {128e3, 1},
                 {10e3, 0.5}, {10e3, 2}, {30e3, 1.5}, {50e3, 4}};
    struct sim_client *hog;

    begin(_i);
    hog = add_hog(&flows[0], FA_PRIORITY_NORMAL);
    hog->depth = 1;
    hog->unit_ns = cases[_i / 2].unit_ns;
    hog->misjudged = cases[_i / 2].misjudged;
    hog->units = (uint32_t)(40e9 / hog->unit_ns); /* it does not end */
    sim_run(1000 * MS);
    assert_near("the first second", hog->used_ns, 1000.0 * MS, 0.15);
    hog->used_ns = 0;
    hog->launches = 0;
    sim_run(4000 * MS);
    assert_near("the others", hog->used_ns, 4000.0 * MS, 0.04);
    ck_assert_double_lt(hog->used_ns / (double)hog->launches, 4.1 * MS);
    sim_end();
}
END_TEST

/* What is slow grows once, not for ever. */
START_TEST(ranges_of_a_slow_device_do_not_grow_for_ever)
{
    struct sim_client *hog;

    begin(_i);
    hog = add_hog(&flows[0], FA_PRIORITY_NORMAL);
    hog->unit_ns = 1e3;
    hog->units = 10000000;
    hog->misjudged = 0.5;
    sim_run(1000 * MS);
    hog->used_ns = 0;
    hog->launches = 0;
    sim_run(4000 * MS);
    ck_assert_double_lt(hog->used_ns / (double)hog->launches, 6.0 * RANGE);
    sim_end();
}
END_TEST

START_TEST(an_in_order_hog_has_its_share)
{
    struct sim_client *shorts, *hog;

    begin(_i);
    shorts = add_shorts(&flows[0], FA_PRIORITY_NORMAL, 20e3);
    hog = add_hog(&flows[1], FA_PRIORITY_NORMAL);
    hog->depth = 1;
    hog->in_order = true;
    hog->fills = 0.04;
    sim_run(2000 * MS);
    assert_near("shorts", shorts->used_ns, 1000.0 * MS, 0.1);
    assert_near("hog", hog->used_ns, 1000.0 * MS, 0.1);
    sim_end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler_shared");
    TCase *tests = tcase_create("shared");

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, an_occasional_short_work_goes_at_once_beside_hogs, 0, 4);
    tcase_add_loop_test(tests, an_occasional_short_work_does_not_pay_for_its_own_uids_hog, 0, 4);
    tcase_add_loop_test(tests, works_between_the_two_wait_for_few_ranges, 0, 2);
    tcase_add_loop_test(tests, a_flood_of_short_works_and_a_hog_share_equally, 0, 14);
    tcase_add_loop_test(tests, what_short_works_cannot_use_is_the_hogs, 0, 2);
    tcase_add_loop_test(tests, several_of_each_share_equally, 0, 2);
    tcase_add_loop_test(tests, two_hogs_share_equally, 0, 12);
    tcase_add_test(tests, hogs_with_unlike_ranges_share_equally);
    tcase_add_loop_test(tests, one_hogs_job_at_a_time_beside_a_flood_has_its_half, 0, 12);
    tcase_add_loop_test(tests, weights_hold_between_short_and_long, 0, 16);
    tcase_add_loop_test(tests, a_single_work_fills_the_device, 0, 16);
    tcase_add_loop_test(tests, ranges_of_a_slow_device_do_not_grow_for_ever, 0, 2);
    tcase_add_loop_test(tests, an_in_order_hog_has_its_share, 0, 2);
    suite_add_tcase(suite, tests);
    return suite;
}
