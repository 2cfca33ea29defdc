/* What a daemon that starts anew hands on, by itself: its losses, and its counts. */
#include "daemon/connection/carried.h"
#include "daemon/server/handover.h"
#include "daemon/util/log.h"
#include "tests/helpers/test.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- Losses ----------------------------------------------------------------------------------- */

#define SECOND UINT64_C(1000000000)

START_TEST(five_losses_in_a_minute_are_not_too_many)
{
    struct fad_losses losses = {0};

    for (uint64_t i = 1; i <= 5; i++)
        ck_assert(fad_losses_note(&losses, 100 * SECOND + i));
    ck_assert(!fad_losses_note(&losses, 160 * SECOND + 1));
    ck_assert_uint_eq(losses.count, 6);
    ck_assert_uint_eq(losses.recent[0], 160 * SECOND + 1);
    ck_assert_uint_eq(losses.recent[FAD_LOSSES_MAX - 1], 100 * SECOND + 2);
    ck_assert(fad_losses_note(&losses, 160 * SECOND + 3));
}
END_TEST

START_TEST(any_number_is_not_too_many_if_slow)
{
    struct fad_losses losses = {0};

    for (uint64_t i = 1; i <= 100; i++)
        ck_assert(fad_losses_note(&losses, i * (12 * SECOND + 1)));
    ck_assert_uint_eq(losses.count, 100);
}
END_TEST

/* --- Counts ----------------------------------------------------------------------------------- */

static struct fad_statistics statistics;
static struct fad_users users;
static struct fad_account account;

static void setup(void)
{
    static const struct fad_amounts limit;

    fad_account_init(&account, "the daemon", NULL, false, &limit);
    fad_users_init(&users, &account, &limit);
    ck_assert_int_eq(fad_statistics_init(&statistics, 5), 0);
}

static void teardown(void)
{
    fad_users_deinit(&users);
    fad_statistics_deinit(&statistics);
}

/* Something in every row, and most users that there may be. */
static void fill(void)
{
    for (size_t i = 0; i < statistics.row_count; i++)
        for (uint64_t n = 0; n <= i; n++) {
            const struct fad_outcome outcome = {.version = statistics.rows[i].version,
                                                .dtype = statistics.rows[i].dtype,
                                                .status = n % 2 ? FA_DEVICE_LOST : FA_OK,
                                                .received_bytes = 7,
                                                .queue_ns = n,
                                                .total_ns = i * n};
            fad_statistics_note(&statistics, &outcome);
        }
    statistics.lost = 3;
    for (uid_t uid = 1; uid <= FAD_USERS_IDLE_MAX; uid++) {
        struct fad_tally tally = {.counters.requests = uid};
        fa_histogram_add(&tally.total, uid);
        ck_assert(fad_user_remember(&users, uid, &tally));
    }
}

START_TEST(counts_come_through)
{
    struct fad_statistics before;
    const struct fad_user *user;
    struct fa_error error;
    uid_t uid = FAD_USERS_IDLE_MAX;
    int fd;

    fill();
    fd = fad_carried_write(&statistics, &users);
    ck_assert_int_ge(fd, 0);
    ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    before = statistics;
    fad_users_deinit(&users);
    ck_assert_int_eq(fad_statistics_init(&statistics, 99), 0);
    ck_assert_int_eq(fad_carried_read(fd, &statistics, &users, &error), FA_OK);
    ck_assert_uint_eq(statistics.started_ns, 5);
    ck_assert_uint_eq(statistics.lost, 3);
    ck_assert_int_eq(memcmp(statistics.rows, before.rows, before.row_count * sizeof before.rows[0]),
                     0);
    TAILQ_FOREACH (user, &users.list, link) {
        ck_assert_uint_eq(user->uid, uid);
        ck_assert_uint_eq(user->tally.counters.requests, uid);
        ck_assert_uint_eq(user->tally.total.count, 1);
        uid--;
    }
    ck_assert_uint_eq(uid, 0);
    ck_assert_uint_eq(users.idle, FAD_USERS_IDLE_MAX);
    fad_statistics_deinit(&before);
    close(fd);
}
END_TEST

/* Nothing of it is taken. */
static void expect_refused(int fd)
{
    struct fa_error error = {.status = FA_OK};

    ck_assert_int_ne(fad_carried_read(fd, &statistics, &users, &error), FA_OK);
    ck_assert(error.text[0]);
    ck_assert_uint_eq(statistics.started_ns, 5);
    ck_assert(TAILQ_EMPTY(&users.list));
    close(fd);
}

/* A sealed one whose bytes at an offset are changed. */
static int changed(size_t offset, size_t extra)
{
    const int from = fad_carried_write(&statistics, &users);
    const int to = memfd_create("fad-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    static char bytes[4 << 20];
    struct stat info;

    ck_assert(from >= 0 && to >= 0);
    ck_assert_int_eq(fstat(from, &info), 0);
    ck_assert_uint_lt((size_t)info.st_size + extra, sizeof bytes);
    ck_assert_int_eq(read(from, bytes, (size_t)info.st_size), info.st_size);
    bytes[offset] ^= 1;
    ck_assert_int_eq(write(to, bytes, (size_t)info.st_size + extra), info.st_size + (ssize_t)extra);
    ck_assert_int_eq(fcntl(to, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    close(from);
    return to;
}

START_TEST(what_is_no_counts_is_refused)
{
    int pair[2];

    ck_assert_int_eq(pipe(pair), 0);
    expect_refused(pair[0]);
    close(pair[1]);
    expect_refused(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    expect_refused(memfd_create("fad-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    expect_refused(changed(0, 0));  /* the magic */
    expect_refused(changed(16, 0)); /* the version */
    expect_refused(changed(2048, 1));
    expect_refused(-1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("handover");
    TCase *losses = tcase_create("losses"), *counts = tcase_create("counts");

    tcase_add_test(losses, five_losses_in_a_minute_are_not_too_many);
    tcase_add_test(losses, any_number_is_not_too_many_if_slow);
    suite_add_tcase(suite, losses);
    tcase_add_checked_fixture(counts, setup, teardown);
    tcase_add_test(counts, counts_come_through);
    tcase_add_test(counts, what_is_no_counts_is_refused);
    suite_add_tcase(suite, counts);
    return suite;
}
