/* fa-cli doctor: what it says of daemons that serve, refuse, hide, or are not there. */
#include "tests/helpers/doctor.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

START_TEST(a_daemon_that_serves)
{
    static const char *const ways[] = {"inline", "memfd", "region"};
    struct test_daemon daemon;
    const cJSON *told, *way;
    struct test_output output;
    cJSON *object;

    test_daemon_start(&daemon, (const char *const[]){"--backend", "cpu", NULL});
    object = doctor_examine(daemon.socket, 0);
    told = cJSON_GetObjectItem(object, "daemon");
    ck_assert_str_eq(cli_text(told, "status"), "OK");
    ck_assert_str_eq(cli_text(told, "backend"), "cpu");
    ck_assert_int_eq((int)cli_number(told, "process"), (int)daemon.pid);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(told, "other_pid_namespace")));
    for (int i = 0; i < 3; i++) {
        way = cJSON_GetArrayItem(cJSON_GetObjectItem(object, "transports"), i);
        ck_assert_str_eq(cli_text(way, "name"), ways[i]);
        ck_assert_str_eq(cli_text(way, "outcome"), "works");
        ck_assert(cli_number(way, "us") > 0);
    }
    ck_assert_str_eq(doctor_outcome(object, "cuda-ipc"), "not-offered");
    cJSON_Delete(object);
    setenv("FAD_SOCKET", daemon.socket, 1);
    output = CLI("doctor");
    ck_assert_ptr_nonnull(strstr(output.out, "($FAD_SOCKET)"));
    cli_expect_output(&output, "inline, memfd and region work; cuda-ipc does not: ");
    test_daemon_stop(&daemon);
}
END_TEST

/* As fa-cli in a namespace of its own. */
static cJSON *examine_apart(const char *socket)
{
    const char *const argv[] = {
        "unshare", "-p",     "-f",       "--mount-proc", test_program("fa-cli"),
        "doctor",  "--json", "--socket", socket,         NULL};

    return doctor_examine_by(argv, 0);
}

START_TEST(a_daemon_in_another_pid_namespace)
{
    struct test_daemon daemon;
    cJSON *object;

    test_daemon_start(&daemon, (const char *const[]){"--backend", "cpu", NULL});
    object = examine_apart(daemon.socket);
    ck_assert(cJSON_IsTrue(
        cJSON_GetObjectItem(cJSON_GetObjectItem(object, "daemon"), "other_pid_namespace")));
    cJSON_Delete(object);
    test_daemon_stop(&daemon);
}
END_TEST

START_TEST(no_daemon)
{
    struct test_daemon daemon;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cJSON *object = doctor_examine(doctor_no_socket(), 0);

    doctor_expect(object, "daemon", "lack", "there is no", "fad --socket");
    ck_assert_str_eq(doctor_outcome(object, "inline"), "untried");
    cJSON_Delete(object);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", doctor_no_socket());
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "daemon", "lack", "nobody listens", "fad --socket");
    cJSON_Delete(object);

    test_daemon_start(&daemon, NULL);
    setenv("FAD_SOCKET", daemon.socket, 1);
    object = doctor_examine(doctor_no_socket(), 0);
    doctor_expect(object, "daemon", "lack", "nobody listens", daemon.socket);
    cJSON_Delete(object);
    test_daemon_stop(&daemon);
    ck_assert_int_eq(unlink(doctor_no_socket()), 0);
}
END_TEST

START_TEST(a_path_that_is_none)
{
    char path[200];
    cJSON *object;

    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    object = doctor_examine(path, 1);
    doctor_expect(object, "daemon", "lack", "at most 107", NULL);
    cJSON_Delete(object);
}
END_TEST

/* As nobody, where the test is root, whom no permission stops. */
static cJSON *examine_as_nobody(const char *socket)
{
    const char *const argv[] = {
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", test_program("fa-cli"),
        "doctor",  "--json",        "--socket",      socket,           NULL};

    return doctor_examine_by(geteuid() == 0 ? argv : argv + 4, 1);
}

START_TEST(a_daemon_of_others)
{
    const bool root = geteuid() == 0;
    struct test_daemon daemon;
    cJSON *object;

    test_daemon_start(&daemon, NULL);
    ck_assert(chmod(cli_directory, 0711) == 0 && chmod(daemon.directory, 0711) == 0);
    ck_assert_int_eq(chmod(daemon.socket, root ? 0600 : 0), 0);
    object = examine_as_nobody(daemon.socket);
    doctor_expect(object, "daemon", "lack", "no access to ", "fad.sock is its owner's");
    ck_assert_ptr_nonnull(strstr(cli_text(object, "verdict"), "does not serve this process"));
    cJSON_Delete(object);

    ck_assert(!root || chown(daemon.socket, 0, 1) == 0);
    ck_assert_int_eq(chmod(daemon.socket, 0060), 0);
    object = examine_as_nobody(daemon.socket);
    doctor_expect(object, "daemon", "lack", "no access to ", root ? "usermod -aG" : "newgrp");
    cJSON_Delete(object);

    ck_assert_int_eq(chmod(daemon.directory, 0), 0);
    object = examine_as_nobody(daemon.socket);
    doctor_expect(object, "daemon", "lack", "no access to ", daemon.directory);
    cJSON_Delete(object);
    ck_assert_int_eq(chmod(daemon.directory, 0700), 0);
    test_daemon_stop(&daemon);
}
END_TEST

/* --- A daemon on a GPU, which refuses all ---------------------------------------------------- */

static void on_a_gpu(Fad__HelloReply *hello, const void *data)
{
    static char *transports[] = {FAKE_TEXT("inline"), FAKE_TEXT("cuda-ipc")};

    hello->backend = FAKE_TEXT("cuda");
    hello->devices[0]->uuid.data[0] = *(const uint8_t *)data;
    memset(hello->devices[0]->uuid.data + 1, 0, 15);
    hello->n_devices = 1;
    hello->transports = transports;
    hello->n_transports = 2;
}

/* data: the first byte of its GPU's UUID. */
static void refuse_all(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;

    (void)round;
    fake_hello_as(fd, on_a_gpu, fake->data);
    while (fake_read(fd, &frame)) {
        fake_refuse(fd, &frame, FA_RESOURCE_EXHAUSTED, "jobs", "for the test's sake");
        fake_frame_release(&frame);
    }
}

START_TEST(a_daemon_on_one_of_two_gpus)
{
    struct fake_daemon fake;
    uint8_t first = 8;
    cJSON *object;

    doctor_play("gpu=7,90,0,0,0 gpu=8,90,0,0,0");
    fake_start(&fake, refuse_all, &first, 1);
    object = doctor_examine(fake.path, 1);
    fake_stop(&fake);
    doctor_expect(object, "device", "ok", "this process sees it, too", NULL);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetObjectItem(object, "daemon"), "ipc_lack")));
    doctor_expect(object, "inline", "lack", "for the test's sake", "log");
    ck_assert_str_eq(doctor_outcome(object, "memfd"), "not-offered");
    cJSON_Delete(object);
}
END_TEST

START_TEST(a_daemon_on_a_gpu_that_is_hidden)
{
    struct fake_daemon fake;
    uint8_t first = 8;
    cJSON *object;

    doctor_play("gpu=7,90,0,0,0");
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    fake_start(&fake, refuse_all, &first, 1);
    object = doctor_examine(fake.path, 1);
    fake_stop(&fake);
    doctor_expect(object, "device", "note", "does not see it", NULL);
    doctor_expect(object, "device", "lack", "cannot be used there",
                  "CUDA_VISIBLE_DEVICES here is '7'");
    doctor_expect(object, "cuda-ipc", "note", "sees none of the daemon's GPUs", NULL);
    ck_assert_str_eq(doctor_outcome(object, "cuda-ipc"), "impossible");
    cJSON_Delete(object);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli_doctor_daemon");
    TCase *tcase = tcase_create("daemons");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, doctor_setup, cli_teardown);
    tcase_add_test(tcase, a_daemon_that_serves);
    if (system("unshare -p -f --mount-proc true 2>/dev/null") == 0)
        tcase_add_test(tcase, a_daemon_in_another_pid_namespace);
    else
        test_skip("a_daemon_in_another_pid_namespace", "no PID namespace can be made here");
    tcase_add_test(tcase, no_daemon);
    tcase_add_test(tcase, a_path_that_is_none);
    tcase_add_test(tcase, a_daemon_of_others);
    tcase_add_test(tcase, a_daemon_on_one_of_two_gpus);
    tcase_add_test(tcase, a_daemon_on_a_gpu_that_is_hidden);
    suite_add_tcase(suite, tcase);
    return suite;
}
