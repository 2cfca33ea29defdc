/* test_wire_frames.c: frames as bytes: what breaks a connection, what only a request, and every way
 * the bytes may be cut. */
#include "tests/helpers/wire.h"
#include "tests/helpers/wire_forward.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Headers that cannot be followed --------------------------------------------------------- */

/* One last reply that names the header's field, then the end; others notice nothing. */
static void expect_broken(const struct wire_frame *frame, uint64_t id, const char *field)
{
    int other = wire_greet(), fd = wire_greet();

    wire_send_frame(fd, frame);
    wire_expect_last(fd, id, FA_PROTOCOL_ERROR, field);
    wire_serves(other);
    close(other);
}

START_TEST(wrong_magic_ends_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.magic ^= 0x20;
    expect_broken(&frame, 0, "header.magic");
}
END_TEST

START_TEST(nonzero_flags_end_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.flags = 0x80;
    expect_broken(&frame, 7, "header.flags");
}
END_TEST

START_TEST(nonzero_reserved_ends_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.reserved = 1;
    expect_broken(&frame, 7, "header.reserved");
}
END_TEST

START_TEST(two_announced_descriptors_end_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.nfds = 2;
    frame.message_length = 100; /* which is not waited for */
    expect_broken(&frame, 7, "header.nfds");
}
END_TEST

START_TEST(message_of_64_kib_and_a_byte_ends_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.message_length = FA_FRAME_MESSAGE_MAX + 1;
    expect_broken(&frame, 7, "header.message_length");
}
END_TEST

START_TEST(message_length_of_all_ones_ends_the_connection)
{
    struct wire_frame frame = wire_ping_frame(7);
    frame.message_length = UINT32_MAX;
    expect_broken(&frame, 7, "header.message_length");
}
END_TEST

START_TEST(payload_length_over_the_limit_ends_the_connection)
{
    static const uint64_t lengths[] = {((uint64_t)512 << 20) + 1, (uint64_t)1 << 63, UINT64_MAX};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct wire_frame frame = wire_ping_frame(7);
        frame.payload_length = lengths[i];
        expect_broken(&frame, 7, "header.payload_length");
    }
}
END_TEST

START_TEST(last_reply_comes_also_when_unread_bytes_follow)
{
    static const uint8_t rest[4096] = {1};
    struct wire_bytes bytes = {0};
    struct wire_frame frame = wire_ping_frame(7);
    int fd = wire_greet();

    frame.magic = 0;
    wire_append_frame(&bytes, &frame);
    for (int i = 0; i < 32; i++)
        wire_append(&bytes, rest, sizeof rest);
    wire_try_send(fd, bytes.data, bytes.size);
    wire_expect_last(fd, 0, FA_PROTOCOL_ERROR, "header.magic");
    wire_free(&bytes);
}
END_TEST

/* --- Types and ids --------------------------------------------------------------------------- */

START_TEST(unknown_type_is_unimplemented_and_its_payload_skipped)
{
    static const uint16_t types[] = {FA_FRAME_CANCEL + 1, 0x0100, 0x7fff};
    size_t size = (size_t)3 << 20;
    uint8_t *payload = calloc(1, size);
    int fd = wire_greet();

    ck_assert_ptr_nonnull(payload);
    memset(payload, 'F', size);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct wire_frame frame = wire_make(types[i], 50 + i, "abc", 3, payload, size);
        struct wire_reply reply;

        wire_send_frame(fd, &frame);
        wire_receive(fd, &reply);
        ck_assert_uint_eq(reply.frame.type, types[i] | FA_FRAME_REPLY);
        ck_assert_uint_eq(reply.frame.id, 50 + i);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__UNIMPLEMENTED);
        ck_assert_str_eq(reply.message->field, "header.type");
        wire_release(&reply);
        wire_serves(fd);
    }
    free(payload);
    close(fd);
}
END_TEST

START_TEST(type_that_only_a_reply_may_have_ends_the_connection)
{
    static const uint16_t types[] = {0, 0x8000, 0x8002, 0xffff};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct wire_frame frame = wire_make(types[i], 50 + i, "abc", 3, NULL, 0);
        int fd = wire_greet();

        wire_send_frame(fd, &frame);
        wire_expect_last(fd, 50 + i, FA_PROTOCOL_ERROR, "header.type");
    }
}
END_TEST

START_TEST(id_zero_ends_the_connection)
{
    struct wire_frame frame = wire_ping_frame(0);
    expect_broken(&frame, 0, "header.id");
}
END_TEST

START_TEST(id_in_flight_ends_the_connection)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_forward_make_long(&f);
    ck_assert(wire_forward_send(fd, &f, 9));
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_append(&f, 9, &bytes);
    wire_send(fd, bytes.data, bytes.size);
    wire_expect_last(fd, 9, FA_PROTOCOL_ERROR, "header.id");
    wire_free(&bytes);
    wire_forward_free(&f);
}
END_TEST

START_TEST(id_is_free_again_after_its_reply)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0);
    for (int i = 0; i < 3; i++)
        wire_forward_run(fd, &f, UINT64_MAX);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* --- Pieces ---------------------------------------------------------------------------------- */

START_TEST(frames_in_pieces_of_one_byte)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_append(&f, 4, &bytes);
    wire_send_pieces(fd, bytes.data, bytes.size, 1, 1);
    wire_receive(fd, &reply);
    wire_forward_check(&f, &reply);
    wire_release(&reply);
    wire_free(&bytes);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(frames_in_random_pieces)
{
    static const size_t most[] = {3, 31, 500, 5000, 70000};
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 2, 1, 33, 200, 63}, 0);
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        struct wire_bytes bytes = {0};
        struct wire_reply reply;

        for (uint64_t id = 1; id <= 3; id++)
            wire_forward_append(&f, id, &bytes);
        wire_send_pieces(fd, bytes.data, bytes.size, most[i], 1000 + i);
        for (int r = 0; r < 3; r++) {
            wire_receive(fd, &reply);
            wire_forward_check(&f, &reply);
            wire_release(&reply);
        }
        wire_free(&bytes);
    }
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(many_small_frames_in_one_send_are_answered_in_turn)
{
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    for (uint64_t id = 10; id < 110; id++) {
        struct wire_frame ping = wire_ping_frame(id);
        wire_append_frame(&bytes, &ping);
    }
    wire_send(fd, bytes.data, bytes.size);
    for (uint64_t id = 10; id < 110; id++)
        wire_expect(fd, id, FA_OK, "");
    wire_free(&bytes);
    close(fd);
}
END_TEST

START_TEST(payloads_around_the_size_of_a_receive)
{
    static const size_t sizes[] = {1048512, 1048572, 1048576, 1048580, 1048640};
    int fd = wire_greet();

    /* 1 MiB is the most that is received at once. V lies at the payload's very end. */
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t size = sizes[i], at;
        struct wire_forward f;
        uint8_t *payload = calloc(1, size);

        wire_forward_make(&f, (struct wire_shape){1, 1, 1, 16, 64, 64}, 0);
        at = size - f.inlined[FAD_V].length;
        ck_assert(payload && f.payload.size < at);
        memcpy(payload, f.payload.data, f.payload.size);
        memcpy(payload + at, payload + f.inlined[FAD_V].offset, f.inlined[FAD_V].length);
        memset(payload + f.inlined[FAD_V].offset, 0, f.inlined[FAD_V].length);
        free(f.payload.data);
        f.payload = (struct wire_bytes){payload, size};
        f.inlined[FAD_V].offset = at;
        wire_forward_run(fd, &f, 77);
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        wrong_magic_ends_the_connection,
        nonzero_flags_end_the_connection,
        nonzero_reserved_ends_the_connection,
        two_announced_descriptors_end_the_connection,
        message_of_64_kib_and_a_byte_ends_the_connection,
        message_length_of_all_ones_ends_the_connection,
        payload_length_over_the_limit_ends_the_connection,
        last_reply_comes_also_when_unread_bytes_follow,
        unknown_type_is_unimplemented_and_its_payload_skipped,
        type_that_only_a_reply_may_have_ends_the_connection,
        id_zero_ends_the_connection,
        id_in_flight_ends_the_connection,
        id_is_free_again_after_its_reply,
        frames_in_pieces_of_one_byte,
        frames_in_random_pieces,
        many_small_frames_in_one_send_are_answered_in_turn,
        payloads_around_the_size_of_a_receive,
    };
    return wire_suite("wire_frames", tests, sizeof tests / sizeof tests[0]);
}
