/* fa-cli bench against the real daemon. */
#include "client/cli/npy.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

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

#define SMALL        "--batch-size", "1", "--num-heads", "2", "--warmup", "1", "--repetitions", "3"
#define BENCH(...)   CLI("bench", __VA_ARGS__, "--socket", daemon_.socket, SMALL)
#define LINES_AT_TOP 3

/* --- For a person ----------------------------------------------------------------------------- */

START_TEST(a_line_for_each_version_and_length)
{
    static const char *const begins[] = {
        "v0 ", "v1 ", "v2 ", "v3 ", "v4 ", "v0 ", "v1 ", "v2 ", "v3 ", "v4 ",
    };
    struct test_output output = BENCH("all", "v3", "--seq-lens", "5,70"); /* v3 once */
    char *lines[LINES_AT_TOP + COUNT(begins) + 1], shape[32];
    double error;

    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), LINES_AT_TOP + COUNT(begins));
    ck_assert_ptr_nonnull(strstr(lines[0], ": medians of 3 passes of each in turns, in us, after "
                                           "1 warm-up"));
    ck_assert_str_eq(lines[1], "input   random, seed 1, sent region");
    for (size_t i = 0; i < COUNT(begins); i++) {
        const char *line = lines[LINES_AT_TOP + i];
        ck_assert_int_eq(strncmp(line, begins[i], 3), 0);
        snprintf(shape, sizeof shape, " 1,2,%d,64 ", i < 5 ? 5 : 70);
        ck_assert_msg(strstr(line, shape) && strstr(line, " none "), "%s", line);
        error = strtod(strrchr(line, ' '), NULL); /* the last column */
        ck_assert_msg(strstr(line, "% ") && error > 0 && error < 1e-6, "%s", line);
    }
    test_output_release(&output);
}
END_TEST

/* The columns of the lines stand below those of the header. */
START_TEST(shapes_of_all_kinds)
{
    struct test_output output =
        BENCH("v4", "auto", "--seq-lens", "3", "--kv-len", "1000", "--kv-heads", "1", "--mask",
              "causal-bottom-right", "--head-dim", "80", "--transport", "q=inline,o=memfd");
    char *lines[LINES_AT_TOP + 3];

    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), LINES_AT_TOP + 2);
    ck_assert_ptr_nonnull(strstr(lines[1], ", sent q=inline,k=inline,v=inline,o=memfd"));
    ck_assert_int_eq(strncmp(lines[LINES_AT_TOP], "v4 ", 3), 0);
    ck_assert_int_eq(strncmp(lines[LINES_AT_TOP + 1], "auto ", 5), 0);
    for (size_t i = LINES_AT_TOP; i < LINES_AT_TOP + 2; i++) {
        ck_assert_ptr_nonnull(strstr(lines[i], " 1,2/1,3,80 "));
        ck_assert_ptr_nonnull(strstr(lines[i], " 1000 causal-bottom-right "));
        ck_assert_ptr_nonnull(strstr(lines[i], " - ")); /* v0 was not timed */
        ck_assert_uint_eq(strlen(lines[i]),
                          strlen(lines[2]) - strlen("relative L2") + strlen("2.77e-07"));
    }
    test_output_release(&output);
}
END_TEST

/* The files' shape is the one configuration. */
START_TEST(inputs_from_files)
{
    static const char *const names[] = {"q.npy", "k.npy", "v.npy"};
    const uint64_t shapes[2][4] = {{2, 4, 5, 8}, {2, 2, 7, 8}};
    float data[2 * 4 * 5 * 8];
    char paths[3][128], line[512], *lines[LINES_AT_TOP + 2];
    struct test_output output;

    for (size_t i = 0; i < 3; i++) {
        struct cli_error error = {0};
        for (size_t j = 0; j < COUNT(data); j++)
            data[j] = (float)((i + 3) * j % 17) - 8;
        snprintf(paths[i], sizeof paths[i], "%s/%s", cli_directory, names[i]);
        ck_assert_int_eq(cli_npy_write(paths[i], data, shapes[i > 0], 4, &error), CLI_OK);
    }
    output = CLI("bench", "v4", "--socket", daemon_.socket, "--q", paths[0], "--k", paths[1], "--v",
                 paths[2], "--warmup", "0", "--repetitions", "2");
    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), LINES_AT_TOP + 1);
    snprintf(line, sizeof line, "input   %s, %s, %s, sent region", paths[0], paths[1], paths[2]);
    ck_assert_str_eq(lines[1], line);
    ck_assert_ptr_nonnull(strstr(lines[LINES_AT_TOP], " 2,4/2,5,8 "));
    ck_assert_ptr_nonnull(strstr(lines[LINES_AT_TOP], " 7 none "));
    test_output_release(&output);
    output = CLI("bench", "v4", "--socket", daemon_.socket, "--q", paths[0], "--k", paths[1], "--v",
                 paths[2], "--seq-lens", "5");
    cli_expect_error(&output, 2, "--seq-lens is of random input, and --q, --k and --v are given");
    for (size_t i = 0; i < 3; i++)
        ck_assert_int_eq(unlink(paths[i]), 0);
}
END_TEST

/* --- JSON ------------------------------------------------------------------------------------- */

static const char *const keys[] = {
    "status",      "version",     "kernel",         "redirect_reason", "backend",
    "device",      "dtype",       "shape",          "kv_len",          "kv_heads",
    "mask",        "scale",       "transport",      "priority",        "deadline_us",
    "seed",        "passed",      "rel_l2",         "max_row_error",   "rows_checked",
    "repetitions", "warmup",      "kernel_us",      "kernel_p20_us",   "kernel_p80_us",
    "tflops",      "ffma_tflops", "change_from_v0", "client_us",       "ffma_text"};

START_TEST(json_has_every_key)
{
    struct test_output output = BENCH("v0", "--json", "v4", "--seq-lens", "33"), help;
    char *lines[3], field[40];

    ck_assert_str_eq(output.err, "");
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), 2);
    help = CLI("help", "bench");
    for (size_t i = 0; i < 2; i++) {
        cJSON *object = cJSON_Parse(lines[i]);

        ck_assert_int_eq(cJSON_GetArraySize(object), COUNT(keys));
        for (size_t k = 0; k < COUNT(keys); k++) {
            ck_assert_msg(cJSON_HasObjectItem(object, keys[k]), "no %s", keys[k]);
            snprintf(field, sizeof field, "\n  %s ", keys[k]);
            ck_assert_msg(strstr(help.out, field) != NULL, "no %s in the help", keys[k]);
        }
        ck_assert_str_eq(cli_text(object, "version"), i ? "v4" : "v0");
        ck_assert(cli_number(object, "kernel_p20_us") <= cli_number(object, "kernel_us"));
        ck_assert(cli_number(object, "kernel_us") <= cli_number(object, "kernel_p80_us"));
        ck_assert(cli_number(object, "kernel_us") <= cli_number(object, "client_us"));
        ck_assert(cli_number(object, "change_from_v0") == 0 || i > 0);
        ck_assert(cli_number(object, "rows_checked") == 66);
        ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(object, "passed")));
        cJSON_Delete(object);
    }
    test_output_release(&help);
    test_output_release(&output);
}
END_TEST

/* --- Wrong input ------------------------------------------------------------------------------ */

static const struct {
    const char *words;
    const char *arguments[6];
} refused[] = {
    {"bench: say which versions: all", {"--json"}},
    {"bench: say which versions: all", {NULL}},
    {"bench: 'walk': there is none of that name; there are all, auto, v0,", {"v4", "walk"}},
    {"'walk': there is none", {"v4", "--seq-lens", "5", "walk"}},
    {"--seq-lens '5,'", {"v4", "--seq-lens", "5,"}},
    {"--seq-lens '0'", {"v4", "--seq-lens", "0"}},
    {"--seq-lens '5;6'", {"v4", "--seq-lens", "5;6"}},
    {"--repetitions '0'", {"v4", "--repetitions", "0"}},
    {"--head-dim '0'", {"v4", "--head-dim", "0"}},
    {"the shape: head_dim: ", {"v4", "--head-dim", "257"}},
    {"--k is missing: --q, --k and --v go together", {"v4", "--q", "q.npy", "--v", "v.npy"}},
    {"--kv-heads: 5 does not", {"v4", "--kv-heads", "5"}},
};

START_TEST(what_is_wrong_is_told)
{
    const char *argv[16] = {test_program("fa-cli"), "bench"};
    size_t count = 2;
    struct test_output output;

    for (size_t i = 0; refused[_i].arguments[i]; i++)
        argv[count++] = refused[_i].arguments[i];
    argv[count++] = "--socket";
    argv[count++] = daemon_.socket;
    output = test_run_vector(argv);
    cli_expect_error(&output, 2, refused[_i].words);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-bench");
    TCase *tests = tcase_create("cli-bench");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_unchecked_fixture(tests, start, stop);
    tcase_add_checked_fixture(tests, cli_setup, cli_teardown);
    tcase_add_test(tests, a_line_for_each_version_and_length);
    tcase_add_test(tests, shapes_of_all_kinds);
    tcase_add_test(tests, inputs_from_files);
    tcase_add_test(tests, json_has_every_key);
    tcase_add_loop_test(tests, what_is_wrong_is_told, 0, COUNT(refused));
    suite_add_tcase(suite, tests);
    return suite;
}
