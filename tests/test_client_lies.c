/* libfa against daemons that lie: PROTOCOL_ERROR with the field, a closed connection, and never a
 * byte outside the caller's outputs. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* A whole reply to spoil: header, message, payload. */
struct lie {
    uint8_t *bytes;
    size_t size;
};

static void put_number(struct lie *lie, size_t at, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        lie->bytes[at + i] = (uint8_t)(value >> (8 * i));
}

static void wrong_magic(struct lie *lie)
{
    lie->bytes[0] = 'X';
}

static void wrong_type(struct lie *lie)
{
    put_number(lie, 4, FA_FRAME_REPLY | FA_FRAME_PING, 2);
}

static void request_type(struct lie *lie)
{
    put_number(lie, 4, FA_FRAME_FORWARD, 2);
}

static void with_descriptor(struct lie *lie)
{
    lie->bytes[6] = 1;
}

static void two_descriptors(struct lie *lie)
{
    lie->bytes[6] = 2;
}

static void with_flags(struct lie *lie)
{
    lie->bytes[7] = 1;
}

static void wrong_id(struct lie *lie)
{
    put_number(lie, 8, 3, 8);
}

static void long_message(struct lie *lie)
{
    put_number(lie, 16, FA_FRAME_MESSAGE_MAX + 1, 4);
}

static void no_message(struct lie *lie)
{
    put_number(lie, 16, 0, 4);
}

static void short_message(struct lie *lie)
{
    put_number(lie, 16, 5, 4);
}

static void reserved_set(struct lie *lie)
{
    lie->bytes[20] = 1;
}

static void small_payload(struct lie *lie)
{
    put_number(lie, 24, FAKE_REPLY_PAYLOAD - 1, 8);
}

static void large_payload(struct lie *lie)
{
    put_number(lie, 24, FAKE_REPLY_PAYLOAD + 1, 8);
}

static void endless_payload(struct lie *lie)
{
    put_number(lie, 24, UINT64_MAX, 8);
}

static void no_payload(struct lie *lie)
{
    put_number(lie, 24, 0, 8);
}

static void last_word_ok(struct lie *lie)
{
    put_number(lie, 4, FA_FRAME_REPLY, 2);
    put_number(lie, 24, 0, 8);
}

/* The message instead of the lie's, without payload unless it is OK. */
static void replace(struct lie *lie, const Fad__Reply *reply, size_t payload)
{
    free(lie->bytes);
    lie->bytes =
        fake_reply_bytes(FA_FRAME_REPLY | FA_FRAME_FORWARD, 2, reply, NULL, payload, &lie->size);
}

static void no_status(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    reply.forward = &forward;
    replace(lie, &reply, FAKE_REPLY_PAYLOAD);
}

static void unknown_status(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    reply.has_status = true;
    reply.status = (Fad__Status)15;
    replace(lie, &reply, 0);
}

/* A code that is libfa's own: no daemon may say it. */
static void local_status(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    reply.has_status = true;
    reply.status = (Fad__Status)FA_TIMEOUT;
    replace(lie, &reply, 0);
}

static void negative_status(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    reply.has_status = true;
    reply.status = (Fad__Status)-1;
    replace(lie, &reply, 0);
}

static void no_forward(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    reply.has_status = true;
    replace(lie, &reply, FAKE_REPLY_PAYLOAD);
}

static void wrong_o_bytes(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    reply.has_status = true;
    reply.forward = &forward;
    forward.has_payload_o_bytes = true;
    forward.payload_o_bytes = 192;
    replace(lie, &reply, FAKE_REPLY_PAYLOAD);
}

static void refusal_with_payload(struct lie *lie)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    reply.has_status = true;
    reply.status = FAD__STATUS__INVALID_ARGUMENT;
    replace(lie, &reply, FAKE_REPLY_PAYLOAD);
}

static const struct {
    void (*spoil)(struct lie *lie);
    const char *field;
} lies[] = {
    {wrong_magic, "header.magic"},
    {wrong_type, "header"},
    {request_type, "header"},
    {with_descriptor, "header.nfds"},
    {two_descriptors, "header.nfds"},
    {with_flags, "header.flags"},
    {wrong_id, "header"},
    {long_message, "header.message_length"},
    {no_message, "status"},
    {short_message, "message"},
    {reserved_set, "header.reserved"},
    {small_payload, "header.payload_length"},
    {large_payload, "header.payload_length"},
    {endless_payload, "header.payload_length"},
    {no_payload, "header.payload_length"},
    {last_word_ok, "status"},
    {no_status, "status"},
    {unknown_status, "status"},
    {local_status, "status"},
    {negative_status, "status"},
    {no_forward, "forward"},
    {wrong_o_bytes, "forward.payload_o_bytes"},
    {refusal_with_payload, "header.payload_length"},
};
#define LIES (int)(sizeof lies / sizeof lies[0])

static void lie_script(struct fake_daemon *fake, int fd, int round)
{
    const int *which = fake->data;
    struct fake_frame frame;
    struct lie lie;
    (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_uint_eq(frame.frame.id, 2);
    lie.bytes = fake_problem_reply(frame.frame.id, &lie.size);
    lies[*which].spoil(&lie);
    fake_send(fd, lie.bytes, lie.size);
    free(lie.bytes);
    fake_frame_release(&frame);
    while (fake_read(fd, &frame)) /* until the client, which must not wait for more, closes */
        ck_abort_msg("the client goes on");
}

START_TEST(lying_daemon)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    fake_start(&fake, lie_script, &_i, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_PROTOCOL_ERROR);
    ck_assert_str_eq(fa_last_error_record(client)->field, lies[_i].field);
    fake_check_closed(client, FA_PROTOCOL_ERROR);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* An OK for a request of which the daemon has not read the payload. */
static void hasty_script(struct fake_daemon *fake, int fd, int round)
{
    struct pollfd hang_up = {.fd = fd};
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read_head(fd, &frame));
    fake_answer(fd, &frame, NULL, 4);
    fake_frame_release(&frame);
    ck_assert_int_eq(poll(&hang_up, 1, -1), 1); /* the client closes, with its payload unread */
}

START_TEST(hasty_daemon)
{
    const size_t bytes = (size_t)16 << 20;
    float q = 0, o = 0, *kv = calloc(1, bytes);
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_forward_args args = {
        .batch = 1, .heads = 1, .q_len = 1, .kv_len = (uint32_t)(bytes / 4), .head_dim = 1};

    args.q.data = &q;
    args.o.data = &o;
    args.k.data = args.v.data = kv;
    fake_start(&fake, hasty_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &args, NULL), FA_PROTOCOL_ERROR);
    ck_assert_str_eq(fa_last_error_record(client)->field, "status");
    fake_check_closed(client, FA_PROTOCOL_ERROR);
    fa_client_close(client);
    free(kv);
    fake_stop(&fake);
}
END_TEST

/* Each byte of header and message changed in turn, in eight ways. */
static void flip_script(struct fake_daemon *fake, int fd, int round)
{
    size_t size, *at = fake->data;
    struct fake_frame frame;
    uint8_t *bytes;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    bytes = fake_problem_reply(frame.frame.id, &size);
    bytes[*at] ^= (uint8_t)(1u << (round % 8));
    fake_send(fd, bytes, size);
    free(bytes);
    fake_frame_release(&frame);
}

START_TEST(flipped_bits)
{
    size_t size, at;
    struct fake_daemon fake;

    free(fake_problem_reply(2, &size));
    fake_start(&fake, flip_script, &at, 0);
    ck_assert_int_eq(pthread_join(fake.thread, NULL), 0);
    for (at = 0; at < size - FAKE_REPLY_PAYLOAD; at++) {
        fake_serve(&fake, 8);
        for (int bit = 0; bit < 8; bit++) {
            struct fake_problem problem;
            struct fa_forward_result result;
            struct fa_client *client = fake_open(&fake);
            enum fa_status status;

            fake_problem_init(&problem);
            status = fa_forward(client, &problem.args, &result);
            /* Some flips make another text, time or refusal; none makes the bytes short. */
            ck_assert_msg(status <= FA_INTERNAL || status == FA_DISCONNECTED, "byte %zu bit %d: %s",
                          at, bit, fa_last_error(client));
            ck_assert(problem.scale == 0 && problem.q[0] == 0 && problem.v[29] == 229);
            fa_client_close(client);
        }
        if (at + 1 < size - FAKE_REPLY_PAYLOAD)
            ck_assert_int_eq(pthread_join(fake.thread, NULL), 0);
    }
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_lies");
    TCase *tcase = tcase_create("client_lies");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, lying_daemon, 0, LIES);
    tcase_add_test(tcase, hasty_daemon);
    tcase_add_test(tcase, flipped_bits);
    suite_add_tcase(suite, tcase);
    return suite;
}
