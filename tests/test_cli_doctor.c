/* fa-cli doctor: what it says of machines, which a fake libcuda plays. */
#include "tests/helpers/doctor.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_lack(const cJSON *object, const char *name, const char *words)
{
    const char *text = cli_text(cJSON_GetObjectItem(object, "cuda"), name);

    ck_assert_msg(strstr(text, words) != NULL, "%s: '%s' lacks '%s'", name, text, words);
}

static const cJSON *device(const cJSON *object, int index)
{
    const cJSON *devices = cJSON_GetObjectItem(cJSON_GetObjectItem(object, "cuda"), "devices");
    const cJSON *found = cJSON_GetArrayItem(devices, index);

    ck_assert_ptr_nonnull(found);
    return found;
}

START_TEST(a_machine_without_a_driver)
{
    cJSON *object = doctor_examine(doctor_no_socket(), 0);
    const cJSON *cuda = cJSON_GetObjectItem(object, "cuda");
    const cJSON *cpu = cJSON_GetObjectItem(object, "cpu");

    doctor_expect(object, "cuda", "lack", "does not load: ", "");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cuda, "library")));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cuda, "init")));
    doctor_expect_sound(object, "kernel");
    doctor_expect_sound(object, "shared");
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(cpu, "works")));
    ck_assert_int_eq((int)cli_number(cpu, "processors_online"), (int)sysconf(_SC_NPROCESSORS_ONLN));
    ck_assert_ptr_nonnull(strstr(cli_text(object, "verdict"), "serves on the CPU, since"));
    cJSON_Delete(object);
}
END_TEST

/* What cuInit returns, and what then is said and advised. */
static const struct {
    const char *machine, *visible, *text, *advice;
} inits[] = {
    {"init=100", "", "CUDA_ERROR_NO_DEVICE, 100", "CUDA_VISIBLE_DEVICES is empty"},
    {"init=304", NULL, "CUDA_ERROR_OPERATING_SYSTEM, 304", "PID namespace"},
    {"init=803", NULL, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803", "reboot"},
    {"init=999", NULL, "CUDA_ERROR_UNKNOWN, 999", "/dev/nvidia"},
    {"init=720", NULL, "error 720, 720", "dmesg"},
};

START_TEST(a_driver_that_does_not_start)
{
    cJSON *object;

    doctor_play(inits[_i].machine);
    if (inits[_i].visible)
        setenv("CUDA_VISIBLE_DEVICES", inits[_i].visible, 1);
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "cuda", "lack", inits[_i].text, inits[_i].advice);
    expect_lack(object, "backend_lack", "NVIDIA's driver");
    expect_lack(object, "ipc_lack", "NVIDIA's driver");
    cJSON_Delete(object);
}
END_TEST

START_TEST(a_good_gpu)
{
    cJSON *object;
    const cJSON *cuda;

    doctor_play("gpu=7,90,0,0,0");
    object = doctor_examine(doctor_no_socket(), 0);
    cuda = cJSON_GetObjectItem(object, "cuda");
    doctor_expect_sound(object, "cuda");
    doctor_expect_sound(object, "gpu 0");
    doctor_expect(object, "gpu 0", "ok",
                  "Fake GPU 7, compute capability 9.0, 81920 MiB (80896 free), 07000", NULL);
    ck_assert_str_eq(cli_text(cuda, "cuda_version"), "13.0");
    ck_assert_str_eq(cli_text(cuda, "init"), "CUDA_SUCCESS");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cuda, "ipc_lack")));
    ck_assert_str_eq(cli_text(device(object, 0), "context"), "CUDA_SUCCESS");
    ck_assert_str_eq(cli_text(device(object, 0), "ipc_export"), "CUDA_SUCCESS");
    if (cJSON_IsTrue(cJSON_GetObjectItem(cuda, "kernels_built")))
        ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cuda, "backend_lack")));
    else
        expect_lack(object, "backend_lack", "this build has no kernels");
    cJSON_Delete(object);
}
END_TEST

START_TEST(an_old_driver)
{
    cJSON *object;

    doctor_play("version=12040 gpu=7,90,0,0,0");
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "cuda", "lack", "knows CUDA 12.4; fad's kernels need 13.0", "580");
    expect_lack(object, "backend_lack", "too old");
    cJSON_Delete(object);
}
END_TEST

/* What is wrong with the one GPU. */
static const struct {
    const char *machine, *text, *advice, *ipc_lack;
} gpus[] = {
    {"gpu=7,75,0,0,0", "need compute capability 8.0", "--backend cpu", "newer GPU"},
    {"gpu=7,90,3,0,0", "exclusive-process", "nvidia-smi -c DEFAULT", "one process only"},
    {"gpu=7,90,2,0,0", "prohibited", "nvidia-smi -c DEFAULT", "prohibits"},
    {"gpu=7,90,0,46,0", "CUDA_ERROR_DEVICE_UNAVAILABLE, 46", "end the process",
     "cannot use the GPU"},
    {"gpu=7,90,0,0,801", "CUDA_ERROR_NOT_SUPPORTED, 801", "inline", "no IPC handle"},
};

START_TEST(a_gpu_with_a_fault)
{
    cJSON *object;

    doctor_play(gpus[_i].machine);
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "gpu 0", "lack", gpus[_i].text, gpus[_i].advice);
    expect_lack(object, "ipc_lack", gpus[_i].ipc_lack);
    cJSON_Delete(object);
}
END_TEST

START_TEST(one_good_gpu_is_enough)
{
    cJSON *object;

    doctor_play("gpu=7,75,0,0,0 gpu=8,90,0,0,0");
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "gpu 0", "lack", "need compute capability 8.0", NULL);
    doctor_expect_sound(object, "gpu 1");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(object, "cuda"), "ipc_lack")));
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(device(object, 0), "supported")));
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(device(object, 1), "supported")));
    cJSON_Delete(object);
}
END_TEST

#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN true
#else
#define UNDER_TSAN false
#endif

START_TEST(no_shared_memory)
{
    char command[PATH_MAX + 64];
    struct test_output output;

    snprintf(command, sizeof command, "ulimit -f 0; exec '%s' doctor", test_program("fa-cli"));
    output = test_run("sh", "-c", command);
    ck_assert_ptr_nonnull(strstr(output.out, "shared    LACK  no shared memory can be made"));
    cli_expect_output(&output, "-> raise `ulimit -f`");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli_doctor");
    TCase *tcase = tcase_create("machines");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, doctor_setup, cli_teardown);
    tcase_add_test(tcase, a_machine_without_a_driver);
    tcase_add_loop_test(tcase, a_driver_that_does_not_start, 0, sizeof inits / sizeof inits[0]);
    tcase_add_test(tcase, a_good_gpu);
    tcase_add_test(tcase, an_old_driver);
    tcase_add_loop_test(tcase, a_gpu_with_a_fault, 0, sizeof gpus / sizeof gpus[0]);
    tcase_add_test(tcase, one_good_gpu_is_enough);
    if (UNDER_TSAN)
        test_skip("no_shared_memory", "ThreadSanitizer itself needs files");
    else
        tcase_add_test(tcase, no_shared_memory);
    suite_add_tcase(suite, tcase);
    return suite;
}
