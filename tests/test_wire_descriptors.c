/* test_wire_descriptors.c: descriptors in transit: missing, too many, on any byte, in floods. What
 * the daemon holds afterwards is checked by the fixture. */
#include "tests/helpers/wire_forward.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ALL_SHARED 0x1fu

/* The bytes of a forward in shared memory. */
static void make(struct wire_forward *f, struct wire_bytes *bytes, uint64_t id)
{
    wire_forward_make(f, WIRE_SMALL, ALL_SHARED);
    *bytes = (struct wire_bytes){0};
    wire_forward_append(f, id, bytes);
}

static void release(struct wire_forward *f, struct wire_bytes *bytes)
{
    wire_forward_free(f);
    wire_free(bytes);
}

static void expect_result(int fd, const struct wire_forward *f, uint64_t id)
{
    struct wire_reply reply;

    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    wire_forward_check(f, &reply);
    wire_release(&reply);
}

/* --- On which byte --------------------------------------------------------------------------- */

START_TEST(descriptor_on_any_byte_of_header_and_message)
{
    struct wire_forward f;
    struct wire_bytes bytes;
    int fd = wire_greet();

    make(&f, &bytes, 5);
    ck_assert_uint_eq(f.payload.size, 0);
    for (size_t at = 0; at < bytes.size; at++) {
        wire_send(fd, bytes.data, at);
        ck_assert(wire_try_send_fds(fd, bytes.data + at, bytes.size - at, 1, &f.memfd, 1));
        expect_result(fd, &f, 5);
    }
    release(&f, &bytes);
    close(fd);
}
END_TEST

START_TEST(descriptor_is_not_waited_for_until_the_payload)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 1u << FAD_O);
    wire_forward_append(&f, 5, &bytes);
    wire_send(fd, bytes.data, bytes.size - f.payload.size);
    wire_expect_last(fd, 5, FA_PROTOCOL_ERROR,
                     "header.nfds"); /* before any of the payload is sent */
    release(&f, &bytes);
}
END_TEST

START_TEST(descriptor_glued_to_the_frame_before)
{
    const struct wire_shape shape = {1, 1, 1, 512, 512, 256}; /* q, k and v together: 1.5 MiB */
    struct wire_forward before, f;
    struct wire_bytes bytes;
    int fd = wire_greet();

    wire_forward_make(&before, shape, 0);
    make(&f, &bytes, 6);
    for (int i = 0; i < 20; i++) {
        struct wire_bytes large = {0};
        size_t head;

        /* The end of a large frame and the start of the next, with its descriptor, in one send. */
        wire_forward_append(&before, 5, &large);
        head = large.size - (size_t)i * 64;
        wire_send(fd, large.data, head);
        memmove(large.data, large.data + head, large.size - head);
        large.size -= head;
        wire_append(&large, bytes.data, bytes.size);
        ck_assert(wire_try_send_fds(fd, large.data, large.size, large.size, &f.memfd, 1));
        for (int r = 0; r < 2; r++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            wire_forward_check(reply.frame.id == 5 ? &before : &f, &reply);
            wire_release(&reply);
        }
        wire_free(&large);
    }
    wire_forward_free(&before);
    release(&f, &bytes);
    close(fd);
}
END_TEST

START_TEST(descriptor_of_a_large_frame_behind_a_small_one)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0}, rest = {0};
    struct wire_frame ping = wire_ping_frame(4);
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 512, 512, 256}, 1u << FAD_O);
    wire_append_frame(&bytes, &ping);
    wire_forward_append(&f, 5, &rest);
    ck_assert_uint_gt(rest.size, 1 << 20);
    wire_append(&bytes, rest.data, rest.size);
    ck_assert(wire_try_send_fds(fd, bytes.data, bytes.size, 256, &f.memfd, 1));
    wire_expect(fd, 4, FA_OK, "");
    expect_result(fd, &f, 5);
    wire_free(&rest);
    release(&f, &bytes);
    close(fd);
}
END_TEST

START_TEST(descriptors_of_pipelined_frames_keep_their_order)
{
    struct wire_forward f[12];
    int fd = wire_greet();

    for (uint64_t i = 0; i < 12; i++) {
        uint32_t rows = (uint32_t)i + 1; /* another size each: a mix-up is refused or wrong */
        wire_forward_make(&f[i], (struct wire_shape){1, 1, 1, rows, rows, 16}, ALL_SHARED);
        ck_assert(wire_forward_send(fd, &f[i], 100 + i));
    }
    for (int i = 0; i < 12; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 100 && reply.frame.id < 112);
        wire_forward_check(&f[reply.frame.id - 100], &reply);
        wire_release(&reply);
    }
    for (int i = 0; i < 12; i++)
        wire_forward_free(&f[i]);
    close(fd);
}
END_TEST

START_TEST(eight_descriptors_in_one_control_message_for_eight_frames)
{
    struct wire_forward f[8];
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), fds[8];

    for (uint64_t i = 0; i < 8; i++) {
        uint32_t rows = (uint32_t)i + 1;
        wire_forward_make(&f[i], (struct wire_shape){1, 1, 1, rows, rows, 16}, ALL_SHARED);
        wire_forward_append(&f[i], 100 + i, &bytes);
        fds[i] = f[i].memfd;
    }
    ck_assert(wire_try_send_fds(fd, bytes.data, bytes.size, bytes.size, fds, 8));
    for (int i = 0; i < 8; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 100 && reply.frame.id < 108);
        wire_forward_check(&f[reply.frame.id - 100], &reply);
        wire_release(&reply);
    }
    for (int i = 0; i < 8; i++)
        wire_forward_free(&f[i]);
    wire_free(&bytes);
    close(fd);
}
END_TEST

/* --- Too few, too many ----------------------------------------------------------------------- */

START_TEST(announced_descriptor_that_does_not_come)
{
    struct wire_forward f;
    struct wire_bytes bytes;
    int fd = wire_greet(), other = wire_greet();

    make(&f, &bytes, 5);
    wire_send(fd, bytes.data, bytes.size);
    wire_expect_last(fd, 5, FA_PROTOCOL_ERROR, "header.nfds");
    wire_serves(other);
    release(&f, &bytes);
    close(other);
}
END_TEST

START_TEST(descriptor_that_no_frame_announced)
{
    struct wire_frame ping = wire_ping_frame(5);
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), given = 0;

    wire_append_frame(&bytes, &ping);
    ck_assert(wire_try_send_fds(fd, bytes.data, bytes.size, bytes.size, &given, 1));
    wire_expect(fd, 5, FA_OK, ""); /* by itself it was right */
    wire_expect_last(fd, 0, FA_PROTOCOL_ERROR, "header.nfds");
    wire_free(&bytes);
}
END_TEST

START_TEST(descriptor_inside_a_large_payload_that_no_frame_announced)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    size_t half;
    int fd = wire_greet(), given = 0;

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 512, 512, 256}, 0);
    wire_forward_append(&f, 5, &bytes);
    half = bytes.size / 2;
    wire_send(fd, bytes.data, half);
    wire_try_send_fds(fd, bytes.data + half, bytes.size - half, 1, &given, 1);
    wire_expect_last(fd, 5, FA_PROTOCOL_ERROR, "header.nfds");
    release(&f, &bytes);
}
END_TEST

static void expect_too_many(int count)
{
    struct wire_forward f;
    struct wire_bytes bytes;
    int fd = wire_greet(), fds[253];

    make(&f, &bytes, 5);
    for (int i = 0; i < count; i++)
        fds[i] = f.memfd;
    wire_try_send_fds(fd, bytes.data, bytes.size, bytes.size, fds, count);
    /* Two: the frame takes the first, the second is left over at its end. */
    wire_expect_last(fd, count == 2 ? 5 : 0, FA_PROTOCOL_ERROR, "header.nfds");
    release(&f, &bytes);
    wire_expect_rest();
}

START_TEST(two_descriptors_at_once)
{
    expect_too_many(2);
}
END_TEST

START_TEST(nine_descriptors_at_once)
{
    expect_too_many(9);
}
END_TEST

START_TEST(as_many_descriptors_at_once_as_the_system_takes)
{
    expect_too_many(253);
}
END_TEST

START_TEST(descriptors_one_a_send_without_frames)
{
    struct wire_frame ping = wire_make(FA_FRAME_PING, 5, NULL, 0, NULL, 0);
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), given = 0;

    ping.payload_length = 1 << 20; /* inside one frame, so that none is left over */
    wire_append_frame(&bytes, &ping);
    wire_send(fd, bytes.data, bytes.size);
    wire_expect(fd, 5, FA_INVALID_ARGUMENT, "header.payload_length");
    for (int i = 0; i < 9; i++)
        if (!wire_try_send_fds(fd, "x", 1, 1, &given, 1))
            break;
    wire_expect_last(fd, 0, FA_PROTOCOL_ERROR, "header.nfds");
    wire_free(&bytes);
}
END_TEST

/* --- Floods ---------------------------------------------------------------------------------- */

START_TEST(flood_of_descriptors_costs_only_its_sender)
{
    int other = wire_greet(), fds[64];

    for (int i = 0; i < 64; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int round = 0; round < 20; round++) {
        int fd = wire_greet();
        static const uint8_t junk[4096] = {0};

        while (wire_try_send_fds(fd, junk, sizeof junk, 1, fds, 64))
            ;
        close(fd);
        wire_serves(other);
        while (wire_daemon_fds() >= 100) /* threads close them, soon after */
            usleep(1000);
    }
    close(other);
    wire_expect_rest();
}
END_TEST

START_TEST(descriptors_of_a_client_that_hangs_up_are_closed)
{
    struct wire_forward f;
    struct wire_bytes bytes;

    make(&f, &bytes, 5);
    for (size_t at = 1; at < bytes.size; at += 7) {
        int fd = wire_greet();
        ck_assert(wire_try_send_fds(fd, bytes.data, at, 1, &f.memfd, 1));
        close(fd);
    }
    wire_expect_rest();
    release(&f, &bytes);
}
END_TEST

START_TEST(refused_requests_keep_no_descriptor)
{
    int fd = wire_greet();
    int before = wire_daemon_fds();

    for (uint64_t id = 10; id < 200; id++) {
        struct wire_forward f;

        wire_forward_make(&f, WIRE_SMALL, ALL_SHARED);
        switch (id % 4) {
        case 0:
            f.message.has_heads = false;
            break;
        case 1:
            f.shared[FAD_Q].offset = 1 << 30;
            break;
        case 2:
            wire_forward_use_ipc(&f, FAD_V);
            break;
        default:
            f.message.dtype = FAD__DTYPE__FLOAT16;
        }
        ck_assert(wire_forward_send(fd, &f, id));
        struct wire_reply reply;
        wire_receive(fd, &reply);
        ck_assert_int_ne(reply.message->status, FAD__STATUS__OK);
        wire_release(&reply);
        wire_forward_free(&f);
    }
    wire_serves(fd);
    for (int i = 0; i < 1000 && wire_daemon_fds() > before; i++)
        usleep(1000); /* threads close them, soon after */
    ck_assert_int_le(wire_daemon_fds(), before);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        descriptor_on_any_byte_of_header_and_message,
        descriptor_is_not_waited_for_until_the_payload,
        descriptor_glued_to_the_frame_before,
        descriptor_of_a_large_frame_behind_a_small_one,
        descriptors_of_pipelined_frames_keep_their_order,
        eight_descriptors_in_one_control_message_for_eight_frames,
        announced_descriptor_that_does_not_come,
        descriptor_that_no_frame_announced,
        descriptor_inside_a_large_payload_that_no_frame_announced,
        two_descriptors_at_once,
        nine_descriptors_at_once,
        as_many_descriptors_at_once_as_the_system_takes,
        descriptors_one_a_send_without_frames,
        flood_of_descriptors_costs_only_its_sender,
        descriptors_of_a_client_that_hangs_up_are_closed,
        refused_requests_keep_no_descriptor,
    };
    return wire_suite("wire_descriptors", tests, sizeof tests / sizeof tests[0]);
}
