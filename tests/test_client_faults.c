/* libfa against daemons that die or fall silent at any byte: what they said last is what counts,
 * and the connection is closed. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- Death ----------------------------------------------------------------------------------- */

/* In round n, the first n bytes of the reply. */
static void truncated_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    uint8_t *bytes;
    size_t size;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    bytes = fake_problem_reply(frame.frame.id, &size);
    fake_send(fd, bytes, (size_t)round);
    free(bytes);
    fake_frame_release(&frame);
}

START_TEST(truncated_reply)
{
    size_t size;
    struct fake_daemon fake;

    free(fake_problem_reply(2, &size));
    fake_start(&fake, truncated_script, NULL, (int)size);
    for (size_t i = 0; i < size; i++) {
        struct fake_problem problem;
        struct fa_client *client = fake_open(&fake);

        fake_problem_init(&problem);
        ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_DISCONNECTED);
        fake_check_closed(client, FA_DISCONNECTED);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* How a daemon goes that leaves a large request unread: its last bytes, by round. */
enum { SILENTLY, WITH_LAST_WORD, WITH_PROTOCOL_ERROR, WITH_REFUSAL, WITH_HALF, WAYS };

static void dying_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    struct fake_frame frame;
    uint8_t *bytes;
    size_t size;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_read_head(fd, &frame));
    reply.has_status = true;
    reply.status = round == WITH_REFUSAL ? FAD__STATUS__SHUTTING_DOWN : FAD__STATUS__PROTOCOL_ERROR;
    reply.field = FAKE_TEXT("header.payload_length");
    reply.text = FAKE_TEXT("too long for this daemon");
    bytes = fake_reply_bytes(round == WITH_LAST_WORD ? FA_FRAME_REPLY
                                                     : FA_FRAME_REPLY | FA_FRAME_FORWARD,
                             round == WITH_LAST_WORD ? 0 : frame.frame.id, &reply, NULL, 0, &size);
    if (round != SILENTLY)
        fake_send(fd, bytes, round == WITH_HALF ? size / 2 : size);
    free(bytes);
    fake_frame_release(&frame);
}

/* The client may still be writing when the daemon is gone; what it said last is what counts. */
START_TEST(dying_daemon)
{
    const size_t bytes = (size_t)16 << 20;
    float q = 0, o = 0, *kv = calloc(1, bytes);
    struct fake_daemon fake;
    struct fa_forward_args args = {
        .batch = 1, .heads = 1, .q_len = 1, .kv_len = (uint32_t)(bytes / 4), .head_dim = 1};

    args.q.data = &q;
    args.o.data = &o;
    args.k.data = args.v.data = kv;
    fake_start(&fake, dying_script, NULL, WAYS);
    for (int way = 0; way < WAYS; way++) {
        struct fa_client *client = fake_open(&fake);
        enum fa_status expected = way == SILENTLY || way == WITH_HALF ? FA_DISCONNECTED
                                  : way == WITH_REFUSAL               ? FA_SHUTTING_DOWN
                                                                      : FA_PROTOCOL_ERROR;

        ck_assert_int_eq(fa_forward(client, &args, NULL), expected);
        if (expected != FA_DISCONNECTED) {
            ck_assert_str_eq(fa_last_error_record(client)->field, "header.payload_length");
            ck_assert_str_eq(fa_last_error_record(client)->text, "too long for this daemon");
        }
        fake_check_closed(client, expected);
        fa_client_close(client);
    }
    free(kv);
    fake_stop(&fake);
}
END_TEST

/* A daemon that went between two calls, in the second round with a word; in the third a frame that
 * nobody asked for. */
static void between_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    uint8_t *bytes;
    size_t size;
    (void)fake;

    fake_hello(fd);
    reply.has_status = true;
    reply.status = FAD__STATUS__SHUTTING_DOWN;
    reply.text = FAKE_TEXT("stopping");
    bytes = fake_reply_bytes(round == 1 ? FA_FRAME_REPLY : FA_FRAME_REPLY | FA_FRAME_PING,
                             round == 1 ? 0 : 77, &reply, NULL, 0, &size);
    if (round > 0)
        fake_send(fd, bytes, size);
    free(bytes);
}

START_TEST(gone_between_calls)
{
    const enum fa_status expected[3] = {FA_DISCONNECTED, FA_SHUTTING_DOWN, FA_PROTOCOL_ERROR};
    struct fake_daemon fake;

    for (int round = 0; round < 3; round++) {
        struct fa_client *client;

        if (round == 0)
            fake_start(&fake, between_script, NULL, 3);
        client = fake_open(&fake);
        ck_assert_int_eq(fa_ping(client), expected[round]);
        if (round == 1)
            ck_assert_str_eq(fa_last_error_record(client)->text, "stopping");
        fake_check_closed(client, expected[round]);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* --- Silence --------------------------------------------------------------------------------- */

/* Reads nothing, in the second round all, and waits for the client to close. */
static void silent_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    char byte;
    (void)fake;

    fake_hello(fd);
    if (round == 1) {
        ck_assert(fake_read(fd, &frame));
        fake_frame_release(&frame);
    }
    if (round == 2)
        fake_send(fd, "FAD1", 4);
    while (recv(fd, &byte, 1, 0) > 0)
        continue;
}

START_TEST(timeouts)
{
    const int milliseconds[3] = {0, 30, 30};
    struct fake_daemon fake;

    fake_start(&fake, silent_script, NULL, 3);
    for (int round = 0; round < 3; round++) {
        struct fake_problem problem;
        struct fa_client *client = fake_open(&fake);

        fake_problem_init(&problem);
        fa_client_set_timeout(client, milliseconds[round]);
        ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_TIMEOUT);
        fake_check_closed(client, FA_TIMEOUT);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* The user closed the descriptor, which is the client's: no wait goes on for ever. */
START_TEST(closed_descriptor)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_request *request;

    fake_problem_init(&problem);
    fake_start(&fake, silent_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward_submit(client, &problem.args, &request), FA_OK);
    close(fa_client_fd(client));
    ck_assert_int_eq(fa_wait(client, request, NULL), FA_DISCONNECTED);
    fake_check_closed(client, FA_DISCONNECTED);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_faults");
    TCase *tcase = tcase_create("client_faults");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, truncated_reply);
    tcase_add_test(tcase, dying_daemon);
    tcase_add_test(tcase, gone_between_calls);
    tcase_add_test(tcase, timeouts);
    tcase_add_test(tcase, closed_descriptor);
    suite_add_tcase(suite, tcase);
    return suite;
}
