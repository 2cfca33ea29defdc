/* test_ipc_order.c: requests that wait for a client's CUDA event. The numbers are rows of
 * ../shared/CASES.md. */
#include "tests/gpu/daemon/peer.h"

#include <string.h>
#include <unistd.h>

#define ALL 0x1fu

/* New inputs, and outputs of NaN, in the test's copy. */
static void refill(struct wire_forward *f, uint64_t *seed)
{
    for (int t = 0; t < FAD_TENSORS; t++) {
        uint8_t *bytes = wire_forward_bytes(f, (enum fad_tensor)t);
        const uint64_t size = wire_forward_span(f, (enum fad_tensor)t);

        if (t > FAD_V)
            memset(bytes, 0xff, size);
        for (uint64_t i = 0; t <= FAD_V && i < size; i += sizeof(float)) {
            const float value = (float)(int64_t)(wire_random(seed) % 20001 - 10000) / 5000.0f;
            memcpy(bytes + i, &value, sizeof value);
        }
    }
}

/* --- Row 6 ----------------------------------------------------------------------------------- */

/* The inputs come 50 ms after the request; the mapping and, every second time, the event have been
 * used before. */
START_TEST(row_6_inputs_that_a_kernel_still_computes)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint8_t events[2][64];
    uint64_t seed = 99;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, (struct wire_shape){1, 2, 2, 130, 150, 64});
    for (unsigned e = 0; e < 2; e++)
        peer_event(&peer, e, events[e]);
    for (unsigned round = 0; round < 12; round++) {
        const unsigned event = round / 2 % 2;

        refill(&f, &seed);
        peer_push(&memory, 50);
        peer_tell(&peer, "record %u", event);
        f.ipc[FAD_Q].has_event = f.ipc[FAD_K].has_event = f.ipc[FAD_V].has_event = false;
        peer_await(&f, (enum fad_tensor)(round % 3), events[event]);
        peer_run(fd, &f, 10 + round, &memory);
    }
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* The same with tensors in a region of the memory. */
START_TEST(row_6_inputs_in_a_region)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint8_t event[64];
    uint64_t seed = 98;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, (struct wire_shape){1, 2, 2, 130, 150, 64});
    peer_register(&memory, fd, true);
    wire_forward_use_regions(&f, ALL, &memory.region);
    peer_event(&peer, 0, event);
    f.lodged[FAD_V].has_event = true;
    f.lodged[FAD_V].event = (ProtobufCBinaryData){sizeof event, event};
    for (unsigned round = 0; round < 4; round++) {
        refill(&f, &seed);
        peer_push(&memory, 50);
        peer_tell(&peer, "record 0");
        peer_run(fd, &f, 10 + round, &memory);
    }
    wire_release_region(fd, memory.region.id);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Several requests at once, each with an event of its own on one stream, and one on two events. */
START_TEST(row_6_each_request_waits_for_its_own_event)
{
    enum { COUNT = 4 };
    struct peer peer;
    struct peer_memory memory[COUNT];
    struct wire_forward f[COUNT];
    uint8_t events[COUNT][64];
    unsigned seen = 0;
    int fd = wire_greet();

    peer_start(&peer, 0);
    for (unsigned i = 0; i < COUNT; i++) {
        uint64_t seed = 7 + i;

        peer_forward_make(&f[i], &peer, &memory[i], (struct wire_shape){1, 2, 2, 30, 50, 64});
        peer_event(&peer, i, events[i]);
        refill(&f[i], &seed);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        peer_push(&memory[i], 20);
        peer_tell(&peer, "record %u", i);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        peer_await(&f[i], FAD_K, events[i]);
        if (i == 0)
            peer_await(&f[i], FAD_V, events[3]);
        ck_assert(wire_forward_send(fd, &f[i], 10 + i));
    }
    while (seen != (1u << COUNT) - 1) {
        struct wire_reply reply;
        uint64_t i;

        wire_receive(fd, &reply);
        i = reply.frame.id - 10;
        ck_assert(i < COUNT && !(seen & 1u << i));
        seen |= 1u << i;
        peer_pull(&memory[i]);
        wire_forward_check(&f[i], &reply);
        wire_release(&reply);
    }
    for (int i = 0; i < COUNT; i++) {
        wire_forward_free(&f[i]);
        peer_free(&memory[i]);
    }
    peer_stop(&peer);
    close(fd);
}
END_TEST

START_TEST(events_that_the_driver_refuses)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint8_t event[64] = {0};
    uint64_t seed = 5;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, WIRE_SMALL);
    peer_await(&f, FAD_K, event);
    for (int round = 0; round < 10; round++) {
        ck_assert(wire_forward_send(fd, &f, 5));
        wire_expect(fd, 5, FA_IPC_REFUSED, "k.cuda_ipc.event");
        wire_serves(fd);
        for (size_t i = 0; i < sizeof event; i++)
            event[i] = (uint8_t)wire_random(&seed);
    }
    f.ipc[FAD_K].has_event = false;
    peer_run(fd, &f, 6, &memory);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* --- Row 25 ---------------------------------------------------------------------------------- */

/* A request that waits for an event which the peer holds back. */
struct waiting {
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint8_t event[64];
};

static void waiting_begin(struct waiting *w)
{
    peer_start(&w->peer, 0);
    peer_forward_make(&w->f, &w->peer, &w->memory, WIRE_SMALL);
    peer_event(&w->peer, 0, w->event);
    peer_tell(&w->peer, "hold");
    peer_tell(&w->peer, "record 0");
    peer_await(&w->f, FAD_Q, w->event);
}

static void waiting_end(struct waiting *w)
{
    peer_tell(&w->peer, "release");
    wire_forward_free(&w->f);
    peer_free(&w->memory);
    peer_stop(&w->peer);
}

/* As many requests as the streams could be held up by; all others are served meanwhile. */
START_TEST(row_25_event_that_never_fires)
{
    enum { WAIT = 20 };
    struct waiting w;
    int fd = wire_greet(), other = wire_greet();

    waiting_begin(&w);
    for (uint64_t id = 10; id < 10 + WAIT; id++)
        ck_assert(wire_forward_send(fd, &w.f, id));
    for (int i = 0; i < 50; i++)
        wire_serves(other);
    wire_serves(fd);               /* its own other requests, too */
    ck_assert(!wire_has_news(fd)); /* by now none was answered */
    for (uint64_t seen = 0; seen != (1u << WAIT) - 1;) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert_msg(reply.message->status == FAD__STATUS__EVENT_TIMEOUT, "%s: %s",
                      fa_status_name((enum fa_status)reply.message->status), reply.message->text);
        ck_assert(reply.frame.id >= 10 && reply.frame.id < 10 + WAIT);
        ck_assert(!(seen & 1u << (reply.frame.id - 10)));
        seen |= 1u << (reply.frame.id - 10);
        wire_release(&reply);
    }
    wire_serves(fd);
    waiting_end(&w);
    close(other);
    close(fd);
}
END_TEST

START_TEST(waiting_for_an_event_ends_with_cancel_and_deadline)
{
    struct waiting w;
    int fd = wire_greet();

    waiting_begin(&w);
    ck_assert(wire_forward_send(fd, &w.f, 10));
    wire_serves(fd);
    ck_assert(wire_cancel(fd, 10));
    wire_expect(fd, 10, FA_CANCELLED, "");
    w.f.message.has_deadline_us = true;
    w.f.message.deadline_us = 50000;
    ck_assert(wire_forward_send(fd, &w.f, 11));
    peer_expect(fd, 11, FA_DEADLINE_EXCEEDED);
    w.f.message.has_deadline_us = false;
    ck_assert(wire_forward_send(fd, &w.f, 12));
    wire_serves(fd);
    peer_tell(&w.peer, "release");
    wire_expect(fd, 12, FA_OK, "");
    waiting_end(&w);
    close(fd);
}
END_TEST

/* The client goes, or the event's maker: nothing is left (the fixture looks). */
START_TEST(hanging_up_while_it_waits_for_an_event)
{
    struct waiting w;
    int fd = wire_greet(), other = wire_greet();

    waiting_begin(&w);
    ck_assert(wire_forward_send(fd, &w.f, 10));
    wire_ping(fd, 11);
    close(fd);
    wire_expect_idle(other);
    waiting_end(&w);
    close(other);
}
END_TEST

/* Its death makes the event happen, or the driver refuse it, or nothing of the kind: one answer. */
START_TEST(the_events_maker_is_killed)
{
    struct wire_reply reply;
    struct waiting w;
    int fd = wire_greet();

    waiting_begin(&w);
    ck_assert(wire_forward_send(fd, &w.f, 10));
    wire_serves(fd);
    peer_kill(&w.peer);
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, 10);
    ck_assert_msg(reply.message->status == FAD__STATUS__OK ||
                      reply.message->status == FAD__STATUS__EVENT_TIMEOUT ||
                      reply.message->status == FAD__STATUS__IPC_REFUSED,
                  "%s: %s", fa_status_name((enum fa_status)reply.message->status),
                  reply.message->text);
    wire_release(&reply);
    wire_serves(fd);
    wire_forward_free(&w.f);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        row_6_inputs_that_a_kernel_still_computes,
        row_6_inputs_in_a_region,
        row_6_each_request_waits_for_its_own_event,
        events_that_the_driver_refuses,
        row_25_event_that_never_fires,
        waiting_for_an_event_ends_with_cancel_and_deadline,
        hanging_up_while_it_waits_for_an_event,
        the_events_maker_is_killed,
    };
    return wire_suite("ipc_order", tests, sizeof tests / sizeof tests[0]);
}
