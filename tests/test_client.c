/* libfa against a scripted daemon: what it sends, byte for byte, and what it makes of good replies.
 * test_client_shared.c has shared memory and large payloads, test_client_errors.c wrong calls and
 * refusals, test_client_faults.c daemons that lie, die or fall silent. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include "client/fa.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* --- Hello and ping: the bytes that proto/README.md prints ----------------------------------- */

static void hello_ping_script(struct fake_daemon *fake, int fd, int round)
{
    static const uint8_t hello[36] = {0x46, 0x41, 0x44, 0x31, 0x01, 0, 0, 0, 0x01, 0, 0,    0,
                                      0,    0,    0,    0,    0x04, 0, 0, 0, 0,    0, 0,    0,
                                      0,    0,    0,    0,    0,    0, 0, 0, 0x08, 1, 0x10, 1};
    static const uint8_t ping[32] = {0x46, 0x41, 0x44, 0x31, 0x03, 0, 0, 0, 0x02};
    uint8_t seen[36];
    struct fake_frame frame;
    (void)fake, (void)round;

    ck_assert_int_eq(recv(fd, seen, sizeof seen, MSG_PEEK | MSG_WAITALL), sizeof seen);
    ck_assert_mem_eq(seen, hello, sizeof hello);
    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_mem_eq(frame.header, ping, sizeof ping);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
    for (uint64_t id = 3; fake_read(fd, &frame); id++) {
        ck_assert_uint_eq(frame.frame.id, id);
        fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

START_TEST(hello_and_ping)
{
    struct fake_daemon fake;
    struct fa_client *client;
    const struct fa_info *info;

    fake_start(&fake, hello_ping_script, NULL, 1);
    client = fake_open(&fake);
    info = fa_client_info(client);
    ck_assert_uint_eq(info->protocol_major, FA_PROTOCOL_MAJOR);
    ck_assert_uint_eq(info->protocol_minor, 7);
    ck_assert_str_eq(info->daemon_version, "9.8.7");
    ck_assert_str_eq(info->backend, "cpu");
    ck_assert_str_eq(info->transports, "inline memfd");
    ck_assert_uint_eq(info->device_count, 2);
    ck_assert_str_eq(info->devices[0].name, "first");
    ck_assert_uint_eq(info->devices[0].uuid[0], 0xaa);
    ck_assert_uint_eq(info->devices[0].uuid[15], 15);
    ck_assert_uint_eq(info->devices[0].memory_bytes, 1ull << 40);
    ck_assert_uint_eq(info->devices[0].streams, 3);
    ck_assert_str_eq(info->devices[1].name, "second");
    ck_assert_uint_eq(info->devices[1].uuid[0], 0);
    ck_assert_uint_eq(info->version_count, 2);
    ck_assert_str_eq(info->versions[1].name, "v4");
    ck_assert_str_eq(info->versions[1].title, "Optimised v3");
    ck_assert_str_eq(info->versions[1].kernel, "tiled");
    ck_assert_uint_eq(info->message_bytes, FA_FRAME_MESSAGE_MAX);
    ck_assert_uint_eq(info->payload_bytes, FAKE_PAYLOAD_LIMIT);
    ck_assert_uint_eq(info->jobs, 64);
    ck_assert_uint_eq(info->staged_bytes, 512);
    ck_assert_uint_eq(info->mapped_bytes, 1024);
    ck_assert_uint_eq(info->regions, 5);
    ck_assert_uint_eq(info->connection, 77);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(fa_ping(client), FA_OK);
    ck_assert_int_eq(fa_last_error_record(client)->status, FA_OK);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Forward, inline ------------------------------------------------------------------------- */

/* Answers the small problem's forward; its full fields when the round is 0, else the least. */
static void forward_script(struct fake_daemon *fake, int fd, int round)
{
    const struct fake_problem *sent = fake->data;
    static const uint8_t zeroes[64];
    struct fake_frame frame;
    Fad__Forward *forward;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_uint_eq(frame.frame.id, 2);
    ck_assert_uint_eq(frame.frame.payload_length, FAKE_REQUEST_PAYLOAD);
    ck_assert_mem_eq(frame.payload, sent->q, 144);
    ck_assert_mem_eq(frame.payload + 144, zeroes, 48);
    ck_assert_mem_eq(frame.payload + 192, sent->k, 120);
    ck_assert_mem_eq(frame.payload + 312, zeroes, 8);
    ck_assert_mem_eq(frame.payload + 320, sent->v, 120);
    forward = fake_unpack_forward(&frame);
    ck_assert(forward->has_batch && forward->has_heads && forward->has_q_len);
    ck_assert(forward->has_kv_len && forward->has_head_dim && forward->has_dtype);
    ck_assert_uint_eq(forward->batch, 2);
    ck_assert_uint_eq(forward->heads, 2);
    ck_assert_uint_eq(forward->q_len, 3);
    ck_assert_uint_eq(forward->kv_len, 5);
    ck_assert_uint_eq(forward->head_dim, 3);
    ck_assert_int_eq(forward->dtype, FAD__DTYPE__FLOAT32);
    fake_check_input(forward->q, 0, 144);
    fake_check_input(forward->k, 192, 120);
    fake_check_input(forward->v, 320, 120);
    fake_check_output(forward->o);
    fake_check_output(forward->lse);
    if (round == 0) {
        ck_assert(forward->has_kv_heads && forward->kv_heads == 1);
        ck_assert_int_eq(forward->mask, FAD__MASK__CAUSAL_TOP_LEFT);
        ck_assert(forward->has_priority && forward->priority == FAD__PRIORITY__HIGH);
        ck_assert(forward->has_deadline_us && forward->deadline_us == 1234567);
        ck_assert(forward->has_scale && forward->scale == 0.0);
        ck_assert_uint_eq(forward->version.len, 2);
        ck_assert_mem_eq(forward->version.data, "v4", 2);
    } else {
        ck_assert_int_eq(forward->mask, FAD__MASK__NONE);
        ck_assert(!forward->has_scale && !forward->has_version);
        ck_assert(!forward->has_priority && !forward->has_deadline_us);
    }
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

START_TEST(forward_inline)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_forward_result result;
    struct fa_client *client;

    fake_problem_init(&problem);
    problem.args.priority = FA_PRIORITY_HIGH;
    problem.args.deadline_us = 1234567;
    fake_start(&fake, forward_script, &problem, 2);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, &result), FA_OK);
    fake_problem_check(&problem);
    ck_assert_str_eq(result.version, "v2");
    ck_assert_str_eq(result.kernel, "tiled-2");
    ck_assert_str_eq(result.device, "first");
    ck_assert(result.redirected);
    ck_assert_str_eq(result.redirect_reason, "v4 covers head_dim 64");
    ck_assert_uint_eq(result.queue_us, 11);
    ck_assert_uint_eq(result.transfer_us, 12);
    ck_assert_uint_eq(result.kernel_us, 13);
    ck_assert_uint_eq(result.total_us, 36);
    fa_client_close(client);

    client = fake_open(&fake);
    problem.args.mask = FA_MASK_NONE;
    problem.args.scale = NULL;
    problem.args.version = NULL;
    problem.args.priority = (enum fa_priority)0;
    problem.args.deadline_us = 0;
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    fake_problem_check(&problem);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* o is q's memory: everything is sent before anything is received. */
static void in_place_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    for (int i = 0; i < 36; i++)
        ck_assert_mem_eq(frame.payload + 4 * i, &(float){(float)i}, 4);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

START_TEST(forward_in_place)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    problem.args.o.data = problem.q;
    fake_start(&fake, in_place_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert(problem.q[0] == 1000 && problem.q[35] == 1035 && problem.o[0] == -1);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Every byte of the reply in a write of its own. */
static void pieces_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    uint8_t *bytes;
    size_t size;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    bytes = fake_problem_reply(frame.frame.id, &size);
    for (size_t i = 0; i < size; i++)
        fake_send(fd, bytes + i, 1);
    free(bytes);
    fake_frame_release(&frame);
}

START_TEST(reply_in_pieces)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    fake_start(&fake, pieces_script, NULL, 1);
    client = fake_open(&fake);
    fa_client_set_timeout(client, 60000);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    fake_problem_check(&problem);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Tensors without elements take no payload; lse of an N = 0 still comes. */
static void empty_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    Fad__Forward *forward;
    const float lse[12] = {[11] = 7};
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame)); /* M = 0 */
    forward = fake_unpack_forward(&frame);
    fake_check_input(forward->q, 0, 0);
    fake_check_input(forward->k, 0, 120);
    fake_check_input(forward->v, 128, 120);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
    ck_assert(fake_read(fd, &frame)); /* N = 0, o in no place that is wanted */
    forward = fake_unpack_forward(&frame);
    fake_check_input(forward->q, 0, 144);
    fake_check_input(forward->k, 0, 0);
    fake_check_input(forward->v, 0, 0);
    ck_assert_uint_eq(frame.frame.payload_length, 144);
    fad__forward__free_unpacked(forward, NULL);
    {
        uint8_t payload[FAKE_REPLY_PAYLOAD] = {0};
        memcpy(payload + 192, lse, sizeof lse);
        fake_answer(fd, &frame, payload, sizeof payload);
    }
    fake_frame_release(&frame);
}

START_TEST(empty_shapes)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    fake_start(&fake, empty_script, NULL, 1);
    client = fake_open(&fake);
    problem.args.q_len = 0;
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert(problem.o[0] == -1 && problem.lse[0] == -1);
    problem.args.q_len = 3;
    problem.args.kv_len = 0;
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert(problem.o[35] == 0 && problem.lse[11] == 7);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client");
    TCase *tcase = tcase_create("client");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, hello_and_ping);
    tcase_add_test(tcase, forward_inline);
    tcase_add_test(tcase, forward_in_place);
    tcase_add_test(tcase, reply_in_pieces);
    tcase_add_test(tcase, empty_shapes);
    suite_add_tcase(suite, tcase);
    return suite;
}
