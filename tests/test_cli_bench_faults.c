/* fa-cli bench on a daemon that refuses, errs or goes away, and with the FFMA loop on a driver
 * without a GPU (see fake_cuda.h). */
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_load.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* On a daemon with v0 and v4, which are checked with its first two forwards, in this order. */
#define ONE                                                                                    \
    "--batch-size", "1", "--num-heads", "1", "--head-dim", "8", "--seq-lens", "1", "--kv-len", \
        "0", "--transport", "inline", "--warmup", "2", "--repetitions", "4"
#define BENCH_ON(script, ...)                                                                   \
    load_on(script, (const char *const[]){test_program("fa-cli"), "bench", "all", __VA_ARGS__}, \
            sizeof((const char *[]){"", "", "", __VA_ARGS__}) / sizeof(const char *))

START_TEST(what_is_refused_is_not_timed)
{
    struct script script = {.cuda = true, .fault = REFUSES, .first = _i};
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
    struct script script = {.cuda = true, .fault = ERRS, .first = 1};
    struct test_output output = BENCH_ON(&script, ONE, "--json");
    char *lines[3];
    cJSON *object;

    ck_assert_int_eq(script.forwards, 2 + 6);
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), 2);
    object = cJSON_Parse(lines[1]);
    ck_assert_str_eq(cli_text(object, "version"), "v4");
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "passed")));
    ck_assert(!cJSON_HasObjectItem(object, "kernel_us"));
    cJSON_Delete(object);
    cli_expect_error(&output, 4, "a result is not what it should be; see above");
    script = (struct script){.cuda = true, .fault = ERRS, .first = 0};
    output = BENCH_ON(&script, ONE);
    ck_assert_ptr_nonnull(
        strstr(output.out, " WRONG: relative L2 inf, largest row error inf (may"));
    cli_expect_error(&output, 4, "a result is not what it should be; see above");
}
END_TEST

/* While it is timed, too. */
START_TEST(what_is_refused_later_is_left_out)
{
    struct script script = {.cuda = true, .fault = REFUSES, .first = 5};
    struct test_output output = BENCH_ON(&script, ONE);

    ck_assert_int_eq(script.forwards, 2 + 2 + 2 + 4); /* v4 twice */
    ck_assert_ptr_nonnull(strstr(output.out, "\nv4      - "));
    ck_assert_ptr_nonnull(strstr(output.out, "0.00e+00\n"));
    cli_expect_error(&output, 1, "a version was refused; see above");
}
END_TEST

/* At any moment. */
START_TEST(a_daemon_that_goes_away_is_told)
{
    struct script script = {.cuda = true, .fault = _i % 2 ? CLOSES : SHUTS_DOWN, .first = _i};
    struct test_output output = BENCH_ON(&script, ONE);

    cli_expect_error(&output, 1, _i % 2 ? "DISCONNECTED: " : "SHUTTING_DOWN: good night");
}
END_TEST

/* Refuses the region that it is asked for, which is to be on the first of its two devices. */
static void serve_two_devices(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    int *asked = fake->data;
    (void)round;

    fake_hello(fd);
    while (fake_read(fd, &frame)) {
        Fad__AllocRegion *region =
            fad__alloc_region__unpack(NULL, frame.frame.message_length, frame.message);

        ck_assert_int_eq(frame.frame.type, FA_FRAME_ALLOC_REGION);
        ck_assert(region && region->has_device_uuid && region->device_uuid.len == 16);
        ck_assert_mem_eq(region->device_uuid.data, fake_cuda_uuids[0], 16);
        fad__alloc_region__free_unpacked(region, NULL);
        fake_refuse(fd, &frame, FA_RESOURCE_EXHAUSTED, "size", "no room");
        fake_frame_release(&frame);
        ++*asked;
    }
}

START_TEST(one_of_several_devices)
{
    const char *argv[] = {test_program("fa-cli"), "bench", "v4", "--seq-lens", "5",
                          "--transport",          "region"};
    struct test_output output;
    int asked = 0;

    output = cli_run_on(serve_two_devices, &asked, argv, COUNT(argv));
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: size: no room");
    ck_assert_int_eq(asked, 1);
    argv[6] = "memfd";
    output = cli_run_on(serve_two_devices, &asked, argv, COUNT(argv));
    cli_expect_error(&output, 2, "use --transport region or ipc, or a daemon on one");
    ck_assert_int_eq(asked, 1);
}
END_TEST

START_TEST(a_silent_daemon_is_given_up)
{
    struct script script = {.cuda = true, .fault = IS_SILENT, .first = 5 * _i};
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
    ck_assert_uint_eq(cli_lines(output.out, lines, COUNT(lines)), 2);
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
    {"cuLaunchKernel=1", "\"ffma_text\":\"the CUDA driver cannot launch the FFMA loop: "},
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
    Suite *suite = suite_create("cli-bench-faults");
    TCase *fake = tcase_create("with_a_fake_daemon"), *ffma = tcase_create("with_a_fake_driver");

    tcase_set_timeout(fake, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(fake, cli_setup, cli_teardown);
    tcase_add_loop_test(fake, what_is_refused_is_not_timed, 0, 2);
    tcase_add_test(fake, what_is_wrong_is_not_timed);
    tcase_add_test(fake, what_is_refused_later_is_left_out);
    tcase_add_test(fake, one_of_several_devices);
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
