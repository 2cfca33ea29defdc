/* fa-cli's verdicts: what --check finds, and what a daemon that misbehaves leads to. */
#include "client/cli/parallel.h"
#include "client/cli/random.h"
#include "client/cli/request.h"
#include "client/cli/times.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- request_check ---------------------------------------------------------------------------- */

/* q and k are 0, so o is the mean of v and lse the logarithm of the number of keys; v is 1. Nothing
 * that a reference could round. */
static void make_uniform(struct request_tensors *out, uint32_t heads, uint32_t rows, uint32_t keys,
                         uint32_t dim)
{
    struct request_options options = {
        .shape = {1, heads, rows, dim}, .kv_len = keys, .kv_len_given = true, .wants_lse = true};
    struct cli_error error = {0};

    ck_assert_msg(request_tensors_init(out, &options, &error) == CLI_OK, "%s", error.text);
    for (uint64_t i = 0; i < out->count[REQUEST_Q]; i++)
        out->data[REQUEST_Q][i] = 0;
    for (uint64_t i = 0; i < out->count[REQUEST_V]; i++)
        out->data[REQUEST_V][i] = 1;
    for (uint64_t i = 0; i < out->count[REQUEST_O]; i++)
        out->data[REQUEST_O][i] = 1;
    for (uint64_t i = 0; i < out->count[REQUEST_LSE]; i++)
        out->data[REQUEST_LSE][i] = (float)log(keys);
}

static struct request_check check(const struct request_tensors *tensors)
{
    struct cli_error error = {0};
    struct request_check result;

    ck_assert_msg(request_check(tensors, &result, &error) == CLI_OK, "%s", error.text);
    return result;
}

/* Whether the check fails while one element has another value. */
static bool finds(struct request_tensors *tensors, enum request_tensor which, uint64_t index,
                  float value)
{
    float *element = &tensors->data[which][index], before = *element;
    struct request_check result;

    *element = value;
    result = check(tensors);
    *element = before;
    return !result.passed;
}

START_TEST(check_finds_any_wrong_row)
{
    const uint32_t heads = 3, rows = 200, dim = 4;
    struct request_tensors tensors;
    struct request_check result;

    make_uniform(&tensors, heads, rows, 70, dim);
    result = check(&tensors);
    ck_assert(result.passed);
    ck_assert_uint_eq(result.rows, 600);
    ck_assert_uint_eq(result.total, 600);
    for (uint64_t row = 0; row < 600; row += 13) {
        ck_assert(finds(&tensors, REQUEST_O, row * dim, 1.0001f));
        ck_assert(finds(&tensors, REQUEST_O, row * dim + 3, NAN));
        ck_assert(finds(&tensors, REQUEST_LSE, row, NAN));
        ck_assert(finds(&tensors, REQUEST_LSE, row, (float)log(70) + 0.0001f));
    }
    ck_assert(finds(&tensors, REQUEST_O, 600 * dim - 1, -1));
    ck_assert(!finds(&tensors, REQUEST_O, 0, 1.000001f)); /* within the tolerance */
    request_tensors_release(&tensors);
}
END_TEST

/* What is not written stays NaN, and NaN fails. */
START_TEST(check_finds_what_is_not_written)
{
    struct request_tensors tensors;
    struct request_check result;

    make_uniform(&tensors, 2, 5, 5, 4);
    request_poison(&tensors, NULL, NULL);
    result = check(&tensors);
    ck_assert(!result.passed);
    ck_assert(!(result.max_row <= 1e30));
    ck_assert(!(result.max_lse <= 1e30));
    request_tensors_release(&tensors);
}
END_TEST

START_TEST(check_of_nothing_passes)
{
    struct request_tensors tensors;
    struct request_check result;

    make_uniform(&tensors, 2, 0, 5, 4);
    result = check(&tensors);
    ck_assert(result.passed);
    ck_assert_uint_eq(result.total, 0);
    ck_assert(result.rel_l2 == 0);
    request_tensors_release(&tensors);
}
END_TEST

/* 2.2e12 FLOP: a sample, with the first and last row and the neighbours of a tile's edge. */
START_TEST(check_samples_a_large_shape)
{
    const uint32_t rows = 4194304, keys = 65536, dim = 2;
    const uint32_t looked_at[] = {0, 64 * 3276 - 1, 64 * 3276, 64 * 3276 + 1, rows - 1};
    struct request_tensors tensors;
    struct request_check result;

    make_uniform(&tensors, 1, rows, keys, dim);
    ck_assert_uint_gt(fa_problem_flops(&tensors.problem), UINT64_C(2000000000000));
    result = check(&tensors);
    ck_assert(result.passed);
    ck_assert_uint_le(result.rows, 64);
    ck_assert_uint_ge(result.rows, 48);
    ck_assert_uint_eq(result.total, rows);
    ck_assert(finds(&tensors, REQUEST_O, (uint64_t)looked_at[0] * dim, 2));
    ck_assert(finds(&tensors, REQUEST_O, (uint64_t)looked_at[4] * dim, 2));
    for (int i = 1; i < 4; i++)
        ck_assert(finds(&tensors, REQUEST_LSE, looked_at[i], 0));
    request_tensors_release(&tensors);
}
END_TEST

/* --- A daemon that misbehaves ----------------------------------------------------------------- */

/* A row without keys: o = 0 and lse = -inf are right, whatever q is. */
#define EMPTY "--shape", "1,1,1,8", "--kv-len", "0", "--check"

/* A reply's payload. */
struct answer {
    float o[16];
    float lse;
};

/* Answers passes with one answer after the other, then refuses. */
struct script {
    struct answer answers[8];
    int count;
    int delay_ms; /* before each */
    bool silent;  /* instead of refusing, say nothing until the client goes */
};

static void serve(struct fake_daemon *fake, int fd, int round)
{
    const struct script *script = fake->data;
    struct fake_frame frame;

    ck_assert_int_eq(round, 0);
    fake_hello(fd);
    for (int i = 0; fake_read(fd, &frame); i++) {
        if (script->delay_ms > 0)
            test_sleep_ms(script->delay_ms);
        if (i < script->count)
            fake_answer(fd, &frame, &script->answers[i], sizeof script->answers[i]);
        else if (!script->silent)
            fake_refuse(fd, &frame, FA_RESOURCE_EXHAUSTED, "jobs", "too much to do");
        fake_frame_release(&frame);
    }
}

static const struct answer right = {.lse = -INFINITY};

#define RUN_ON(script, ...)                                                              \
    cli_run_on(serve, script,                                                            \
               (const char *const[]){test_program("fa-cli"), "run", EMPTY, __VA_ARGS__}, \
               sizeof((const char *[]){"", "", EMPTY, __VA_ARGS__}) / sizeof(const char *))

START_TEST(a_right_answer_passes)
{
    struct script script = {.answers = {right, right}, .count = 2};
    struct test_output output = RUN_ON(&script, "--repeat", "2", "--json");

    ck_assert_ptr_null(strstr(output.out, "\"passed\":false"));
    ck_assert_ptr_null(strstr(output.out, "\"same_bits\":false"));
    cli_expect_output(&output, "\"rel_l2\":0,");
}
END_TEST

START_TEST(a_wrong_answer_fails)
{
    static const struct answer wrong[] = {
        {.o[7] = 1e-3f, .lse = -INFINITY},
        {.o[0] = NAN, .lse = -INFINITY},
        {.lse = 0},
        {.lse = NAN},
    };
    struct script script = {.answers = {wrong[_i]}, .count = 1};
    struct test_output output = RUN_ON(&script, "--repeat", "1");

    ck_assert_ptr_nonnull(strstr(output.out, "check     FAIL: "));
    cli_expect_error(&output, 4, "--check: ");
    output = RUN_ON(&script, "--json");
    ck_assert_ptr_nonnull(strstr(output.out, "\"passed\":false"));
    ck_assert_ptr_nonnull(
        strstr(output.out, _i < 2 ? "\"max_row_error\":null" : "\"max_lse_error\":null"));
    ck_assert_ptr_null(strstr(output.err, "float32"));
    cli_expect_error(&output, 4, "--check: ");
}
END_TEST

/* A finite error may be what float32 itself loses. */
START_TEST(a_finite_error_has_a_hint)
{
    struct script script = {.answers = {{.lse = 0}}, .count = 1};
    struct test_output output = RUN_ON(&script, "--kv-len", "1");

    ck_assert_ptr_nonnull(strstr(output.out, "FAIL: "));
    ck_assert_ptr_nonnull(strstr(output.out, "6e-8 times the largest logit"));
    cli_expect_error(&output, 4, "compare with --version v0");
}
END_TEST

/* -0 is as right as 0, but they are not the same bits. */
START_TEST(repeats_that_differ_fail)
{
    struct script script = {.answers = {right, {.o[3] = -0.0f, .lse = -INFINITY}, right},
                            .count = 3};
    struct test_output output = RUN_ON(&script, "--repeat", "3");

    ck_assert_ptr_nonnull(strstr(output.out, "repeat 2 differs"));
    ck_assert_ptr_null(strstr(output.out, "repeat 3 differs"));
    ck_assert_ptr_null(strstr(output.out, "FAIL"));
    cli_expect_error(&output, 4, "--check: ");
}
END_TEST

START_TEST(a_refused_repeat_ends_the_run)
{
    struct script script = {.answers = {right}, .count = 1};
    struct test_output output = RUN_ON(&script, "--repeat", "3", "--json");
    const char *second = strchr(output.out, '\n') + 1;

    ck_assert_ptr_nonnull(strstr(second, "\"status\":\"RESOURCE_EXHAUSTED\""));
    ck_assert_ptr_nonnull(strstr(second, "\"field\":\"jobs\",\"text\":\"too much to do\""));
    ck_assert_str_eq(strchr(second, '\n'), "\n");
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: jobs: too much to do");
}
END_TEST

START_TEST(a_timeout_ends_the_run)
{
    struct script script = {.silent = true};
    struct test_output output = RUN_ON(&script, "--timeout", "0.01");

    cli_expect_error(&output, 1, "in 0.01 s; give a longer --timeout");
}
END_TEST

START_TEST(too_large_a_payload_names_the_way_out)
{
    struct script script = {0};
    struct test_output output = RUN_ON(&script, "--shape", "1,1,1,64", "--kv-len", "262144");

    cli_expect_error(&output, 1, "do not count; use --transport memfd");
}
END_TEST

/* Each repeat takes less than the second after which the line appears, all of them more. */
START_TEST(progress_is_of_all_repeats)
{
    struct script script = {.count = 8, .delay_ms = 250};
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    char shown[4096] = "";
    struct test_output output;

    ck_assert(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    ck_assert_int_eq(fcntl(terminal, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < script.count; i++)
        script.answers[i] = right;
    output =
        cli_run_on(serve, &script,
                   (const char *const[]){"/bin/sh", "-c", "exec \"$@\" 2>\"$0\"", ptsname(terminal),
                                         test_program("fa-cli"), "run", EMPTY, "--repeat", "8"},
                   13);
    cli_expect_output(&output, "PASS");
    ck_assert_int_gt(read(terminal, shown, sizeof shown - 1), 0);
    ck_assert_msg(strstr(shown, "fa-cli: repeating the pass: ") != NULL, "%s", shown);
    ck_assert_ptr_nonnull(strstr(shown, " %"));
    close(terminal);
}
END_TEST

/* --- Parts ------------------------------------------------------------------------------------ */

START_TEST(random_is_normal_and_splits)
{
    enum { SIZE = 100000 };
    float *whole = malloc(SIZE * sizeof *whole), *part = malloc(SIZE * sizeof *part);
    double mean = 0, square = 0, cross = 0;

    cli_random_normal(1, 0, 0, whole, SIZE);
    cli_random_normal(1, 0, 0, part, 35);
    cli_random_normal(1, 0, 34, part + 34, SIZE - 34);
    ck_assert_mem_eq(whole, part, SIZE * sizeof *whole);
    cli_random_normal(1, 1, 0, part, SIZE);
    for (int i = 0; i < SIZE; i++) {
        ck_assert(isfinite(whole[i]));
        mean += whole[i] / SIZE;
        square += (double)whole[i] * whole[i] / SIZE;
        cross += (double)whole[i] * part[i] / SIZE;
    }
    /* Over four standard errors of 1 / sqrt(SIZE). */
    ck_assert(fabs(mean) < 0.015 && fabs(square - 1) < 0.02 && fabs(cross) < 0.015);
    /* Fixed: files and figures that name a seed stay true. */
    ck_assert(fabs(whole[0] - (-1.1555550)) < 1e-6 && fabs(whole[1] - (0.5830147)) < 1e-6);
    free(whole);
    free(part);
}
END_TEST

START_TEST(percentiles_are_nearest_ranks)
{
    double values[200];
    struct cli_spread spread;

    for (int i = 0; i < 200; i++)
        values[i] = 200 - i;
    spread = cli_spread_of(values, 200);
    ck_assert(spread.min == 1 && spread.p50 == 100 && spread.p99 == 198 && spread.max == 200);
    values[0] = 5;
    spread = cli_spread_of(values, 1);
    ck_assert(spread.min == 5 && spread.p50 == 5 && spread.p99 == 5 && spread.max == 5);
}
END_TEST

static void count_call(void *context, uint64_t index)
{
    atomic_fetch_add(&((atomic_uint *)context)[index], 1);
}

START_TEST(parallel_calls_each_once)
{
    static atomic_uint calls[10000];

    cli_parallel(count_call, calls, 10000);
    for (int i = 0; i < 10000; i++)
        ck_assert_uint_eq(atomic_load(&calls[i]), 1);
    cli_parallel(count_call, NULL, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-check");
    TCase *tcase = tcase_create("cli-check");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, check_finds_any_wrong_row);
    tcase_add_test(tcase, check_finds_what_is_not_written);
    tcase_add_test(tcase, check_of_nothing_passes);
    tcase_add_test(tcase, check_samples_a_large_shape);
    tcase_add_test(tcase, a_right_answer_passes);
    tcase_add_loop_test(tcase, a_wrong_answer_fails, 0, 4);
    tcase_add_test(tcase, repeats_that_differ_fail);
    tcase_add_test(tcase, a_refused_repeat_ends_the_run);
    tcase_add_test(tcase, a_timeout_ends_the_run);
    tcase_add_test(tcase, a_finite_error_has_a_hint);
    tcase_add_test(tcase, too_large_a_payload_names_the_way_out);
    if (access("/dev/pts/ptmx", F_OK) == 0)
        tcase_add_test(tcase, progress_is_of_all_repeats);
    else
        test_skip("progress_is_of_all_repeats", "no pseudo-terminals here");
    tcase_add_test(tcase, random_is_normal_and_splits);
    tcase_add_test(tcase, percentiles_are_nearest_ranks);
    tcase_add_test(tcase, parallel_calls_each_once);
    suite_add_tcase(suite, tcase);
    return suite;
}
