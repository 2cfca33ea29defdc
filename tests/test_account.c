/* Limits at three levels under random charges and releases, against a plain model of the rules. A
 * failure prints the test's name and its seed: "name:seed". */
#include "daemon/util/account.h"
#include "tests/helpers/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UIDS        3
#define CONNECTIONS 5 /* of each */
#define CHARGES     400

static struct fad_account whole, uids[UIDS], connections[UIDS][CONNECTIONS];

static struct fad_amounts limits(uint64_t jobs, uint64_t staged, uint64_t count)
{
    return (struct fad_amounts){{[FAD_JOBS] = jobs,
                                 [FAD_STAGED] = staged,
                                 [FAD_MAPPED] = 2 * staged,
                                 [FAD_REGIONS] = jobs,
                                 [FAD_CONNECTIONS] = count}};
}

static void begin(const struct fad_amounts *all, const struct fad_amounts *uid,
                  const struct fad_amounts *connection)
{
    fad_account_init(&whole, "the daemon", NULL, false, all);
    for (unsigned u = 0; u < UIDS; u++) {
        fad_account_init(&uids[u], "the uid", &whole, false, uid);
        for (unsigned c = 0; c < CONNECTIONS; c++)
            fad_account_init(&connections[u][c], "the connection", &uids[u], true, connection);
    }
}

static void end(void)
{
    for (unsigned u = 0; u < UIDS; u++) {
        for (unsigned c = 0; c < CONNECTIONS; c++)
            fad_account_deinit(&connections[u][c]);
        fad_account_deinit(&uids[u]);
    }
    fad_account_deinit(&whole);
}

/* What is held, by the test's own books. */
struct charge {
    bool live;
    unsigned uid, connection; /* connection CONNECTIONS: the uid's own */
    struct fad_amounts amounts;
};

static struct charge charges[CHARGES];
static unsigned refused_by[4]; /* the connection's own limit, its half of the uid's, uid, daemon */

/* uid < 0: of all; connection < 0: of all of the uid's. */
static uint64_t held(int uid, int connection, int r)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < CHARGES; i++)
        if (charges[i].live && (uid < 0 || charges[i].uid == (unsigned)uid) &&
            (connection < 0 || charges[i].connection == (unsigned)connection))
            sum += charges[i].amounts.of[r];
    return sum;
}

/* The first account that must refuse, and the limit that it names; NULL: all must take it. */
static const struct fad_account *refuser(unsigned u, unsigned c, const struct fad_amounts *amounts,
                                         uint64_t *limit)
{
    const int uid = (int)u, connection = (int)c;

    for (int r = 0; c < CONNECTIONS && r < FAD_RESOURCES; r++) {
        const uint64_t own = held(uid, connection, r), others = held(uid, -1, r) - own;
        if (amounts->of[r] == 0)
            continue;
        *limit = connections[u][c].limit.of[r];
        if (own + amounts->of[r] > *limit)
            return &connections[u][c];
        *limit = (uids[u].limit.of[r] - others + 1) / 2;
        if (own + amounts->of[r] > *limit)
            return &connections[u][c];
    }
    for (int r = 0; r < FAD_RESOURCES; r++) {
        *limit = uids[u].limit.of[r];
        if (amounts->of[r] > 0 && held(uid, -1, r) + amounts->of[r] > *limit)
            return &uids[u];
    }
    for (int r = 0; r < FAD_RESOURCES; r++) {
        *limit = whole.limit.of[r];
        if (amounts->of[r] > 0 && held(-1, -1, r) + amounts->of[r] > *limit)
            return &whole;
    }
    return NULL;
}

static struct fad_account *account_of(const struct charge *charge)
{
    return charge->connection == CONNECTIONS ? &uids[charge->uid]
                                             : &connections[charge->uid][charge->connection];
}

static void assert_books(void)
{
    for (int r = 0; r < FAD_RESOURCES; r++) {
        ck_assert_uint_eq(whole.used.of[r], held(-1, -1, r));
        ck_assert_uint_le(whole.used.of[r], whole.limit.of[r]);
        for (unsigned u = 0; u < UIDS; u++) {
            ck_assert_uint_eq(uids[u].used.of[r], held((int)u, -1, r));
            ck_assert_uint_le(uids[u].used.of[r], uids[u].limit.of[r]);
            for (unsigned c = 0; c < CONNECTIONS; c++) {
                ck_assert_uint_eq(connections[u][c].used.of[r], held((int)u, (int)c, r));
                ck_assert_uint_le(connections[u][c].used.of[r], connections[u][c].limit.of[r]);
            }
        }
    }
}

/* Mostly what fits several times over; now and then more than any limit. */
static struct fad_amounts any_amounts(void)
{
    struct fad_amounts amounts = {{0}};

    for (int r = 0; r < FAD_RESOURCES; r++) {
        if (r == FAD_JOBS || r == FAD_REGIONS)
            amounts.of[r] = (uint64_t)random() % 3;
        else if (r != FAD_CONNECTIONS && random() % 2)
            amounts.of[r] = (uint64_t)random() % (random() % 10 ? 200 : 4000);
    }
    return amounts;
}

static void charge(struct charge *charge)
{
    const struct fad_account *by;
    struct fa_error error = {0};
    enum fa_status status;
    uint64_t limit;
    char named[80];

    charge->uid = (unsigned)random() % UIDS;
    charge->connection = (unsigned)random() % (CONNECTIONS + 1);
    charge->amounts = any_amounts();
    if (charge->connection == CONNECTIONS)
        charge->amounts = (struct fad_amounts){{[FAD_CONNECTIONS] = 1}};
    if (random() % 100 == 0) { /* with which the model's sums would overflow */
        charge->amounts.of[FAD_STAGED] = UINT64_MAX - (uint64_t)random() % 3;
        ck_assert_int_eq(fad_account_charge(account_of(charge), &charge->amounts, &error),
                         FA_RESOURCE_EXHAUSTED);
        return;
    }
    by = refuser(charge->uid, charge->connection, &charge->amounts, &limit);
    status = fad_account_charge(account_of(charge), &charge->amounts, &error);
    ck_assert_int_eq(status, by ? FA_RESOURCE_EXHAUSTED : FA_OK);
    charge->live = status == FA_OK;
    if (!by)
        return;
    snprintf(named, sizeof named, "%s's limit of %" PRIu64, by->name, limit);
    if (by == &whole || by == &uids[charge->uid])
        refused_by[by == &whole ? 3 : 2]++;
    else
        refused_by[strstr(error.text, "half of what others leave") != NULL]++;
    ck_assert_msg(strncmp(error.text, named, strlen(named)) == 0 &&
                      strchr(" s", error.text[strlen(named)]),
                  "\"%s\" instead of \"%s\"", error.text, named);
}

static void release(struct charge *charge)
{
    fad_account_release(account_of(charge), &charge->amounts);
    charge->live = false;
}

START_TEST(random_charges_keep_every_limit)
{
    const struct fad_amounts all = limits(40, 4000, 24), uid = limits(20, 2000, 10),
                             connection = limits(8, 800, 0);

    srandom((unsigned)_i);
    begin(&all, &uid, &connection);
    for (int i = 0; i < 5000; i++) {
        struct charge *one = &charges[random() % CHARGES];
        /* Between mostly charging and mostly releasing, so that both ends are met. */
        if (one->live)
            release(one);
        else if (i / 500 % 2 == 0 || random() % 4 == 0)
            charge(one);
        if (i % 10 == 0)
            assert_books();
    }
    for (unsigned i = 0; i < CHARGES; i++)
        if (charges[i].live)
            release(&charges[i]);
    assert_books();
    for (unsigned k = 0; k < 4; k++)
        ck_assert_msg(refused_by[k] > 0, "limit %u of 4 was never met", k);
    end();
}
END_TEST

START_TEST(a_flood_leaves_room_for_every_neighbour)
{
    const struct fad_amounts one = {{[FAD_JOBS] = 1}}, all = limits(1000, 0, 0),
                             uid = limits(64, 0, 0), connection = limits(64, 0, 0);
    unsigned taken[CONNECTIONS] = {0};
    struct fa_error error;

    begin(&all, &uid, &connection);
    for (unsigned c = 0; c < CONNECTIONS; c++)
        while (fad_account_charge(&connections[0][c], &one, &error) == FA_OK)
            taken[c]++;
    for (unsigned c = 0; c < CONNECTIONS; c++)
        ck_assert_uint_eq(taken[c], 32u >> c);
    ck_assert_ptr_nonnull(strstr(error.text, "half of what others leave of its uid's"));
    for (unsigned c = 0; c < CONNECTIONS; c++)
        while (taken[c]-- > 0)
            fad_account_release(&connections[0][c], &one);
    end();
}
END_TEST

START_TEST(a_limit_of_one_lets_one_work)
{
    const struct fad_amounts one = {{[FAD_JOBS] = 1}}, limit = limits(1, 0, 0);
    struct fa_error error;

    begin(&limit, &limit, &limit);
    ck_assert_int_eq(fad_account_charge(&connections[0][0], &one, &error), FA_OK);
    ck_assert_int_eq(fad_account_charge(&connections[0][0], &one, &error), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(error.text, "the connection's limit of 1 requests in flight"));
    ck_assert_int_eq(fad_account_charge(&connections[0][1], &one, &error), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(error.text, "half of what others leave"));
    ck_assert_int_eq(fad_account_charge(&connections[1][0], &one, &error), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(error.text, "the daemon's limit of 1 requests in flight"));
    fad_account_release(&connections[0][0], &one);
    ck_assert_int_eq(fad_account_charge(&connections[1][0], &one, &error), FA_OK);
    fad_account_release(&connections[1][0], &one);
    end();
}
END_TEST

START_TEST(connections_are_charged_to_their_uid)
{
    const struct fad_amounts one = {{[FAD_CONNECTIONS] = 1}}, all = limits(1, 0, 5),
                             few = limits(1, 0, 5);
    struct fa_error error;

    begin(&all, &few, &few);
    for (unsigned c = 0; c < CONNECTIONS; c++)
        ck_assert_int_eq(fad_account_charge(&uids[0], &one, &error), FA_OK);
    ck_assert_int_eq(fad_account_charge(&uids[0], &one, &error), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(error.text, "the uid's limit of 5 connections"));
    ck_assert_int_eq(fad_account_charge(&uids[1], &one, &error), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(error.text, "the daemon's limit of 5 connections"));
    for (unsigned c = 0; c < CONNECTIONS; c++)
        fad_account_release(&uids[0], &one);
    end();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("account");
    TCase *tests = tcase_create("limits");

    tcase_add_loop_test(tests, random_charges_keep_every_limit, 1, 11);
    tcase_add_test(tests, a_flood_leaves_room_for_every_neighbour);
    tcase_add_test(tests, a_limit_of_one_lets_one_work);
    tcase_add_test(tests, connections_are_charged_to_their_uid);
    suite_add_tcase(suite, tests);
    return suite;
}
