/* A lost device under a service manager: what it is told, the socket that it hands over, and its
 * SIGTERM at any moment; and what comes of a handover that is not the daemon's. */
#include "tests/helpers/loss.h"
#include "tests/helpers/test.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void begin(void)
{
    loss_begin(NULL);
    close(manager_connect(wire_daemon()->socket));
}

static void signal_daemon(void)
{
    ck_assert_int_eq(kill(wire_daemon()->pid, SIGTERM), 0);
}

/* --- What is told ----------------------------------------------------------------------------- */

/* The monotonic clock's value in a notification. */
static uint64_t time_told(const char *heard)
{
    const char *at = strstr(heard, "\nMONOTONIC_USEC=");

    ck_assert_msg(at != NULL, "%s", heard);
    return strtoull(at + 16, NULL, 10);
}

START_TEST(the_manager_hears_of_a_reload)
{
    char directory[64], path[96], heard[256];
    uint64_t before, told;
    int manager, fd;

    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/notify", directory);
    manager = manager_socket(SOCK_DGRAM, path);
    setenv("NOTIFY_SOCKET", path, 1);
    setenv("WATCHDOG_USEC", "20000", 1);
    begin();
    manager_await(manager, "READY=1", heard);
    for (int i = 0; i < 3; i++)
        manager_await(manager, "WATCHDOG=1", heard);
    before = (uint64_t)test_now_ms() * 1000;
    fd = wire_greet();
    loss_send(fd, 5, FAULTY_SCALE_LOSE);
    /* At once: a socket that nobody reads is soon full, and what is told then is lost. */
    manager_await(manager, "RELOADING=1", heard);
    told = time_told(heard);
    ck_assert(before <= told && told <= (uint64_t)test_now_ms() * 1000 + 1000);
    ck_assert_ptr_nonnull(strstr(heard, "\nWATCHDOG=1\n"));
    wire_expect(fd, 5, FA_DEVICE_LOST, "");
    wire_expect_end(fd);
    manager_hear(manager, heard);
    ck_assert_msg(strncmp(heard, "READY=1\nSTATUS=serving: ", 24) == 0, "%s", heard);
    ck_assert_msg(strstr(heard, " in flight; 1 device loss\n") != NULL, "%s", heard);
    for (int i = 0; i < 3; i++)
        manager_await(manager, "WATCHDOG=1", heard);
    signal_daemon();
    manager_await(manager, "STOPPING=1", heard);
    loss_expect_exit(0);
    close(manager);
    unlink(path);
    test_remove_directory(directory);
}
END_TEST

START_TEST(a_socket_handed_over_is_kept)
{
    struct stat before, after;
    int fd;

    loss_begin_inherited();
    ck_assert_int_eq(stat(wire_daemon()->socket, &before), 0);
    for (uint64_t count = 1; count <= 2; count++) {
        loss_happens(count);
        fd = wire_greet();
        wire_serves(fd);
        close(fd);
    }
    signal_daemon();
    ck_assert_int_eq(test_wait(wire_daemon()->pid, WIRE_SECONDS), 0);
    ck_assert_int_eq(stat(wire_daemon()->socket, &after), 0);
    ck_assert_uint_eq(after.st_ino, before.st_ino);
    unlink(wire_daemon()->socket);
    test_remove_directory(wire_daemon()->directory);
}
END_TEST

/* --- SIGTERM ---------------------------------------------------------------------------------- */

static void expect_lost(int fd, uint64_t id)
{
    wire_expect(fd, id, FA_DEVICE_LOST, "");
    close(fd);
}

/* It comes with the loss, and is seen before it or after. */
START_TEST(sigterm_with_the_loss)
{
    struct wire_forward f;
    int busy, trigger;

    begin();
    busy = wire_greet();
    trigger = wire_greet();
    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(busy, &f, 7));
    wire_forward_free(&f);
    wire_ping(busy, 8);
    loss_send(trigger, 5, FAULTY_SCALE_TERM);
    expect_lost(trigger, 5);
    expect_lost(busy, 7);
    loss_await_log("; not starting anew");
    ck_assert(!loss_has_logged("(loss 1)"));
    loss_expect_exit(0);
}
END_TEST

START_TEST(sigterm_while_the_backend_hangs)
{
    struct wire_forward f;
    int busy, trigger;

    begin();
    busy = wire_greet();
    trigger = wire_greet();
    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(busy, &f, 7));
    wire_forward_free(&f);
    wire_ping(busy, 8);
    loss_send(trigger, 5, FAULTY_SCALE_HANG);
    loss_await_log("the device is lost");
    signal_daemon();
    expect_lost(trigger, 5);
    expect_lost(busy, 7);
    loss_expect_exit(0);
}
END_TEST

/* From the last moments before the exec to the first ones of the successor. */
START_TEST(sigterm_around_the_exec)
{
    int fd;

    begin();
    fd = wire_greet();
    loss_send(fd, 5, FAULTY_SCALE_LOSE);
    if (_i % 2)
        loss_await_log(": starting anew");
    for (int i = 0; i < 50 * _i; i++)
        sched_yield();
    signal_daemon();
    loss_expect_exit(0);
    close(fd);
}
END_TEST

/* --- Handovers that are none ------------------------------------------------------------------ */

/* Those of others, and what is none. */
START_TEST(anothers_handover_is_ignored)
{
    static const char *const texts[] = {
        "",
        "nonsense",
        "1 4 5 0 0 0 0 1 0 0 0 0 0 0 cpu",
        "1 4 5",
        "-1 4 5 0 0 0 0 1 0 0 0 0 0 0 cpu",
        "99999999999999999999 4 5 0 0 0 0 1 0 0 0 0 0 0 cpu",
    };
    int fd;

    setenv("FAD_HANDOVER", texts[_i], 1);
    begin();
    ck_assert(loss_has_logged("is not for this process: ignored"));
    loss_happens(1);
    fd = wire_greet();
    wire_serves(fd);
    close(fd);
    loss_teardown();
}
END_TEST

/* The program, told that the numbers are for it, in $0's place of the text: "4" is descriptor 3, a
 * socket that listens. */
static void run_with(const char *text, struct test_output *output)
{
    char script[256], directory[64], path[96];
    const char *argv[] = {"sh", "-c", script, test_program("tests/fad-faulty"), NULL};
    struct test_process process;
    int listening;

    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/fad.sock", directory);
    listening = manager_socket(SOCK_STREAM, path);
    snprintf(script, sizeof script, "FAD_HANDOVER=\"$$ %s\" exec \"$0\"", text);
    manager_begin(&process, argv, &listening, 1, -1);
    if (!output) {
        int fd = manager_connect(path);
        wire_hello(fd);
        wire_serves(fd);
        close(fd);
        kill(process.pid, SIGTERM);
    }
    struct test_output all = test_finish(&process);
    if (output) {
        *output = all;
    } else {
        ck_assert_int_eq(all.code, 0);
        ck_assert_msg(strstr(all.err, "the statistics start from zero: ") != NULL, "%s", all.err);
        test_output_release(&all);
    }
    close(listening);
    unlink(path);
    test_remove_directory(directory);
}

START_TEST(handover_that_cannot_be_taken_is_refused)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"1 0 0 1 0 0 1 0 0 0 0 0 0 cpu", "FAD_HANDOVER: descriptor 0 is no listening"},
        {"4 0 0 1 0 0 1 0 0 0 0 0 0 nonsense", "there is no backend 'nonsense'"},
        {"4 0 0 1 0 0 1 0 0 0 0 0 0 cuda", "without CUDA"}, /* never the CPU instead */
    };
    const char *no_cuda = getenv("FA_NO_CUDA");
    struct test_output output;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (i == 2 && !(no_cuda && no_cuda[0]))
            continue;
        run_with(rows[i].text, &output);
        ck_assert_int_eq(output.code, 1);
        ck_assert_msg(strstr(output.err, rows[i].words) != NULL, "%s", output.err);
        test_output_release(&output);
    }
}
END_TEST

/* The socket counts; the counters, here of no such memory, do not. */
START_TEST(handover_without_counters_is_taken)
{
    run_with("4 0 1 1 0 0 1 0 0 0 0 0 0 cpu", NULL);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("loss_manager");
    TCase *tests = tcase_create("loss_manager");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_test(tests, the_manager_hears_of_a_reload);
    tcase_add_test(tests, a_socket_handed_over_is_kept);
    tcase_add_test(tests, sigterm_with_the_loss);
    tcase_add_test(tests, sigterm_while_the_backend_hangs);
    tcase_add_loop_test(tests, sigterm_around_the_exec, 0, 20);
    tcase_add_loop_test(tests, anothers_handover_is_ignored, 0, 6);
    tcase_add_test(tests, handover_that_cannot_be_taken_is_refused);
    tcase_add_test(tests, handover_without_counters_is_taken);
    suite_add_tcase(suite, tests);
    return suite;
}
