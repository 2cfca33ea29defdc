/* test_device_lost.c: an illegal access on the GPU, for clients whose memory lies there: row 22 of
 * ../shared/CASES.md. tests/test_loss.c has all else, and runs on the GPU, too. */
#include "tests/gpu/daemon/peer.h"
#include "tests/helpers/manager.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALL      0x1fu
#define FAULTY   "tests/fad-faulty"
#define LOSE     1048573.0 /* FAULTY_SCALE_LOSE of tests/faulty/faulty.h */
#define BACK     "(loss "  /* what the daemon logs when it is back, and the how-many-th time */
#define MIB      ((size_t)1 << 20)
#define CLIENTS  4
#define REQUESTS 8

static void setup(void)
{
    struct test_daemon *daemon = wire_daemon();
    const char *argv[] = {test_program(FAULTY), "--backend",    "cuda",
                          "--socket",           daemon->socket, NULL};
    struct test_process process;
    int log;

    test_make_directory(daemon->directory);
    snprintf(daemon->socket, sizeof daemon->socket, "%s/fad.sock", daemon->directory);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", daemon->directory);
    log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(log, 0);
    manager_begin(&process, argv, NULL, 0, log);
    daemon->pid = process.pid;
    close(process.out);
    close(log);
    close(manager_connect(daemon->socket));
}

static void teardown(void)
{
    int fd = wire_greet();

    wire_expect_idle(fd);
    close(fd);
    test_daemon_stop(wire_daemon());
}

static void send_poison(int fd, uint64_t id)
{
    struct wire_forward f;

    wire_forward_make(&f, WIRE_SMALL, 0);
    f.message.has_scale = true;
    f.message.scale = LOSE;
    ck_assert(wire_forward_send(fd, &f, id));
    wire_forward_free(&f);
}

/* The daemon is back, for the count-th time. */
static void await_return(int count)
{
    const long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;
    char words[32];
    bool there = false;

    snprintf(words, sizeof words, BACK "%d)", count);
    while (!there) {
        char *log = test_daemon_log(wire_daemon());

        there = strstr(log, words) != NULL;
        ck_assert_msg(there || test_now_ms() < deadline, "it has not come back: %s", log);
        free(log);
        test_sleep_ms(5);
    }
}

/* All that is in flight is answered, each once: those that came before the fault may have ended
 * well, the others DEVICE_LOST. Then comes the end. */
static unsigned take_answers(int fd, unsigned count)
{
    unsigned lost = 0;

    for (unsigned i = 0; i < count; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert_msg(reply.message->status == FAD__STATUS__OK ||
                          reply.message->status == FAD__STATUS__DEVICE_LOST,
                      "%s: %s", fa_status_name((enum fa_status)reply.message->status),
                      reply.message->text);
        lost += reply.message->status == FAD__STATUS__DEVICE_LOST;
        wire_release(&reply);
    }
    return lost;
}

/* Clients with memory on the GPU, and requests on it under way by handle and as a region. Their
 * memory is their own: after the loss the same handles are served again. */
START_TEST(row_22_pending_requests_are_lost_and_the_daemon_comes_back)
{
    struct peer peer;
    struct peer_memory memory[CLIENTS];
    struct wire_forward f[CLIENTS];
    unsigned lost = 0;
    int fds[CLIENTS], poison = wire_greet(), fd;

    peer_start(&peer, 0);
    for (size_t c = 0; c < CLIENTS; c++) {
        fds[c] = wire_greet();
        peer_forward_make(&f[c], &peer, &memory[c], (struct wire_shape){1, 16, 16, 512, 8192, 64});
        if (c % 2) {
            peer_register(&memory[c], fds[c], true);
            wire_forward_use_regions(&f[c], ALL, &memory[c].region);
            peer_push(&memory[c], 0);
        }
    }
    for (uint64_t id = 10; id < 10 + REQUESTS; id++)
        for (size_t c = 0; c < CLIENTS; c++)
            ck_assert(wire_forward_send(fds[c], &f[c], id));
    send_poison(poison, 5);
    for (size_t c = 0; c < CLIENTS; c++) {
        lost += take_answers(fds[c], REQUESTS);
        wire_expect_end(fds[c]);
    }
    ck_assert_uint_gt(lost, 0);
    peer_expect(poison, 5, FA_DEVICE_LOST);
    wire_expect_end(poison);
    fd = wire_greet(); /* at once: it is not refused, but waits */
    wire_serves(fd);
    await_return(1);
    for (size_t c = 0; c < CLIENTS; c += 2) {
        peer_push(&memory[c], 0);
        peer_run(fd, &f[c], 20, &memory[c]);
    }
    for (size_t c = 0; c < CLIENTS; c++) {
        wire_forward_free(&f[c]);
        peer_free(&memory[c]);
    }
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Its memory on the GPU is that of one daemon each time, and clients connect meanwhile as ever. */
START_TEST(row_22_losses_leave_nothing_and_refuse_nobody)
{
    struct peer peer;
    uint64_t before;
    int fd;

    peer_start(&peer, 0);
    fd = wire_greet();
    wire_serves(fd);
    close(fd);
    before = peer_gpu_free(&peer);
    for (int round = 1; round <= 4; round++) {
        int waiting[8];
        struct wire_region region;

        fd = wire_greet();
        wire_region_alloc(&region, fd, 512 * MIB);
        wire_region_free(&region);
        send_poison(fd, 5);
        for (int i = 0; i < 8; i++)
            waiting[i] = wire_connect();
        peer_expect(fd, 5, FA_DEVICE_LOST);
        wire_expect_end(fd);
        await_return(round);
        for (int i = 0; i < 8; i++)
            close(waiting[i]);
        fd = wire_greet();
        wire_serves(fd);
        close(fd);
    }
    peer_expect_freed(&peer, before);
    peer_stop(&peer);
}
END_TEST

Suite *test_suite(void)
{
    static const char reason[] = "there is no " FAULTY;
    Suite *suite = suite_create("device_lost");
    TCase *tcase = tcase_create("device_lost");
    char path[PATH_MAX];

    suite_add_tcase(suite, tcase);
    snprintf(path, sizeof path, "%s/%s", test_build_dir(), FAULTY);
    if (access(path, X_OK) != 0) {
        test_skip("row_22_pending_requests_are_lost_and_the_daemon_comes_back", reason);
        test_skip("row_22_losses_leave_nothing_and_refuse_nobody", reason);
        return suite;
    }
    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, row_22_pending_requests_are_lost_and_the_daemon_comes_back);
    tcase_add_test(tcase, row_22_losses_leave_nothing_and_refuse_nobody);
    return suite;
}
