/* fa-cli run against the real daemon: every mask, transport and version, files in and out, and the
 * reference cases that PyTorch computed. */
#include "client/cli/npy.h"
#include "kernels/fa_attention.h"
#include "tests/helpers/cases.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct test_daemon daemon_;

/* One for all the tests, which only ask it. */
static void start(void)
{
    test_daemon_start(&daemon_, NULL);
}

static void stop(void)
{
    test_daemon_stop(&daemon_);
}

#define RUN(...) CLI("run", "--socket", daemon_.socket, __VA_ARGS__)

/* A file in our directory. Static, some at a time. */
static const char *file(const char *name)
{
    static char paths[8][128];
    static unsigned next;
    char *path = paths[next++ % COUNT(paths)];

    snprintf(path, sizeof paths[0], "%s/%s", cli_directory, name);
    return path;
}

/* A file's data, which must have the given number of elements. */
static float *read_npy(const char *path, unsigned dims, uint64_t count)
{
    struct cli_error error = {0};
    struct cli_npy npy;
    float *data;

    ck_assert_msg(cli_npy_open(&npy, path, dims, &error) == CLI_OK, "%s", error.text);
    ck_assert_uint_eq(npy.count, count);
    data = malloc(count * sizeof *data + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_msg(cli_npy_read(&npy, data, &error) == CLI_OK, "%s", error.text);
    cli_npy_close(&npy);
    return data;
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* Every line is an object of these keys. Their number. */
static int check_objects(char *lines, const char *const keys[], size_t key_count)
{
    int count = 0;
    char *rest, *line;

    for (line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *object = cJSON_Parse(line);

        ck_assert_msg(cJSON_IsObject(object), "no JSON object: %s", line);
        for (size_t i = 0; i < key_count; i++)
            ck_assert_msg(cJSON_HasObjectItem(object, keys[i]), "no %s in %s", keys[i], line);
        ck_assert_int_eq(cJSON_GetArraySize(object), (int)key_count);
        cJSON_Delete(object);
        count++;
    }
    return count;
}

static const char *const keys[] = {
    "status",        "version",      "kernel",   "redirected",  "redirect_reason",
    "backend",       "device",       "dtype",    "shape",       "kv_len",
    "kv_heads",      "mask",         "scale",    "transport",   "priority",
    "deadline_us",   "seed",         "queue_us", "transfer_us", "kernel_us",
    "total_us",      "client_us",    "tflops",   "rel_l2",      "max_row_error",
    "max_lse_error", "rows_checked", "passed",   "same_bits"};
#define UNCHECKED_KEYS 23 /* the first */

START_TEST(json_has_every_key)
{
    struct test_output output = RUN("--json", "--check", "--repeat", "3", "--shape", "1,2,3,8");

    ck_assert_int_eq(output.code, 0);
    ck_assert_str_eq(output.err, "");
    ck_assert_int_eq(check_objects(output.out, keys, COUNT(keys)), 3);
    test_output_release(&output);
    output = RUN("--json", "--shape", "1,2,3,8");
    ck_assert_int_eq(check_objects(output.out, keys, UNCHECKED_KEYS), 1);
    test_output_release(&output);
}
END_TEST

START_TEST(help_has_every_key)
{
    struct test_output output = CLI("help", "run");
    char *fields = strstr(output.out, "\nfields of --json:\n"), line[40];

    ck_assert_ptr_nonnull(fields);
    for (size_t i = 0; i < COUNT(keys); i++) {
        snprintf(line, sizeof line, "\n  %s ", keys[i]);
        ck_assert_msg(strstr(fields, line) != NULL, "no %s", keys[i]);
    }
    test_output_release(&output);
}
END_TEST

START_TEST(json_has_the_values)
{
    struct test_output output =
        RUN("--json", "--check", "--version", "v0", "--shape", "2,4,5,16", "--kv-len", "7",
            "--kv-heads", "2", "--mask", "causal-bottom-right", "--scale", "-0.5", "--transport",
            "q=memfd,lse=memfd", "--seed", "18446744073709551615", "--priority", "low",
            "--deadline-us", "18446744073709551615");
    cJSON *object = cJSON_Parse(output.out);
    const double shape[] = {2, 4, 5, 16};

    ck_assert_msg(output.code == 0 && object, "%s", output.err);
    ck_assert_str_eq(cli_text(object, "status"), "OK");
    ck_assert_str_eq(cli_text(object, "version"), "v0");
    ck_assert_str_eq(cli_text(object, "backend"), test_backend());
    ck_assert_str_eq(cli_text(object, "dtype"), "float32");
    ck_assert_str_eq(cli_text(object, "mask"), "causal-bottom-right");
    ck_assert_str_eq(cli_text(object, "priority"), "low");
    ck_assert_ptr_nonnull(strstr(output.out, "\"deadline_us\":18446744073709551615,"));
    ck_assert_str_eq(cli_text(object, "transport"), "q=memfd,k=inline,v=inline,o=inline,lse=memfd");
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "redirected")));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(object, "redirect_reason")));
    for (int i = 0; i < 4; i++)
        ck_assert(cJSON_GetArrayItem(cJSON_GetObjectItem(object, "shape"), i)->valuedouble ==
                  shape[i]);
    ck_assert(cli_number(object, "kv_len") == 7);
    ck_assert(cli_number(object, "kv_heads") == 2);
    ck_assert(cli_number(object, "scale") == -0.5);
    ck_assert_ptr_nonnull(strstr(output.out, "\"seed\":18446744073709551615,"));
    ck_assert(cli_number(object, "total_us") >= cli_number(object, "kernel_us"));
    ck_assert(cli_number(object, "client_us") > 0);
    ck_assert(cli_number(object, "rel_l2") < 1e-6);
    ck_assert(cli_number(object, "rows_checked") == 40);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(object, "passed")));
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* What the daemon refuses is an object too, and the line on stderr. */
START_TEST(json_of_a_refusal)
{
    struct test_output output = RUN("--json", "--repeat", "3", "--version", "v99");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_ptr_eq(strchr(output.out, '\n')[1] ? NULL : output.out, output.out);
    ck_assert_str_eq(cli_text(object, "status"), "INVALID_ARGUMENT");
    ck_assert_str_eq(cli_text(object, "field"), "version");
    ck_assert_uint_gt(strlen(cli_text(object, "text")), 0);
    ck_assert_str_eq(cli_text(object, "version"), "v99");
    ck_assert(!cJSON_HasObjectItem(object, "total_us"));
    cJSON_Delete(object);
    cli_expect_error(&output, 2, "--version 'v99': ");
}
END_TEST

START_TEST(prints_a_summary_of_repeats)
{
    struct test_output output = RUN("--repeat", "5", "--shape", "1,1,1,8", "--check");

    ck_assert_ptr_nonnull(strstr(output.out, "latency   of 5, in us"));
    ck_assert_ptr_nonnull(strstr(output.out, "p99"));
    cli_expect_output(&output, "round trip");
}
END_TEST

/* --- What can be asked for -------------------------------------------------------------------- */

static const char *const masks[] = {"none", "causal-bottom-right", "causal-top-left"};
static const char *const transports[] = {
    "inline",         "memfd",  "q=memfd,o=memfd",          "k=memfd,lse=memfd",
    "memfd,v=inline", "region", "q=region,v=memfd,o=region"};
static const char *const versions[] = {"auto", "v0", "v1", "v2", "v3", "v4"};
/* Shape, keys, key heads. */
static const char *const shapes[][3] = {
    {"2,3,33,64", "33", "3"}, {"1,4,5,16", "2", "2"},    {"1,8,2,5", "65", "2"},
    {"1,1,1,256", "1", "1"},  {"0,3,4,8", "4", "3"},     {"2,3,0,8", "4", "3"},
    {"1,2,3,8", "0", "1"},    {"1,70000,1,4", "2", "7"},
};

START_TEST(passes_for_each_mask_and_shape)
{
    const char *mask = masks[_i % (int)COUNT(masks)];
    const char *const *shape = shapes[_i / (int)COUNT(masks)];
    struct test_output output = RUN("--check", "--shape", shape[0], "--kv-len", shape[1],
                                    "--kv-heads", shape[2], "--mask", mask);

    cli_expect_output(&output, "PASS");
}
END_TEST

START_TEST(passes_for_each_version_and_transport)
{
    const char *version = versions[_i / (int)COUNT(transports)];
    const char *transport = transports[_i % (int)COUNT(transports)];
    struct test_output output =
        RUN("--check", "--shape", "2,4,65,64", "--kv-len", "70", "--kv-heads", "2", "--mask",
            "causal-bottom-right", "--version", version, "--transport", transport);

    cli_expect_output(&output, "PASS");
}
END_TEST

/* The same seed gives the same bits, by whatever way they travel; another one does not. */
START_TEST(seed_decides_the_output)
{
    static const char *const seeds[] = {"7", "7", "8"};
    static const char *const ways[] = {"inline", "memfd", "inline"};
    float *o[3], *lse[3];

    for (int i = 0; i < 3; i++) {
        struct test_output output = RUN("--shape", "1,2,9,8", "--seed", seeds[i], "--transport",
                                        ways[i], "--out", file("o.npy"), "--lse", file("lse.npy"));

        cli_expect_output(&output, seeds[i]);
        o[i] = read_npy(file("o.npy"), 4, 144);
        lse[i] = read_npy(file("lse.npy"), 3, 18);
    }
    ck_assert_mem_eq(o[0], o[1], 144 * sizeof(float));
    ck_assert_mem_eq(lse[0], lse[1], 18 * sizeof(float));
    ck_assert_mem_ne(o[0], o[2], 144 * sizeof(float));
    for (int i = 0; i < 3; i++) {
        free(o[i]);
        free(lse[i]);
    }
}
END_TEST

/* --- Files ------------------------------------------------------------------------------------ */

/* Makes a file of zeroes. */
static const char *zeroes(const char *name, uint64_t batch, uint64_t heads, uint64_t rows,
                          uint64_t dim)
{
    const uint64_t shape[] = {batch, heads, rows, dim};
    float *data = calloc(batch * heads * rows * dim + 1, sizeof *data);
    struct cli_error error;

    ck_assert_ptr_nonnull(data);
    ck_assert_int_eq(cli_npy_write(file(name), data, shape, 4, &error), CLI_OK);
    free(data);
    return file(name);
}

#define FILES(q, k, v, ...) RUN("--q", file(q), "--k", file(k), "--v", file(v), __VA_ARGS__)

START_TEST(shapes_must_agree)
{
    struct test_output output;

    zeroes("q.npy", 1, 4, 3, 8);
    zeroes("k.npy", 1, 2, 5, 8);
    zeroes("heads.npy", 1, 3, 5, 8);
    zeroes("batch.npy", 2, 2, 5, 8);
    zeroes("dim.npy", 1, 2, 5, 7);
    zeroes("rows.npy", 1, 2, 6, 8);
    output = FILES("q.npy", "k.npy", "k.npy", "--shape", "1,4,3,8", "--kv-heads", "2", "--kv-len",
                   "5", "--check", "--json");
    ck_assert_ptr_nonnull(strstr(output.out, "\"seed\":null"));
    cli_expect_output(&output, "\"passed\":true");
    output = FILES("q.npy", "batch.npy", "k.npy", "--check");
    cli_expect_error(&output, 2, "batch.npy: shapes disagree");
    output = FILES("q.npy", "dim.npy", "dim.npy", "--check");
    cli_expect_error(&output, 2, "dim.npy: shapes disagree");
    output = FILES("q.npy", "k.npy", "rows.npy", "--check");
    cli_expect_error(&output, 2, "rows.npy: shapes disagree");
    output = FILES("q.npy", "heads.npy", "heads.npy", "--check");
    cli_expect_error(&output, 2, "heads.npy: kv_heads: 3 does not");
    output = FILES("q.npy", "k.npy", "k.npy", "--shape", "1,4,4,8");
    cli_expect_error(&output, 2, "--shape disagrees with");
    output = FILES("q.npy", "k.npy", "k.npy", "--kv-len", "6");
    cli_expect_error(&output, 2, "--kv-len disagrees with");
    output = FILES("q.npy", "k.npy", "k.npy", "--kv-heads", "1");
    cli_expect_error(&output, 2, "--kv-heads disagrees with");
    output = FILES("q.npy", "k.npy", "none.npy", "--check");
    cli_expect_error(&output, 2, "none.npy: No such file");
    zeroes("large.npy", 1, 4, 3, 257);
    output = FILES("large.npy", "large.npy", "large.npy", "--check");
    cli_expect_error(&output, 2, "large.npy: head_dim");
}
END_TEST

/* --- The reference cases ---------------------------------------------------------------------- */

static void compare(const struct test_case *reference, const float *o, const float *lse)
{
    struct fa_deviation deviation = {0};

    fa_deviation_add(&deviation, o, reference->head_dim, lse, 1, reference->o, reference->lse,
                     (uint64_t)reference->batch * reference->heads * reference->q_len,
                     reference->head_dim);
    ck_assert_msg(deviation.max_row <= 1e-5, "%s: row error %g", reference->name,
                  deviation.max_row);
    ck_assert_msg(deviation.max_lse <= 1e-6, "%s: LSE error %g", reference->name,
                  deviation.max_lse);
}

static void run_case(const struct test_case *reference, const char *version, const char *transport)
{
    const uint64_t rows = (uint64_t)reference->batch * reference->heads * reference->q_len;
    char q[4200], k[4200], v[4200], scale[40];
    float *o, *lse;
    struct test_output output;

    snprintf(q, sizeof q, "%s/%s/q.npy", test_data_dir(), reference->name);
    snprintf(k, sizeof k, "%s/%s/k.npy", test_data_dir(), reference->name);
    snprintf(v, sizeof v, "%s/%s/v.npy", test_data_dir(), reference->name);
    snprintf(scale, sizeof scale, "%.17g", reference->scale);
    output = RUN("--q", q, "--k", k, "--v", v, "--mask", fa_mask_name(reference->mask), "--version",
                 version, "--transport", transport, "--check", "--out", file("o.npy"), "--lse",
                 file("lse.npy"), reference->has_scale ? "--scale" : NULL, scale);
    cli_expect_output(&output, "PASS");
    o = read_npy(file("o.npy"), 4, rows * reference->head_dim);
    lse = read_npy(file("lse.npy"), 3, rows);
    compare(reference, o, lse);
    free(o);
    free(lse);
}

START_TEST(agrees_with_the_reference_cases)
{
    const char *version = versions[_i / 2];
    size_t count;
    struct test_case *cases = test_cases_load(&count);

    ck_assert_uint_gt(count, 0);
    for (size_t i = 0; i < count; i++)
        run_case(&cases[i], version, transports[_i % 2]);
    test_cases_free(cases, count);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-run");
    TCase *tcase = tcase_create("cli-run");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_unchecked_fixture(tcase, start, stop);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, json_has_every_key);
    tcase_add_test(tcase, json_has_the_values);
    tcase_add_test(tcase, json_of_a_refusal);
    tcase_add_test(tcase, help_has_every_key);
    tcase_add_test(tcase, prints_a_summary_of_repeats);
    tcase_add_loop_test(tcase, passes_for_each_mask_and_shape, 0,
                        (int)(COUNT(masks) * COUNT(shapes)));
    tcase_add_loop_test(tcase, passes_for_each_version_and_transport, 0,
                        (int)(COUNT(versions) * COUNT(transports)));
    tcase_add_test(tcase, seed_decides_the_output);
    tcase_add_test(tcase, shapes_must_agree);
    if (test_data_dir())
        tcase_add_loop_test(tcase, agrees_with_the_reference_cases, 0, 2 * (int)COUNT(versions));
    else
        test_skip("agrees_with_the_reference_cases", "FA_DATA names no directory of them");
    suite_add_tcase(suite, tcase);
    return suite;
}
