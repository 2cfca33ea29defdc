/* fa-cli bench: against the real daemon, and on one that refuses, errs or goes away. */
#include "client/cli/npy.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_load.h"
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

/* Splits text, which is of lines, into them; their number. */
static size_t split(char *text, char *lines[], size_t room)
{
    size_t count = 0;
    char *end;

    for (; (end = strchr(text, '\n')); text = end + 1) {
        ck_assert_uint_lt(count, room);
        lines[count++] = text;
        *end = '\0';
    }
    return count;
}

/* --- For a person ----------------------------------------------------------------------------- */

START_TEST(a_line_for_each_version_and_length)
{
    static const char *const begins[] = {
        "v0 ", "v1 ", "v2 ", "v3 ", "v4 ", "v0 ", "v1 ", "v2 ", "v3 ", "v4 ",
    };
    struct test_output output = BENCH("all", "--seq-lens", "5,70");
    char *lines[LINES_AT_TOP + COUNT(begins) + 1], shape[32];

    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), LINES_AT_TOP + COUNT(begins));
    ck_assert_ptr_nonnull(strstr(lines[0], ": medians of 3 passes of each in turns, in us, after "
                                           "1 warm-ups"));
    ck_assert_str_eq(lines[1], "input   random, seed 1, sent region");
    for (size_t i = 0; i < COUNT(begins); i++) {
        const char *line = lines[LINES_AT_TOP + i];
        ck_assert_int_eq(strncmp(line, begins[i], 3), 0);
        snprintf(shape, sizeof shape, " 1,2,%d,64 ", i < 5 ? 5 : 70);
        ck_assert_msg(strstr(line, shape) && strstr(line, " none "), "%s", line);
        ck_assert_msg(strstr(line, "% ") && strstr(line, "e-07"), "%s", line);
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
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), LINES_AT_TOP + 2);
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
    static const float data[2 * 3 * 5 * 8];
    const uint64_t shape[] = {2, 3, 5, 8};
    char paths[3][128], line[512], *lines[LINES_AT_TOP + 2];
    struct test_output output;

    for (size_t i = 0; i < 3; i++) {
        struct cli_error error = {0};
        snprintf(paths[i], sizeof paths[i], "%s/%s", cli_directory, names[i]);
        ck_assert_int_eq(cli_npy_write(paths[i], data, shape, 4, &error), CLI_OK);
    }
    output = CLI("bench", "v4", "--socket", daemon_.socket, "--q", paths[0], "--k", paths[1], "--v",
                 paths[2], "--warmup", "0", "--repetitions", "2");
    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), LINES_AT_TOP + 1);
    snprintf(line, sizeof line, "input   %s, %s, %s, sent region", paths[0], paths[1], paths[2]);
    ck_assert_str_eq(lines[1], line);
    ck_assert_ptr_nonnull(strstr(lines[LINES_AT_TOP], " 2,3,5,8 "));
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
    "tflops",      "ffma_tflops", "change_from_v0", "client_us"};

START_TEST(json_has_every_key)
{
    struct test_output output = BENCH("v0", "v4", "--json", "--seq-lens", "33"), help;
    char *lines[3], field[40];

    ck_assert_str_eq(output.err, "");
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), 2);
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

/* --- Not as it should be ---------------------------------------------------------------------- */

static const struct {
    const char *words;
    const char *arguments[6];
} refused[] = {
    {"bench: say which versions first", {"--json"}},
    {"bench: say which versions first", {NULL}},
    {"--version 'walk': there is none of that name; there are auto, v0,", {"v4", "walk"}},
    {"bench: v4 is there twice", {"v4", "all"}},
    {"'v0': bench takes all|VERSION... first, and then options only",
     {"v4", "--seq-lens", "5", "v0"}},
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
    if (count < 6) { /* not among operands that are misplaced */
        argv[count++] = "--socket";
        argv[count++] = daemon_.socket;
    }
    output = test_run_vector(argv);
    cli_expect_error(&output, 2, refused[_i].words);
}
END_TEST

/* On a daemon with v0 and v4, which are checked with its first two forwards, in this order. */
#define ONE                                                                                    \
    "--batch-size", "1", "--num-heads", "1", "--head-dim", "8", "--seq-lens", "1", "--kv-len", \
        "0", "--transport", "inline", "--warmup", "2", "--repetitions", "4"
#define BENCH_ON(script, ...)                                                                   \
    load_on(script, (const char *const[]){test_program("fa-cli"), "bench", "all", __VA_ARGS__}, \
            sizeof((const char *[]){"", "", "", __VA_ARGS__}) / sizeof(const char *))

START_TEST(what_is_refused_is_not_timed)
{
    struct script script = {.fault = REFUSES, .first = _i};
    struct test_output output = BENCH_ON(&script, ONE);

    ck_assert_int_eq(script.forwards, 2 + 6);
    ck_assert_ptr_nonnull(strstr(output.out, _i ? "\nv4      - " : "\nv0      - "));
    ck_assert_ptr_nonnull(
        strstr(output.out, " none                refused: RESOURCE_EXHAUSTED: staged: too much"));
    ck_assert_ptr_nonnull(strstr(output.out, "0.00e+00\n"));
    cli_expect_error(&output, 1, "a version was refused; see above");
}
END_TEST

START_TEST(what_is_wrong_is_not_timed)
{
    struct script script = {.fault = ERRS, .first = 1};
    struct test_output output = BENCH_ON(&script, ONE, "--json");
    char *lines[3];
    cJSON *object;

    ck_assert_int_eq(script.forwards, 2 + 6);
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), 2);
    object = cJSON_Parse(lines[1]);
    ck_assert_str_eq(cli_text(object, "version"), "v4");
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "passed")));
    ck_assert(!cJSON_HasObjectItem(object, "kernel_us"));
    cJSON_Delete(object);
    cli_expect_error(&output, 4, "a result is not what it should be; see above");
    script = (struct script){.fault = ERRS, .first = 0};
    output = BENCH_ON(&script, ONE);
    ck_assert_ptr_nonnull(
        strstr(output.out, " WRONG: relative L2 inf, largest row error inf (may"));
    cli_expect_error(&output, 4, "a result is not what it should be; see above");
}
END_TEST

/* At any moment. */
START_TEST(a_daemon_that_goes_away_is_told)
{
    struct script script = {.fault = _i % 2 ? CLOSES : SHUTS_DOWN, .first = _i};
    struct test_output output = BENCH_ON(&script, ONE);

    if (_i % 2 == 0 && _i < 2)
        cli_expect_error(&output, 1, "a version was refused; see above");
    else
        cli_expect_error(&output, 1, _i % 2 ? "DISCONNECTED: " : "SHUTTING_DOWN: good night");
}
END_TEST

START_TEST(a_silent_daemon_is_given_up)
{
    struct script script = {.fault = IS_SILENT, .first = 5 * _i};
    struct test_output output = BENCH_ON(&script, ONE, "--timeout", "0.2");

    cli_expect_error(&output, 1, "TIMEOUT: the daemon did not answer in 0.2 s");
}
END_TEST

/* --- The FFMA loop ---------------------------------------------------------------------------- */

/* No forward meets with the fault. */
#define NONE .first = 1000000

START_TEST(the_ffma_loop_runs_beside_them)
{
    struct script script = {.cuda = true, NONE};
    struct test_output output = BENCH_ON(&script, ONE, "--json");
    const double threads = 512 * 2 * FAKE_CUDA_PROCESSORS, each = 2.0 * 2048 * 8 * 16;
    char *lines[3];
    cJSON *object;

    ck_assert_msg(output.code == 0, "%s", output.err);
    ck_assert_uint_eq(split(output.out, lines, COUNT(lines)), 2);
    object = cJSON_Parse(lines[0]);
    ck_assert(cli_number(object, "ffma_tflops") == threads * each / (FAKE_CUDA_KERNEL_MS * 1e9));
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

static const struct {
    const char *fails, *words;
} lacks[] = {
    {"cuModuleLoadData=1", "\nffma    none beside them: UNAVAILABLE: the CUDA driver "
                           "cannot compile the FFMA loop: "
                           "CUDA_ERROR_INVALID_VALUE\n"},
    {"cuInit=100",
     "beside them: UNAVAILABLE: the CUDA driver cannot start: CUDA_ERROR_NO_DEVICE\n"},
    {"cuDevicePrimaryCtxRetain=2",
     "beside them: UNAVAILABLE: the CUDA driver cannot make a context: CUDA_ERROR_OUT_OF_MEMORY\n"},
    {"cuEventCreate=1", "beside them: UNAVAILABLE: the CUDA driver cannot make an event: "},
    {"cuDeviceGetUuid_v2=1", "beside them: NOT_FOUND: uuid: this process does not see"},
    {"cuLaunchKernel=1", "\"ffma_tflops\":null"},
    {"cuEventElapsedTime=1", "\"ffma_tflops\":null"},
};

/* All else is measured without it. */
START_TEST(without_the_ffma_loop)
{
    struct script script = {.cuda = true, NONE};
    struct test_output output;

    ck_assert_int_eq(setenv("FAKE_CUDA_FAIL", lacks[_i].fails, 1), 0);
    output = lacks[_i].words[0] == '"' ? BENCH_ON(&script, ONE, "--json") : BENCH_ON(&script, ONE);
    unsetenv("FAKE_CUDA_FAIL");
    ck_assert_int_eq(script.forwards, 2 * (1 + 6));
    cli_expect_output(&output, lacks[_i].words);
}
END_TEST

static void setup_driver(void)
{
    cli_setup();
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fake_cuda_path(false), 1), 0);
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-bench");
    TCase *tests = tcase_create("with_a_daemon"), *fake = tcase_create("with_a_fake_one");
    TCase *ffma = tcase_create("with_a_fake_driver");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_unchecked_fixture(tests, start, stop);
    tcase_add_checked_fixture(tests, cli_setup, cli_teardown);
    tcase_add_test(tests, a_line_for_each_version_and_length);
    tcase_add_test(tests, shapes_of_all_kinds);
    tcase_add_test(tests, inputs_from_files);
    tcase_add_test(tests, json_has_every_key);
    tcase_add_loop_test(tests, what_is_wrong_is_told, 0, COUNT(refused));
    suite_add_tcase(suite, tests);
    tcase_set_timeout(fake, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(fake, cli_setup, cli_teardown);
    tcase_add_loop_test(fake, what_is_refused_is_not_timed, 0, 2);
    tcase_add_test(fake, what_is_wrong_is_not_timed);
    tcase_add_loop_test(fake, a_daemon_that_goes_away_is_told, 0, 8);
    tcase_add_loop_test(fake, a_silent_daemon_is_given_up, 0, 2);
    suite_add_tcase(suite, fake);
    tcase_set_timeout(ffma, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(ffma, setup_driver, cli_teardown);
    tcase_add_test(ffma, the_ffma_loop_runs_beside_them);
    tcase_add_loop_test(ffma, without_the_ffma_loop, 0, COUNT(lacks));
    suite_add_tcase(suite, ffma);
    return suite;
}
