/* What libfa refuses to submit, wait for or cancel, and how many requests and replies it keeps. */
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include "client/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Answers everything. */
static void answering_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    while (fake_read(fd, &frame)) {
        if (frame.frame.type == FA_FRAME_FORWARD)
            fake_small_answer(fd, &frame);
        else
            fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

/* Wrong arguments send nothing: the daemon answers whatever comes. */
START_TEST(wrong_submits)
{
    struct fa_request *poison = (struct fa_request *)(void *)&poison, *request = poison;
    const struct fa_strides strides = {16, 16, 16};
    struct fake_daemon fake;
    struct fake_small small;
    struct fa_client *client;
    char version[100] = {0};

    fake_start(&fake, answering_script, NULL, 1);
    client = fake_open(&fake);
    fake_small_init(&small, 1);
    small.args.o.strides = &strides; /* a copy that must be freed again */
    small.args.version = memset(version, 'v', sizeof version - 1);
    ck_assert_int_eq(fa_forward_submit(client, &small.args, &request), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "version");
    ck_assert_ptr_null(request);
    request = poison;
    small.args.k.data = NULL;
    ck_assert_int_eq(fa_forward_submit(client, &small.args, &request), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "k");
    ck_assert_ptr_null(request);
    request = poison;
    ck_assert_int_eq(fa_forward_submit(client, NULL, &request), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "args");
    ck_assert_ptr_null(request);
    request = poison;
    ck_assert_int_eq(fa_forward_submit(NULL, &small.args, &request), FA_INVALID_ARGUMENT);
    ck_assert_ptr_null(request);
    ck_assert_int_eq(fa_next(client, &request), FA_NOT_FOUND);
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Requests that are none, or another client's. */
START_TEST(wrong_requests)
{
    struct fake_daemon fake;
    struct fake_small small;
    struct fa_client *client, *other;
    struct fa_request *request;

    fake_start(&fake, answering_script, NULL, 1);
    ck_assert_int_eq(fa_client_open(&other, ""), FA_INVALID_ARGUMENT);
    client = fake_open(&fake);
    fake_small_submit(client, &small, 1);
    ck_assert_int_eq(fa_wait(NULL, small.request, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_wait(client, NULL, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "request");
    ck_assert_int_eq(fa_wait(other, small.request, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_cancel(NULL, small.request), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_cancel(client, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_cancel(other, small.request), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_next(NULL, &request), FA_INVALID_ARGUMENT);
    ck_assert_ptr_null(request);
    ck_assert_int_eq(fa_next(client, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "out");
    ck_assert_ptr_null(fa_done(NULL));
    ck_assert_int_eq(fa_client_process(NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_client_fd(NULL), -1);
    ck_assert_int_eq(fa_client_events(NULL), 0);
    ck_assert(!fa_request_done(NULL));
    ck_assert_ptr_null(fa_request_user(NULL));
    fa_request_set_user(NULL, client);
    fake_small_wait(client, &small, FA_OK);
    fa_client_close(client);
    fa_client_close(other);
    fake_stop(&fake);
}
END_TEST

/* Whoever does not want the pointer finds it with fa_next. What was given to submit may change. */
START_TEST(submit_and_forget)
{
    struct fake_daemon fake;
    struct fake_small small;
    struct fa_client *client;

    fake_start(&fake, answering_script, NULL, 1);
    client = fake_open(&fake);
    for (int i = 0; i < 10; i++) { /* one after another in the same memory: what is left leaks */
        struct fa_strides strides = {16, 16, 16}; /* not packed: o is received into a copy */
        double scale = 1;
        char version[] = "v4";

        fake_small_init(&small, i);
        small.args.o.strides = &strides;
        small.args.scale = &scale;
        small.args.version = version;
        ck_assert_int_eq(fa_forward_submit(client, &small.args, NULL), FA_OK);
        memset(&small.args, 0xff, sizeof small.args);
        memset(&strides, 0xff, sizeof strides);
        memset(version, 'x', 2);
        scale = 2;
        ck_assert_int_eq(fa_next(client, &small.request), FA_OK);
        ck_assert_ptr_null(fa_request_user(small.request));
        fa_request_set_user(small.request, &small);
        fake_small_wait(client, &small, FA_OK);
    }
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Answers the first and waits for the close; in round 1, everything. */
static void reading_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    char byte;

    if (round == 1) {
        answering_script(fake, fd, round);
        return;
    }
    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    fake_small_answer(fd, &frame);
    fake_frame_release(&frame);
    while (recv(fd, &byte, 1, 0) > 0)
        continue;
}

/* libfa keeps a request until it is taken, but not without end. Calls that wait still may, and so
 * the client can connect again. */
START_TEST(too_many)
{
    struct fake_daemon fake;
    struct fake_small small, more;
    struct fa_client *client;
    struct fa_request *request;

    fake_start(&fake, reading_script, NULL, 2);
    client = fake_open(&fake);
    fake_small_submit(client, &small, 1);
    fake_small_init(&more, 1);
    for (unsigned i = 1; i < FA_REQUESTS_MAX; i++)
        ck_assert_int_eq(fa_forward_submit(client, &more.args, NULL), FA_OK);
    ck_assert_int_eq(fa_next(client, &request), FA_OK);
    ck_assert_ptr_eq(request, small.request);
    ck_assert_int_eq(fa_forward_submit(client, &more.args, &request), FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_null(request);
    ck_assert_ptr_nonnull(strstr(fa_last_error(client), "16384 requests"));
    ck_assert_int_eq(fa_client_reconnect(client), FA_OK);
    ck_assert_int_eq(fa_ping(client), FA_OK);
    ck_assert_int_eq(fa_forward(client, &more.args, NULL), FA_OK);
    ck_assert_int_eq(fa_forward_submit(client, &more.args, &request), FA_RESOURCE_EXHAUSTED);
    fake_small_wait(client, &small, FA_OK);
    ck_assert_int_eq(fa_forward_submit(client, &more.args, &request), FA_OK);
    ck_assert_int_eq(fa_wait(client, request, NULL), FA_OK);
    ck_assert_int_eq(fa_next(client, &request), FA_OK);
    ck_assert_int_eq(fa_wait(client, request, NULL), FA_DISCONNECTED);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Answers a forward and a ping, the ping with a text and first, in one go. */
static void glued_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    struct fake_frame frame, ping;
    uint8_t *bytes[2], both[1024];
    size_t size[2];
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert(fake_read(fd, &ping));
    reply.has_status = true;
    reply.text = FAKE_TEXT("to be kept");
    bytes[0] =
        fake_reply_bytes(FA_FRAME_REPLY | FA_FRAME_PING, ping.frame.id, &reply, NULL, 0, &size[0]);
    bytes[1] = fake_small_reply(&frame, &size[1]);
    ck_assert_uint_le(size[0] + size[1], sizeof both);
    memcpy(both, bytes[0], size[0]);
    memcpy(both + size[0], bytes[1], size[1]);
    fake_send(fd, both, size[0] + size[1]);
    for (int i = 0; i < 2; i++)
        free(bytes[i]);
    fake_frame_release(&frame);
    fake_frame_release(&ping);
}

/* What fa_call_run returns outlives the replies that come after it. */
START_TEST(kept_reply)
{
    struct fa_call call = {.type = FA_FRAME_PING, .fd = -1, .deadline = FA_NEVER};
    struct fake_daemon fake;
    struct fake_small small;
    struct fa_client *client;
    const Fad__Reply *reply;

    fake_start(&fake, glued_script, NULL, 1);
    client = fake_open(&fake);
    fake_small_submit(client, &small, 1);
    ck_assert_int_eq(fa_call_run(client, &call, &reply), FA_OK);
    fake_small_wait(client, &small, FA_OK);
    ck_assert_str_eq(reply->text, "to be kept");
    ck_assert_ptr_null(reply->forward);
    ck_assert_uint_eq(client->reader.payload_waits, 0); /* none any more: reads are large */
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_submit");
    TCase *tcase = tcase_create("client_submit");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, wrong_submits);
    tcase_add_test(tcase, wrong_requests);
    tcase_add_test(tcase, submit_and_forget);
    tcase_add_test(tcase, too_many);
    tcase_add_test(tcase, kept_reply);
    suite_add_tcase(suite, tcase);
    return suite;
}
