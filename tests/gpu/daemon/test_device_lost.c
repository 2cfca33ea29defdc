/* test_device_lost.c: an illegal access on the GPU, for clients whose memory lies there: row 22 of
 * ../shared/CASES.md. tests/test_loss.c has all else, and runs on the GPU, too. */
#include "tests/gpu/daemon/peer.h"
#include "tests/helpers/loss.h"

#include <unistd.h>

#define ALL 0x1fu
#define MIB ((size_t)1 << 20)

enum { CLIENTS = 4, REQUESTS = 8 };

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
    loss_send(poison, 5, FAULTY_SCALE_LOSE);
    for (size_t c = 0; c < CLIENTS; c++) {
        lost += take_answers(fds[c], REQUESTS);
        wire_expect_end(fds[c]);
    }
    ck_assert_uint_gt(lost, 0);
    peer_expect(poison, 5, FA_DEVICE_LOST);
    wire_expect_end(poison);
    fd = wire_greet(); /* at once: it is not refused, but waits */
    wire_serves(fd);
    loss_await(1);
    for (size_t c = 0; c < CLIENTS; c++) {
        struct wire_forward again;

        wire_forward_make(&again, WIRE_SMALL, 0); /* the double-precision check is slow */
        peer_use_all(&again, ALL, &memory[c]);
        peer_push(&memory[c], 0);
        peer_run(fd, &again, 20, &memory[c]);
        wire_forward_free(&again);
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
    for (uint64_t round = 1; round <= 4; round++) {
        int waiting[8];
        struct wire_region region;

        fd = wire_greet();
        wire_region_alloc(&region, fd, 512 * MIB);
        wire_region_free(&region);
        loss_send(fd, 5, FAULTY_SCALE_LOSE);
        for (int i = 0; i < 8; i++)
            waiting[i] = wire_connect();
        peer_expect(fd, 5, FA_DEVICE_LOST);
        wire_expect_end(fd);
        loss_await(round);
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

/* Nothing is held for anybody, then it is ended. */
static void teardown(void)
{
    int fd = wire_greet();

    wire_expect_idle(fd);
    close(fd);
    loss_teardown();
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("device_lost");
    TCase *tcase = tcase_create("device_lost");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, loss_setup, teardown);
    tcase_add_test(tcase, row_22_pending_requests_are_lost_and_the_daemon_comes_back);
    tcase_add_test(tcase, row_22_losses_leave_nothing_and_refuse_nobody);
    suite_add_tcase(suite, tcase);
    return suite;
}
