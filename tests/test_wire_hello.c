/* test_wire_hello.c: Hello and Ping: what a connection must begin with, and what they refuse. */
#include "tests/helpers/wire.h"
#include "tests/helpers/wire_forward.h"

#include <string.h>
#include <unistd.h>

/* --- Hello ----------------------------------------------------------------------------------- */

static void expect_bad_hello(const void *message, size_t size, enum fa_status status,
                             const char *field)
{
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, message, size, NULL, 0);
    int fd = wire_connect();

    wire_send_frame(fd, &hello);
    wire_expect_last(fd, 3, status, field);
}

START_TEST(anything_before_hello_ends_the_connection)
{
    static const uint16_t types[] = {FA_FRAME_PING, FA_FRAME_FORWARD, 4, 0xffff};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct wire_frame frame = wire_make(types[i], 3, NULL, 0, NULL, 0);
        int fd = wire_connect();

        wire_send_frame(fd, &frame);
        wire_expect_last(fd, 3, FA_PROTOCOL_ERROR, "header.type");
    }
}
END_TEST

START_TEST(second_hello_ends_the_connection)
{
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, "\x08\x01", 2, NULL, 0);
    int fd = wire_greet();

    wire_send_frame(fd, &hello);
    wire_expect_last(fd, 3, FA_PROTOCOL_ERROR, "header.type");
}
END_TEST

START_TEST(another_major_version_is_refused_naming_both)
{
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, "\x08\x63", 2, NULL, 0);
    struct wire_reply reply;
    int fd = wire_connect();

    wire_send_frame(fd, &hello);
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, 3);
    ck_assert_int_eq(reply.message->status, FAD__STATUS__PROTOCOL_MISMATCH);
    ck_assert_str_eq(reply.message->field, "protocol_major");
    ck_assert_ptr_nonnull(strstr(reply.message->text, "99"));
    ck_assert_ptr_nonnull(strstr(reply.message->text, "speaks 1"));
    wire_release(&reply);
    wire_expect_end(fd);
}
END_TEST

START_TEST(newer_minor_version_and_unknown_fields_are_welcome)
{
    /* major 1, minor 77, an unknown field 100 */
    static const uint8_t message[] = {0x08, 1, 0x10, 77, 0xa2, 0x06, 3, 'n', 'e', 'w'};
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, message, sizeof message, NULL, 0);
    int fd = wire_connect();

    wire_send_frame(fd, &hello);
    wire_expect(fd, 3, FA_OK, "");
    wire_serves(fd);
    close(fd);
}
END_TEST

START_TEST(hello_of_garbage_or_without_a_version_ends_the_connection)
{
    expect_bad_hello("\xff\xff\xff\xff", 4, FA_PROTOCOL_ERROR, "message");
    expect_bad_hello("\x08", 1, FA_PROTOCOL_ERROR, "message");
    expect_bad_hello(NULL, 0, FA_PROTOCOL_ERROR, "protocol_major");
    expect_bad_hello("\x10\x01", 2, FA_PROTOCOL_ERROR, "protocol_major");
}
END_TEST

START_TEST(hello_tells_what_the_daemon_offers)
{
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 3, "\x08\x01", 2, NULL, 0);
    const Fad__HelloReply *offer;
    struct wire_reply reply;
    int fd = wire_connect();

    wire_send_frame(fd, &hello);
    wire_receive(fd, &reply);
    offer = reply.message->hello;
    ck_assert_ptr_nonnull(offer);
    ck_assert_uint_eq(offer->protocol_major, FA_PROTOCOL_MAJOR);
    ck_assert_str_eq(offer->backend, test_backend());
    ck_assert_uint_ge(offer->n_devices, 1);
    ck_assert(test_on_cuda() || offer->n_devices == 1);
    ck_assert_uint_ge(offer->devices[0]->streams, 1);
    ck_assert_uint_eq(offer->n_versions, 5);
    ck_assert_str_eq(offer->versions[0]->name, "v0");
    ck_assert_str_eq(offer->versions[4]->name, "v4");
    ck_assert_uint_eq(offer->n_transports, test_on_cuda() ? 4 : 3);
    ck_assert_str_eq(offer->transports[0], "inline");
    ck_assert_str_eq(offer->transports[1], "memfd");
    ck_assert_str_eq(offer->transports[2], "region");
    ck_assert(!test_on_cuda() || strcmp(offer->transports[3], "cuda-ipc") == 0);
    ck_assert_uint_eq(offer->protocol_minor, FA_PROTOCOL_MINOR);
    ck_assert_uint_gt(offer->connection, 0);
    ck_assert_uint_eq(offer->limits->message_bytes, FA_FRAME_MESSAGE_MAX);
    ck_assert_uint_eq(offer->limits->payload_bytes, (uint64_t)512 << 20);
    ck_assert_uint_eq(offer->limits->jobs, 64);
    ck_assert_uint_eq(offer->limits->regions, 64);
    wire_release(&reply);
    close(fd);
}
END_TEST

/* --- Ping ------------------------------------------------------------------------------------ */

START_TEST(ping_with_a_payload_is_refused_and_the_connection_lives)
{
    static const uint8_t payload[100000] = {0};
    struct wire_frame ping = wire_make(FA_FRAME_PING, 8, NULL, 0, payload, sizeof payload);
    int fd = wire_greet();

    wire_send_frame(fd, &ping);
    wire_expect(fd, 8, FA_INVALID_ARGUMENT, "header.payload_length");
    wire_serves(fd);
    close(fd);
}
END_TEST

START_TEST(ping_with_a_descriptor_is_refused_and_the_connection_lives)
{
    struct wire_frame ping = wire_ping_frame(8);
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), given = 0;

    ping.nfds = 1;
    wire_append_frame(&bytes, &ping);
    ck_assert(wire_try_send_fds(fd, bytes.data, bytes.size, bytes.size, &given, 1));
    wire_expect(fd, 8, FA_INVALID_ARGUMENT, "header.nfds");
    wire_serves(fd);
    wire_free(&bytes);
    close(fd);
}
END_TEST

START_TEST(ping_of_garbage_is_refused_and_the_connection_lives)
{
    struct wire_frame ping = wire_make(FA_FRAME_PING, 8, "\xff", 1, NULL, 0);
    int fd = wire_greet();

    wire_send_frame(fd, &ping);
    wire_expect(fd, 8, FA_INVALID_ARGUMENT, "message");
    wire_serves(fd);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        anything_before_hello_ends_the_connection,
        second_hello_ends_the_connection,
        another_major_version_is_refused_naming_both,
        newer_minor_version_and_unknown_fields_are_welcome,
        hello_of_garbage_or_without_a_version_ends_the_connection,
        hello_tells_what_the_daemon_offers,
        ping_with_a_payload_is_refused_and_the_connection_lives,
        ping_with_a_descriptor_is_refused_and_the_connection_lives,
        ping_of_garbage_is_refused_and_the_connection_lives,
    };
    return wire_suite("wire_hello", tests, sizeof tests / sizeof tests[0]);
}
