/* libfa with many requests in flight: whatever the order of the replies, each request comes to its
 * own. test_client_flow.c has their bytes and descriptors, test_client_ids.c daemons that lie or
 * end with requests in flight. */
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <poll.h>
#include <semaphore.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* --- Order ----------------------------------------------------------------------------------- */

#define MANY 64

/* Reads them all and answers in the order of fake->data. */
static void shuffled_script(struct fake_daemon *fake, int fd, int round)
{
    const int *order = fake->data;
    struct fake_frame frames[MANY];
    (void)round;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, MANY));
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(fake_small_number(&frames[i]), i);
    for (int i = 0; i < MANY; i++)
        fake_small_answer(fd, &frames[order[i]]);
    for (int i = 0; i < MANY; i++)
        fake_frame_release(&frames[i]);
}

enum { FORWARDS, BACKWARDS, NEXT, TAKING_WAYS };

/* Taken in the order of submission, the reverse, and that of the replies. */
START_TEST(any_order)
{
    struct fake_daemon fake;
    struct fake_small small[MANY];
    struct fa_client *client;
    struct fa_request *next;
    int order[MANY];

    fake_shuffle(order, MANY, (unsigned)_i);
    fake_start(&fake, shuffled_script, order, 1);
    client = fake_open(&fake);
    fake_small_submit(client, small, MANY);
    for (int i = 0; i < MANY; i++) {
        int which = i;

        if (_i % TAKING_WAYS == BACKWARDS)
            which = MANY - 1 - i;
        if (_i % TAKING_WAYS == NEXT) {
            which = order[i];
            ck_assert_int_eq(fa_next(client, &next), FA_OK);
            ck_assert_ptr_eq(next, small[which].request);
            ck_assert(fa_request_done(next));
            ck_assert_ptr_eq(fa_done(client), next);
        }
        fake_small_wait(client, &small[which], FA_OK);
    }
    ck_assert_int_eq(fa_next(client, &next), FA_NOT_FOUND);
    ck_assert_ptr_null(next);
    ck_assert_ptr_null(fa_done(client));
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Answers 1 and a ping of 0, 1, 2; then refuses 2, and answers a forward and 0. */
static void interleaved_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frames[3], other;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, 3));
    ck_assert(fake_read(fd, &other));
    ck_assert_int_eq(other.frame.type, FA_FRAME_PING);
    fake_small_answer(fd, &frames[1]);
    fake_answer(fd, &other, NULL, 0);
    fake_frame_release(&other);
    ck_assert(fake_read(fd, &other));
    fake_refuse(fd, &frames[2], FA_DEADLINE_EXCEEDED, "deadline_us", "too late");
    fake_small_answer(fd, &other);
    fake_small_answer(fd, &frames[0]);
    fake_frame_release(&other);
    for (int i = 0; i < 3; i++)
        fake_frame_release(&frames[i]);
}

/* Calls that wait move what is in flight, and the errors of others are not theirs. */
START_TEST(interleaved_calls)
{
    struct fake_daemon fake;
    struct fake_small small[3], alone;
    struct fa_client *client;

    fake_start(&fake, interleaved_script, NULL, 1);
    client = fake_open(&fake);
    fake_small_submit(client, small, 3);
    ck_assert_ptr_null(fa_done(client));
    ck_assert_int_eq(fa_ping(client), FA_OK);
    ck_assert_ptr_eq(fa_done(client), small[1].request);
    ck_assert(!fa_request_done(small[0].request));
    ck_assert(fa_request_done(small[1].request));
    fake_small_init(&alone, 9);
    ck_assert_int_eq(fa_forward(client, &alone.args, NULL), FA_OK);
    ck_assert(alone.o[3] == 1009);
    ck_assert(fa_request_done(small[2].request));
    ck_assert_int_eq(fa_last_error_record(client)->status, FA_OK);
    fake_small_wait(client, &small[0], FA_OK);
    fake_small_wait(client, &small[2], FA_DEADLINE_EXCEEDED);
    ck_assert_str_eq(fa_last_error(client), "DEADLINE_EXCEEDED: deadline_us: too late");
    fake_small_wait(client, &small[1], FA_OK);
    ck_assert_str_eq(fa_last_error(client), "DEADLINE_EXCEEDED: deadline_us: too late");
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Time ------------------------------------------------------------------------------------ */

/* Answers the forward once a ping has come; the next ping never. */
static void late_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame, ping;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert(fake_read(fd, &ping));
    fake_answer(fd, &ping, NULL, 0);
    fake_small_answer(fd, &frame);
    fake_frame_release(&frame);
    fake_frame_release(&ping);
    while (fake_read(fd, &frame))
        fake_frame_release(&frame);
}

START_TEST(timeouts)
{
    struct fake_daemon fake;
    struct fake_small small[2];
    struct fa_client *client;
    struct fa_request *next;

    fake_start(&fake, late_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_next(client, &next), FA_NOT_FOUND);
    fake_small_submit(client, small, 1);
    for (int milliseconds = 0; milliseconds < 40; milliseconds += 20) {
        fa_client_set_timeout(client, milliseconds);
        ck_assert_int_eq(fa_next(client, &next), FA_TIMEOUT);
        ck_assert_ptr_null(next);
        ck_assert_int_eq(fa_wait(client, small[0].request, NULL), FA_TIMEOUT);
        ck_assert(!fa_request_done(small[0].request));
    }
    fa_client_set_timeout(client, -1);
    ck_assert_int_eq(fa_ping(client), FA_OK); /* all that left the connection as it was */
    ck_assert_int_eq(fa_next(client, &next), FA_OK);
    fa_client_set_timeout(client, 0); /* nothing to wait for */
    ck_assert_int_eq(fa_next(client, &next), FA_OK);
    fake_small_wait(client, &small[0], FA_OK);

    fake_small_submit(client, small, 2);
    ck_assert_int_eq(fa_ping(client), FA_TIMEOUT);
    ck_assert_int_eq(fa_client_fd(client), -1);
    fake_small_wait(client, &small[1], FA_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(fa_last_error(client), "TIMEOUT"));
    fake_small_wait(client, &small[0], FA_DISCONNECTED);
    fake_check_closed(client, FA_TIMEOUT);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- An event loop --------------------------------------------------------------------------- */

#define LOOP_REQUESTS 32
#define LOOP_ROWS     16384u
#define LOOP_BYTES    ((size_t)LOOP_ROWS * 16) /* of k and of v: far over a socket's buffer */

/* Waits for the word, then answers each eight in reverse. */
static void batch_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frames[8];
    (void)round;

    fake_hello(fd);
    ck_assert_int_eq(sem_wait(fake->data), 0);
    for (int done = 0; done < LOOP_REQUESTS; done += 8) {
        ck_assert(fake_small_read(fd, frames, 8));
        for (int i = 7; i >= 0; i--) {
            fake_small_answer(fd, &frames[i]);
            fake_frame_release(&frames[i]);
        }
    }
    while (fake_read(fd, frames))
        ck_abort_msg("more than was submitted");
}

/* Takes what is done; returns how many. */
static int take_all(struct fa_client *client)
{
    struct fa_request *next;
    int taken = 0;

    while ((next = fa_done(client))) {
        fake_small_wait(client, fa_request_user(next), FA_OK);
        taken++;
    }
    return taken;
}

START_TEST(event_loop)
{
    static float kv[LOOP_ROWS * 4];
    struct fake_daemon fake;
    struct fake_small small[LOOP_REQUESTS];
    struct fa_client *client;
    struct epoll_event event = {.events = EPOLLIN};
    int epoll, taken = 0;
    sem_t go;

    sem_init(&go, 0, 0);
    fake_start(&fake, batch_script, &go, 1);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_client_events(client), POLLIN);
    ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, fa_client_fd(client), &event), 0);
    for (int i = 0; i < LOOP_REQUESTS; i++) {
        fake_small_init(&small[i], i);
        small[i].args.kv_len = LOOP_ROWS;
        small[i].args.k.data = small[i].args.v.data = kv;
        ck_assert_int_eq(fa_forward_submit(client, &small[i].args, &small[i].request), FA_OK);
        fa_request_set_user(small[i].request, &small[i]);
    }
    ck_assert_int_eq(fa_client_events(client), POLLIN | POLLOUT);
    ck_assert_int_eq(fa_client_process(client), FA_OK);
    ck_assert_int_eq(take_all(client), 0);
    sem_post(&go);
    while (taken < LOOP_REQUESTS) {
        short wanted = fa_client_events(client);

        event.events = (wanted & POLLIN ? EPOLLIN : 0u) | (wanted & POLLOUT ? EPOLLOUT : 0u);
        ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_MOD, fa_client_fd(client), &event), 0);
        ck_assert_int_ge(epoll_wait(epoll, &event, 1, -1), 1);
        ck_assert_int_eq(fa_client_process(client), FA_OK);
        taken += take_all(client);
    }
    ck_assert_int_eq(fa_client_events(client), POLLIN);
    fa_client_close(client);
    close(epoll);
    fake_stop(&fake);
    sem_destroy(&go);
}
END_TEST

/* --- Cancelling ------------------------------------------------------------------------------ */

static void answer_cancel(int fd, const struct fake_frame *to, const bool *found)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__CancelReply cancel = FAD__CANCEL_REPLY__INIT;

    reply.has_status = true;
    reply.cancel = &cancel;
    cancel.has_found = found != NULL;
    cancel.found = found && *found;
    fake_reply(fd, to, &reply, NULL, 0);
}

/* Reads a Cancel of that request. */
static void read_cancel(int fd, struct fake_frame *frame, const struct fake_frame *of)
{
    Fad__Cancel *cancel;

    ck_assert(fake_read(fd, frame));
    ck_assert_int_eq(frame->frame.type, FA_FRAME_CANCEL);
    cancel = fad__cancel__unpack(NULL, frame->frame.message_length, frame->message);
    ck_assert_ptr_nonnull(cancel);
    ck_assert(cancel->has_id);
    ck_assert_uint_eq(cancel->id, of->frame.id);
    fad__cancel__free_unpacked(cancel, NULL);
}

/* Cancels 0; has just answered 1 when it is to be cancelled; in the third cancel it forgets to say,
 * in round 1 altogether. */
static void cancel_script(struct fake_daemon *fake, int fd, int round)
{
    const bool yes = true, no = false;
    struct fake_frame frames[3], cancel;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, 3));
    read_cancel(fd, &cancel, &frames[0]);
    answer_cancel(fd, &cancel, &yes);
    fake_frame_release(&cancel);
    fake_refuse(fd, &frames[0], FA_CANCELLED, NULL, NULL);
    read_cancel(fd, &cancel, &frames[1]);
    fake_small_answer(fd, &frames[1]);
    answer_cancel(fd, &cancel, &no);
    fake_frame_release(&cancel);
    read_cancel(fd, &cancel, &frames[2]);
    if (round == 0)
        answer_cancel(fd, &cancel, NULL);
    else
        fake_answer(fd, &cancel, NULL, 0);
    fake_frame_release(&cancel);
    for (int i = 0; i < 3; i++)
        fake_frame_release(&frames[i]);
}

START_TEST(cancelling)
{
    struct fake_daemon fake;

    fake_start(&fake, cancel_script, NULL, 2);
    for (int round = 0; round < 2; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small[3];

        fake_small_submit(client, small, 3);
        ck_assert_int_eq(fa_cancel(client, small[0].request), FA_OK);
        ck_assert_int_eq(fa_cancel(client, small[1].request), FA_NOT_FOUND);
        ck_assert_str_eq(fa_last_error_record(client)->field, "id");
        fake_small_wait(client, &small[0], FA_CANCELLED);
        ck_assert_int_eq(fa_cancel(client, small[1].request), FA_NOT_FOUND); /* no round trip */
        fake_small_wait(client, &small[1], FA_OK);
        ck_assert_int_eq(fa_cancel(client, small[2].request), FA_PROTOCOL_ERROR);
        ck_assert_str_eq(fa_last_error_record(client)->field, "cancel");
        fake_small_wait(client, &small[2], FA_PROTOCOL_ERROR);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_async");
    TCase *tcase = tcase_create("client_async");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, any_order, 0, 24);
    tcase_add_test(tcase, interleaved_calls);
    tcase_add_test(tcase, timeouts);
    tcase_add_test(tcase, event_loop);
    tcase_add_test(tcase, cancelling);
    suite_add_tcase(suite, tcase);
    return suite;
}
