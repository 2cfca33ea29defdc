/* Daemons that lie about ids, or end the connection, while several requests are in flight: each of
 * them ends, and with the right word. */
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define COUNT 4

/* Reads and drops until the client closes. */
static void drain(int fd)
{
    char bytes[4096];

    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        continue;
}

/* Of four forwards it answers 1, and then says what fake->data wants. */
enum {
    UNKNOWN_ID,
    ANSWERED_TWICE,
    OTHER_TYPE,
    ID_ZERO,
    LIES,
    LAST_WORD_TO_2 = LIES,
    LAST_WORD_TO_ALL,
    LAST_WORD_UNKNOWN,
    LAST_WORD_ODD,
    REFUSED_FOR_GOOD,
    HANG_UP,
    ENDINGS
};

static void ending_script(struct fake_daemon *fake, int fd, int round)
{
    const int *ending = fake->data;
    struct fake_frame frames[COUNT], odd;
    (void)round;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, COUNT));
    fake_small_answer(fd, &frames[1]);
    odd = frames[2];
    if (*ending == UNKNOWN_ID)
        odd.frame.id += 100;
    if (*ending == ANSWERED_TWICE)
        odd.frame.id = frames[1].frame.id;
    if (*ending == OTHER_TYPE)
        odd.frame.type = FA_FRAME_READ_REGION;
    if (*ending == ID_ZERO)
        odd.frame.id = 0;
    if (*ending < LIES)
        fake_refuse(fd, &odd, FA_INTERNAL, NULL, NULL);
    if (*ending == LAST_WORD_TO_2)
        fake_last_word(fd, frames[2].frame.id, FA_PROTOCOL_ERROR, "it was 2");
    if (*ending == LAST_WORD_TO_ALL)
        fake_last_word(fd, 0, FA_SHUTTING_DOWN, "stopping");
    if (*ending == LAST_WORD_UNKNOWN)
        fake_last_word(fd, 99, FA_PROTOCOL_ERROR, "it was 99");
    if (*ending == LAST_WORD_ODD)
        fake_last_word(fd, 0, FA_NOT_FOUND, "odd");
    if (*ending == REFUSED_FOR_GOOD)
        fake_refuse(fd, &frames[2], FA_PROTOCOL_MISMATCH, NULL, "it was 2");
    if (*ending != HANG_UP)
        drain(fd); /* the client closes */
    for (int i = 0; i < COUNT; i++)
        fake_frame_release(&frames[i]);
}

static const struct {
    enum fa_status two, others, process; /* what they and fa_client_process come to */
    const char *text;                    /* in what 0 and 3 come to */
} endings[ENDINGS] = {
    [UNKNOWN_ID] = {FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, "nothing in flight"},
    [ANSWERED_TWICE] = {FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, "header"},
    [OTHER_TYPE] = {FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, "header"},
    [ID_ZERO] = {FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, "header"},
    [LAST_WORD_TO_2] = {FA_PROTOCOL_ERROR, FA_DISCONNECTED, FA_DISCONNECTED, "PROTOCOL_ERROR"},
    [LAST_WORD_TO_ALL] = {FA_SHUTTING_DOWN, FA_SHUTTING_DOWN, FA_SHUTTING_DOWN, "stopping"},
    [LAST_WORD_UNKNOWN] = {FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, FA_PROTOCOL_ERROR, "it was 99"},
    [LAST_WORD_ODD] = {FA_DISCONNECTED, FA_DISCONNECTED, FA_DISCONNECTED, "NOT_FOUND"},
    [REFUSED_FOR_GOOD] = {FA_PROTOCOL_MISMATCH, FA_DISCONNECTED, FA_DISCONNECTED, "MISMATCH"},
    [HANG_UP] = {FA_DISCONNECTED, FA_DISCONNECTED, FA_DISCONNECTED, "closed the connection"},
};

/* Waits for it all by fa_client_process, which tells the fault once. */
static void process_to_the_end(struct fa_client *client, enum fa_status fault)
{
    enum fa_status status = FA_OK;

    while (status == FA_OK) {
        struct pollfd ready = {.fd = fa_client_fd(client), .events = fa_client_events(client)};

        ck_assert_int_eq(poll(&ready, 1, -1), 1);
        status = fa_client_process(client);
    }
    ck_assert_int_eq(status, fault);
    ck_assert_int_eq(fa_last_error_record(client)->status, fault);
    ck_assert_int_eq(fa_client_fd(client), -1);
    ck_assert_int_eq(fa_client_events(client), 0);
    ck_assert_int_eq(fa_client_process(client), FA_DISCONNECTED);
}

START_TEST(connection_ends)
{
    int ending = _i / 2;
    struct fake_daemon fake;
    struct fake_small small[COUNT];
    struct fa_client *client;

    fake_start(&fake, ending_script, &ending, 1);
    client = fake_open(&fake);
    fake_small_submit(client, small, COUNT);
    if (_i % 2)
        process_to_the_end(client, endings[ending].process);
    fake_small_wait(client, &small[2], endings[ending].two);
    if (ending == LAST_WORD_TO_2 || ending == REFUSED_FOR_GOOD)
        ck_assert_str_eq(fa_last_error_record(client)->text, "it was 2");
    fake_small_wait(client, &small[1], FA_OK);
    fake_small_wait(client, &small[0], endings[ending].others);
    ck_assert_msg(strstr(fa_last_error(client), endings[ending].text) != NULL, "%s",
                  fa_last_error(client));
    fake_small_wait(client, &small[3], endings[ending].others);
    ck_assert_int_eq(fa_ping(client), FA_DISCONNECTED);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* A last word to an idle client, from round 3 on right after the hello: the next call tells it,
 * whichever that is. */
static void idle_script(struct fake_daemon *fake, int fd, int round)
{
    fake_hello(fd);
    if (round < 3)
        ck_assert_int_eq(sem_wait(fake->data), 0);
    fake_last_word(fd, 0, FA_SHUTTING_DOWN, "stopping");
}

START_TEST(idle_client)
{
    struct fake_daemon fake;
    sem_t go;

    sem_init(&go, 0, 0);
    fake_start(&fake, idle_script, &go, 6);
    for (int round = 0; round < 6; round++) {
        struct fa_client *client = fake_open(&fake);
        struct pollfd ready = {.fd = fa_client_fd(client), .events = POLLIN};
        enum fa_status status = FA_OK;
        struct fake_small small;

        fake_small_init(&small, 1);
        if (round < 3)
            sem_post(&go);
        if (round % 3 == 0) {
            ck_assert(ready.fd < 0 || poll(&ready, 1, -1) == 1);
            status = fa_client_process(client);
        } else if (round % 3 == 1) {
            status = fa_ping(client);
        } else {
            status = fa_forward(client, &small.args, NULL);
        }
        ck_assert_int_eq(status, FA_SHUTTING_DOWN);
        ck_assert_str_eq(fa_last_error_record(client)->text, "stopping");
        fake_check_closed(client, FA_SHUTTING_DOWN);
        fa_client_close(client);
    }
    fake_stop(&fake);
    sem_destroy(&go);
}
END_TEST

/* --- Frames that are not sent yet ------------------------------------------------------------ */

#define LARGE_ROWS (1u << 20)

enum { REFUSES_UNSENT, REFUSES_TWICE, ANSWERS_UNSENT, UNSENT_LIES };

/* Of a large frame it reads the head alone. */
static void unsent_script(struct fake_daemon *fake, int fd, int round)
{
    struct pollfd hang_up = {.fd = fd};
    struct fake_frame frame;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_read_head(fd, &frame));
    if (round == REFUSES_UNSENT)
        frame.frame.id++;
    if (round == ANSWERS_UNSENT)
        fake_answer(fd, &frame, NULL, 16);
    else
        fake_refuse(fd, &frame, FA_INVALID_ARGUMENT, "q", "early");
    if (round == REFUSES_TWICE)
        fake_refuse(fd, &frame, FA_INVALID_ARGUMENT, "q", "again");
    fake_frame_release(&frame);
    ck_assert_int_eq(poll(&hang_up, 1, -1), 1); /* the client closes, with all that unsent */
}

/* No daemon can have read what is queued, nor answer twice what it has begun to read. */
START_TEST(unsent_frames)
{
    static float large[LARGE_ROWS * FAKE_SMALL_WIDTH];
    struct fake_daemon fake;

    fake_start(&fake, unsent_script, NULL, UNSENT_LIES);
    for (int round = 0; round < UNSENT_LIES; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small[2];

        for (int i = 0; i < 2; i++) {
            fake_small_init(&small[i], i);
            small[i].args.kv_len = LARGE_ROWS;
            small[i].args.k.data = small[i].args.v.data = large;
            ck_assert_int_eq(fa_forward_submit(client, &small[i].args, &small[i].request), FA_OK);
            fa_request_set_user(small[i].request, &small[i]);
        }
        fake_small_wait(client, &small[1], FA_PROTOCOL_ERROR);
        ck_assert_str_eq(fa_last_error_record(client)->field,
                         round == ANSWERS_UNSENT ? "status" : "header");
        fake_small_wait(client, &small[0],
                        round == REFUSES_TWICE ? FA_INVALID_ARGUMENT : FA_PROTOCOL_ERROR);
        fake_check_closed(client, FA_PROTOCOL_ERROR);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* --- Noise ----------------------------------------------------------------------------------- */

#define NOISE_ROUNDS 400

/* Good replies in one stream, with a few bytes changed. */
static void noise_script(struct fake_daemon *fake, int fd, int round)
{
    uint8_t stream[COUNT * 256];
    struct fake_frame frames[COUNT];
    unsigned state = (unsigned)round + 1;
    size_t size, total = 0;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, COUNT));
    for (int i = 0; i < COUNT; i++) {
        uint8_t *bytes = fake_small_reply(&frames[i], &size);
        ck_assert_uint_le(total + size, sizeof stream);
        memcpy(stream + total, bytes, size);
        total += size;
        free(bytes);
        fake_frame_release(&frames[i]);
    }
    for (int i = 0; i <= round % 3; i++)
        stream[fake_random(&state) % total] ^= (uint8_t)(1u << (fake_random(&state) % 8));
    fake_send(fd, stream, total);
}

START_TEST(noise)
{
    struct fake_daemon fake;

    fake_start(&fake, noise_script, NULL, NOISE_ROUNDS);
    for (int round = 0; round < NOISE_ROUNDS; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small[COUNT];

        fake_small_submit(client, small, COUNT);
        for (int i = 0; i < COUNT; i++) {
            enum fa_status status = fa_wait(client, small[i].request, NULL);
            ck_assert_msg(status <= FA_INTERNAL || status == FA_DISCONNECTED, "%s",
                          fa_last_error(client));
            for (int j = 0; j < FAKE_SMALL_WIDTH; j++)
                ck_assert(small[i].q[j] == (float)i && small[i].k[j] == 0 && small[i].v[j] == 0);
        }
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_ids");
    TCase *tcase = tcase_create("client_ids");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, connection_ends, 0, 2 * ENDINGS);
    tcase_add_test(tcase, idle_client);
    tcase_add_test(tcase, unsent_frames);
    tcase_add_test(tcase, noise);
    suite_add_tcase(suite, tcase);
    return suite;
}
