/* test_wire_flow.c: how requests and replies flow: pipelining, clients that do not read, limits,
 * and clients that stall. */
#include "tests/helpers/wire_forward.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- Pipelining ------------------------------------------------------------------------------ */

/* Two requests of 64 MiB each with as much inline output, all written before anything is read, over
 * sockets that buffer as little as the system lets them. */
START_TEST(client_that_writes_all_before_it_reads)
{
    const struct wire_shape shape = {1, 65536, 1, 1, 1, 256}; /* q and o: 64 MiB */
    int fd = wire_greet(), least = 1;
    const long before = wire_daemon_resident();
    struct wire_reply replies[2];
    struct wire_forward f;

    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
    wire_forward_make(&f, shape, 0);
    ck_assert_uint_ge(f.payload.size, 64 << 20);
    for (uint64_t id = 5; id < 7; id++)
        ck_assert(wire_forward_send(fd, &f, id));
    for (int i = 0; i < 2; i++)
        wire_receive(fd, &replies[i]);
    wire_forward_check(&f, &replies[0]);
    ck_assert_uint_eq(replies[0].frame.payload_length, replies[1].frame.payload_length);
    ck_assert_int_eq(
        memcmp(replies[0].payload, replies[1].payload, replies[0].frame.payload_length), 0);
    for (int i = 0; i < 2; i++)
        wire_release(&replies[i]);
    ck_assert_int_lt(wire_daemon_resident(), before + 1000 * 1024);
    wire_forward_free(&f);
    wire_serves(fd);
    close(fd);
}
END_TEST

START_TEST(thousand_pings_before_the_first_read)
{
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    for (uint64_t id = 1; id <= 1000; id++) {
        struct wire_frame ping = wire_ping_frame(id);
        wire_append_frame(&bytes, &ping);
    }
    wire_send(fd, bytes.data, bytes.size);
    for (uint64_t id = 1; id <= 1000; id++)
        wire_expect(fd, id, FA_OK, "");
    wire_free(&bytes);
    close(fd);
}
END_TEST

/* Reading pauses when too many replies wait, wherever that is; nothing may be lost then. */
START_TEST(frames_that_wait_while_reading_pauses_are_all_answered)
{
    struct wire_forward f;
    int fd = wire_greet(), least = 1;
    uint64_t sent = 1, answered = 1;

    /* The replies have little room, so they wait in the daemon. */
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
    wire_forward_make(&f, WIRE_SMALL, 0);
    f.message.dtype = FAD__DTYPE__FLOAT16; /* refused: a longer reply, and a payload to skip */
    for (int round = 0; round < 20; round++) {
        struct wire_bytes bytes = {0};

        for (int i = 0; i < 150; i++) {
            struct wire_frame ping = wire_ping_frame(sent);
            if (i % 3 == 0)
                wire_forward_append(&f, sent, &bytes);
            else
                wire_append_frame(&bytes, &ping);
            sent++;
        }
        wire_send(fd, bytes.data, bytes.size);
        wire_free(&bytes);
        for (int i = 0; i < 150; i++, answered++)
            wire_expect(fd, answered, i % 3 == 0 ? FA_UNIMPLEMENTED : FA_OK,
                        i % 3 == 0 ? "dtype" : "");
    }
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* A client that only writes is not read from any more at some point, so that it costs the daemon
 * little; once it reads, all goes on. */
START_TEST(unread_replies_stop_the_reading)
{
    enum { PINGS = 100000 };
    struct wire_bytes bytes = {0};
    size_t sent = 0;
    int fd = wire_greet();

    bytes.data = malloc((size_t)PINGS * FA_FRAME_HEADER_SIZE);
    ck_assert_ptr_nonnull(bytes.data);
    for (uint64_t id = 1; id <= PINGS; id++) {
        struct wire_frame ping = wire_ping_frame(id);
        struct wire_bytes one = {0};

        wire_append_frame(&one, &ping);
        memcpy(bytes.data + bytes.size, one.data, one.size);
        bytes.size += one.size;
        wire_free(&one);
    }
    for (;;) {
        struct pollfd polled = {fd, POLLOUT, 0};
        ssize_t n;

        if (poll(&polled, 1, 300) == 0)
            break;
        n = send(fd, bytes.data + sent, bytes.size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        ck_assert(n > 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        ck_assert_msg(sent < bytes.size, "the daemon took %d requests without an end", PINGS);
    }
    for (uint64_t id = 1; id <= sent / FA_FRAME_HEADER_SIZE; id++)
        wire_expect(fd, id, FA_OK, "");
    if (sent % FA_FRAME_HEADER_SIZE > 0) { /* the one that was cut */
        wire_send(fd, bytes.data + sent, FA_FRAME_HEADER_SIZE - sent % FA_FRAME_HEADER_SIZE);
        wire_expect(fd, sent / FA_FRAME_HEADER_SIZE + 1, FA_OK, "");
    }
    wire_serves(fd);
    wire_free(&bytes);
    close(fd);
}
END_TEST

/* All ids answered once. What is over the limit of requests in flight may be refused. */
START_TEST(hundred_forwards_pipelined_are_answered_once_each)
{
    enum { COUNT = 100 };
    bool seen[COUNT] = {false};
    struct wire_bytes bytes = {0};
    struct wire_forward f;
    int fd = wire_greet(), served = 0;

    wire_forward_make(&f, WIRE_SMALL, 0);
    for (uint64_t i = 0; i < COUNT; i++)
        wire_forward_append(&f, 1000 + i, &bytes);
    wire_send(fd, bytes.data, bytes.size);
    for (int i = 0; i < COUNT; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 1000 && reply.frame.id < 1000 + COUNT);
        ck_assert(!seen[reply.frame.id - 1000]);
        seen[reply.frame.id - 1000] = true;
        if (reply.message->status == FAD__STATUS__OK) {
            wire_forward_check(&f, &reply);
            served++;
        } else {
            ck_assert_int_eq(reply.message->status, FAD__STATUS__RESOURCE_EXHAUSTED);
            ck_assert_ptr_nonnull(strstr(reply.message->text, "requests in flight"));
        }
        wire_release(&reply);
    }
    ck_assert_int_ge(served, 64);
    wire_serves(fd);
    wire_free(&bytes);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(ping_overtakes_a_long_forward)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_ping(fd, 6);
    ck_assert(!wire_has_news(fd));
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* --- Limits ---------------------------------------------------------------------------------- */

/* The refusal comes before a byte of the payload is sent. */
START_TEST(staged_limit_refuses_at_once_and_is_named)
{
    static const uint8_t zeros[1 << 20] = {0};
    const uint64_t size = (uint64_t)400 << 20; /* of q; o is four times that */
    const long before = wire_daemon_resident();
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 1, 1, 100}, 0);
    wire_free(&f.payload);
    f.message.q_len = 1 << 20;
    f.message.heads = 4; /* that share the one head of q, k and v */
    f.message.has_kv_heads = true;
    f.message.kv_heads = 1;
    f.tensors[FAD_Q].has_stride_batch = f.tensors[FAD_Q].has_stride_head = true;
    f.tensors[FAD_Q].has_stride_row = true;
    f.tensors[FAD_Q].stride_row = 100;
    f.inlined[FAD_Q].length = size;
    wire_forward_append(&f, 5, &bytes);
    memcpy(bytes.data + 24, &size, sizeof size); /* the header's payload length */
    wire_send(fd, bytes.data, bytes.size);
    wire_expect_text(fd, 5, FA_RESOURCE_EXHAUSTED, "", "staged memory");
    for (uint64_t sent = 0; sent < size; sent += sizeof zeros)
        wire_send(fd, zeros, sizeof zeros);
    wire_serves(fd);
    ck_assert_int_lt(wire_daemon_resident(), before + 200 * 1024); /* nothing of it was kept */
    wire_free(&bytes);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Inputs of a few bytes with strides of 0 can ask for any output. */
START_TEST(output_of_any_size_is_charged_before_it_is_allocated)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 1, 1, 8}, 0);
    f.message.batch = f.message.q_len = 30000;
    for (int t = 0; t <= FAD_V; t++)
        wire_forward_set_strides(&f, (enum fad_tensor)t, 0, 0, 0);
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_expect_text(fd, 5, FA_RESOURCE_EXHAUSTED, "", "staged memory");
    f.message.batch = f.message.q_len = f.message.heads = f.message.kv_heads = INT32_MAX;
    wire_refused(fd, &f, FA_INVALID_ARGUMENT, "o");
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* --- Clients that stall ---------------------------------------------------------------------- */

static void setup_impatient(void)
{
    wire_setup_with((const char *const[]){"--stall-seconds", "1", NULL});
}

/* The daemon closes after some time; the other connection, idle all the while, does not suffer. */
START_TEST(half_a_frame_and_silence_is_closed_but_silence_between_frames_is_not)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    size_t cuts[4], count = sizeof cuts / sizeof cuts[0];
    int idle = wire_greet(), silent = wire_connect(), fds[4];

    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_append(&f, 5, &bytes);
    cuts[0] = 16;                              /* inside the header */
    cuts[1] = FA_FRAME_HEADER_SIZE;            /* before the message */
    cuts[2] = bytes.size - f.payload.size - 1; /* inside the message */
    cuts[3] = bytes.size - 1;                  /* inside the payload */
    for (size_t i = 0; i < count; i++) {
        fds[i] = wire_greet();
        wire_send(fds[i], bytes.data, cuts[i]);
    }
    for (size_t i = 0; i < count; i++)
        wire_expect_end(fds[i]);
    ck_assert(!wire_has_news(idle));
    ck_assert(!wire_has_news(silent));
    wire_serves(idle);
    close(idle);
    close(silent);
    wire_free(&bytes);
    wire_forward_free(&f);
}
END_TEST

START_TEST(client_that_never_reads_is_closed_and_others_are_served)
{
    struct wire_forward f;
    int other = wire_greet(), fd = wire_greet();
    uint64_t id = 10;

    /* 8 MiB of replies a request: more than any socket buffers. */
    wire_forward_make(&f, (struct wire_shape){1, 8192, 1, 1, 1, 256}, 1u << FAD_Q);
    while (wire_forward_send(fd, &f, id++) && id < 14)
        ;
    for (bool open = true; open; test_sleep_ms(20)) { /* a send to a closed connection fails */
        struct wire_frame ping = wire_ping_frame(id++);
        struct wire_bytes bytes = {0};

        wire_append_frame(&bytes, &ping);
        open = wire_try_send(fd, bytes.data, bytes.size);
        wire_free(&bytes);
        wire_serves(other);
    }
    close(fd);
    wire_serves(other);
    close(other);
    wire_forward_free(&f);
}
END_TEST

/* A slow client is not a stalled one: it makes progress all the time. Nor is one that sends on
 * while a reply waits that no socket's buffer holds. */
START_TEST(client_that_is_slow_is_not_closed)
{
    struct wire_forward f, large;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();
    long long begun = test_now_ms();
    size_t at = 0;

    wire_forward_make(&large, (struct wire_shape){1, 4096, 1, 1, 1, 256}, 0); /* o: 4 MiB */
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_append(&f, 6, &bytes);
    if (_i == 1)
        ck_assert(wire_forward_send(fd, &large, 5));
    if (_i == 1) /* then only a payload's bytes are progress */
        wire_send(fd, bytes.data, at = bytes.size - f.payload.size);
    for (; at < bytes.size; at++) {
        wire_send(fd, bytes.data + at, 1);
        if (test_now_ms() - begun < 1800) /* in all well over the second, in short steps */
            test_sleep_ms(10);
    }
    for (int i = 1 - _i; i < 2; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        wire_forward_check(reply.frame.id == 5 ? &large : &f, &reply);
        wire_release(&reply);
    }
    wire_free(&bytes);
    wire_forward_free(&large);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Else a client could keep the memory of a reply for ever. */
START_TEST(client_that_drips_pings_and_never_reads_is_closed)
{
    struct wire_frame ping = wire_ping_frame(6);
    struct wire_forward large;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();
    long long until = test_now_ms() + WIRE_SECONDS * 1000LL;

    wire_forward_make(&large, (struct wire_shape){1, 4096, 1, 1, 1, 256}, 0);
    ck_assert(wire_forward_send(fd, &large, 5));
    wire_append_frame(&bytes, &ping);
    for (size_t at = 0;; at = (at + 1) % bytes.size) { /* one sound ping after another */
        ck_assert_msg(test_now_ms() < until, "it is still served");
        if (send(fd, bytes.data + at, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE)
            break;
        test_sleep_ms(50);
    }
    wire_free(&bytes);
    wire_forward_free(&large);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        client_that_writes_all_before_it_reads,
        thousand_pings_before_the_first_read,
        frames_that_wait_while_reading_pauses_are_all_answered,
        unread_replies_stop_the_reading,
        hundred_forwards_pipelined_are_answered_once_each,
        ping_overtakes_a_long_forward,
        staged_limit_refuses_at_once_and_is_named,
        output_of_any_size_is_charged_before_it_is_allocated,
    };
    Suite *suite = wire_suite("wire_flow", tests, sizeof tests / sizeof tests[0]);
    TCase *impatient = tcase_create("stalls");

    tcase_set_timeout(impatient, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(impatient, setup_impatient, wire_teardown);
    tcase_add_test(impatient, half_a_frame_and_silence_is_closed_but_silence_between_frames_is_not);
    tcase_add_test(impatient, client_that_never_reads_is_closed_and_others_are_served);
    tcase_add_loop_test(impatient, client_that_is_slow_is_not_closed, 0, 2);
    tcase_add_test(impatient, client_that_drips_pings_and_never_reads_is_closed);
    suite_add_tcase(suite, impatient);
    return suite;
}
