/* What is noted of forwards: in which row, and what of it. */
#include "daemon/connection/statistics.h"
#include "tests/helpers/test.h"

static struct fad_statistics statistics;
static const struct fa_version *versions;
static size_t version_count;

static void setup(void)
{
    versions = fa_versions(&version_count);
    ck_assert_int_eq(fad_statistics_init(&statistics, 5000), 0);
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

static const struct fad_statistics_row *row_of(const struct fa_version *version,
                                               enum fa_dtype dtype)
{
    for (size_t i = 0; i < statistics.row_count; i++)
        if (statistics.rows[i].version == version && statistics.rows[i].dtype == dtype)
            return &statistics.rows[i];
    ck_abort_msg("no such row");
    return NULL;
}

/* Every version and data type has a row of its own, and nothing else is touched. */
START_TEST(notes_in_its_row)
{
    ck_assert_uint_eq(statistics.started_ns, 5000);
    ck_assert_uint_eq(statistics.row_count, 3 * version_count + 1);
    for (size_t v = 0; v < version_count; v++) {
        for (int dtype = 1; dtype <= 3; dtype++) {
            struct fad_outcome outcome = outcome_of(&versions[v], FA_OK);

            outcome.dtype = (enum fa_dtype)dtype;
            for (size_t i = 0; i < 3 * v + (size_t)dtype; i++)
                fad_statistics_note(&statistics, &outcome);
        }
    }
    for (size_t v = 0; v < version_count; v++)
        for (int dtype = 1; dtype <= 3; dtype++)
            ck_assert_uint_eq(row_of(&versions[v], (enum fa_dtype)dtype)->counters.requests,
                              3 * v + (size_t)dtype);
    ck_assert_uint_eq(row_of(NULL, (enum fa_dtype)0)->counters.requests, 0);
}
END_TEST

START_TEST(notes_successes)
{
    struct fad_outcome outcome = outcome_of(&versions[0], FA_OK);
    const struct fad_statistics_row *row = row_of(&versions[0], FA_DTYPE_FLOAT32);

    fad_statistics_note(&statistics, &outcome);
    outcome.queue_ns = 40, outcome.transfer_ns = 50, outcome.kernel_ns = 60, outcome.total_ns = 150;
    fad_statistics_note(&statistics, &outcome);
    ck_assert_uint_eq(row->counters.requests, 2);
    ck_assert_uint_eq(row->counters.by_status[FA_OK], 2);
    ck_assert_uint_eq(row->counters.received_bytes, 2000);
    ck_assert_uint_eq(row->counters.sent_bytes, 20);
    ck_assert(row->queue.count == 2 && row->queue.sum == 41 && row->queue.max == 40);
    ck_assert(row->transfer.count == 2 && row->transfer.sum == 52 && row->transfer.max == 50);
    ck_assert(row->kernel.count == 2 && row->kernel.sum == 63 && row->kernel.max == 60);
    ck_assert(row->total.count == 2 && row->total.sum == 156 && row->total.max == 150);
}
END_TEST

/* Errors of every kind that travels are counted, and have no times. */
START_TEST(notes_errors)
{
    static struct fad_tally tally;
    const struct fad_statistics_row *row = row_of(&versions[1], FA_DTYPE_FLOAT32);

    ck_assert_int_eq(FAD_STATUS_COUNTS, FA_INTERNAL + 1);
    for (int status = 1; status <= FA_INTERNAL; status++) {
        struct fad_outcome outcome = outcome_of(&versions[1], (enum fa_status)status);

        for (int i = 0; i < status; i++) {
            fad_statistics_note(&statistics, &outcome);
            fad_tally_note(&tally, &outcome);
        }
    }
    for (int status = 0; status <= FA_INTERNAL; status++) {
        ck_assert_uint_eq(row->counters.by_status[status], (uint64_t)status);
        ck_assert_uint_eq(tally.counters.by_status[status], (uint64_t)status);
    }
    ck_assert_uint_eq(row->counters.requests, 105);
    ck_assert_uint_eq(row->counters.received_bytes, 105000);
    ck_assert_uint_eq(row->queue.count + row->transfer.count + row->kernel.count, 0);
    ck_assert_uint_eq(row->total.count + tally.total.count, 0);
}
END_TEST

START_TEST(notes_refusals)
{
    struct fad_outcome outcome = {.dtype = (enum fa_dtype)77, .status = FA_INVALID_ARGUMENT};
    const struct fad_statistics_row *row = row_of(NULL, (enum fa_dtype)0);

    fad_statistics_note(&statistics, &outcome);
    ck_assert_uint_eq(row->counters.requests, 1);
    ck_assert_uint_eq(row->counters.by_status[FA_INVALID_ARGUMENT], 1);
}
END_TEST

START_TEST(notes_in_a_tally)
{
    static struct fad_tally tally;
    struct fad_outcome outcome = outcome_of(&versions[0], FA_OK);

    fad_tally_note(&tally, &outcome);
    outcome = outcome_of(NULL, FA_CANCELLED);
    fad_tally_note(&tally, &outcome);
    ck_assert_uint_eq(tally.counters.requests, 2);
    ck_assert_uint_eq(tally.counters.by_status[FA_OK], 1);
    ck_assert_uint_eq(tally.counters.by_status[FA_CANCELLED], 1);
    ck_assert_uint_eq(tally.counters.received_bytes, 2000);
    ck_assert(tally.total.count == 1 && tally.total.sum == 6);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("statistics");
    TCase *tcase = tcase_create("statistics");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, notes_in_its_row);
    tcase_add_test(tcase, notes_successes);
    tcase_add_test(tcase, notes_errors);
    tcase_add_test(tcase, notes_refusals);
    tcase_add_test(tcase, notes_in_a_tally);
    suite_add_tcase(suite, tcase);
    return suite;
}
