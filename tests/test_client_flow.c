/* libfa's bytes with many requests in flight: every frame whole, each descriptor with its own, no
 * two sides that wait for each other, and outputs that go each to its place. */
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* --- Descriptors ----------------------------------------------------------------------------- */

#define FRAMES 40
#define PAGE   4096

/* That which frame has one, by its number. */
static bool has_descriptor(int number)
{
    return number % 5 == 1 || number % 5 == 3 || number % 5 == 4;
}

/* Writes the answer into the memory that came, whose size tells whose it is. */
static void answer_shared(int fd, const struct fake_frame *frame, int number)
{
    struct stat about;
    float *memory;

    ck_assert_int_ge(frame->fd, 0);
    ck_assert_int_eq(fstat(frame->fd, &about), 0);
    ck_assert_int_eq(about.st_size, PAGE * (number + 1));
    memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, frame->fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    for (int i = 0; i < FAKE_SMALL_WIDTH; i++)
        memory[i] = (float)(number + 1000);
    munmap(memory, PAGE);
    fake_answer(fd, frame, NULL, 0);
}

static void descriptors_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)round;

    fake_hello(fd);
    ck_assert_int_eq(sem_wait(fake->data), 0);
    for (int number = 0; number < FRAMES; number++) {
        ck_assert(fake_read(fd, &frame)); /* fails on one that comes elsewhere or twice */
        ck_assert_int_eq(fake_small_number(&frame), number);
        if (has_descriptor(number)) {
            answer_shared(fd, &frame, number);
        } else {
            ck_assert_int_eq(frame.fd, -1);
            fake_small_answer(fd, &frame);
        }
        fake_frame_release(&frame);
    }
}

/* Frames with descriptors between plain ones, while the daemon reads nothing and then all: gathered
 * after a large frame, or, with the smallest of buffers, each sent in several parts. k and v are
 * this long. */
static const uint32_t kv_rows[2] = {1, 4096};

START_TEST(descriptors)
{
    static float kv[4096 * FAKE_SMALL_WIDTH], large[(1 << 20) * FAKE_SMALL_WIDTH];
    struct fake_daemon fake;
    struct fake_small small[FRAMES];
    struct fa_shared shared[FRAMES];
    struct fa_client *client;
    const int smallest = 1;
    sem_t go;

    sem_init(&go, 0, 0);
    fake_start(&fake, descriptors_script, &go, 1);
    client = fake_open(&fake);
    if (_i == 1)
        ck_assert_int_eq(
            setsockopt(fa_client_fd(client), SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest), 0);
    for (int i = 0; i < FRAMES; i++) {
        struct fa_forward_args *args = &small[i].args;

        fake_small_init(&small[i], i);
        args->kv_len = i == 0 ? 1 << 20 : kv_rows[_i];
        args->k.data = args->v.data = i == 0 ? large : kv;
        if (has_descriptor(i)) {
            ck_assert_int_eq(fa_shared_create(&shared[i], (size_t)PAGE * (size_t)(i + 1)), FA_OK);
            args->o = (struct fa_tensor){.data = shared[i].data, .shared = &shared[i]};
        }
        ck_assert_int_eq(fa_forward_submit(client, args, &small[i].request), FA_OK);
        fa_request_set_user(small[i].request, &small[i]);
    }
    sem_post(&go);
    for (int i = 0; i < FRAMES; i++) {
        if (has_descriptor(i)) {
            ck_assert_int_eq(fa_wait(client, small[i].request, NULL), FA_OK);
            ck_assert(((float *)shared[i].data)[3] == (float)(1000 + i));
            fa_shared_destroy(&shared[i]);
        } else {
            fake_small_wait(client, &small[i], FA_OK);
        }
    }
    fa_client_close(client);
    fake_stop(&fake);
    sem_destroy(&go);
}
END_TEST

/* --- Large ones ------------------------------------------------------------------------------ */

#define LARGE_ROWS  (1u << 22)
#define LARGE_BYTES ((size_t)LARGE_ROWS * 16) /* 64 MiB */

/* Reads nothing of the second request before the first reply is on its way. */
static void one_by_one_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    for (int i = 0; i < 2; i++) {
        ck_assert(fake_read(fd, &frame));
        for (size_t at = 0; at < LARGE_BYTES; at += PAGE)
            ck_assert_uint_eq(frame.payload[at], (uint8_t)(at / PAGE + (size_t)i));
        fake_answer(fd, &frame, frame.payload, LARGE_BYTES);
        fake_frame_release(&frame);
    }
}

/* libfa reads while it writes. */
START_TEST(large_pipelined)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_request *requests[2];
    uint8_t *q[2], *o[2];
    float kv[FAKE_SMALL_WIDTH] = {0};

    fake_start(&fake, one_by_one_script, NULL, 1);
    client = fake_open(&fake);
    for (int i = 0; i < 2; i++) {
        struct fa_forward_args args = {
            .batch = 1, .heads = 1, .q_len = LARGE_ROWS, .kv_len = 1, .head_dim = FAKE_SMALL_WIDTH};

        q[i] = calloc(1, LARGE_BYTES);
        o[i] = calloc(1, LARGE_BYTES);
        for (size_t at = 0; at < LARGE_BYTES; at += PAGE)
            q[i][at] = (uint8_t)(at / PAGE + (size_t)i);
        args.q.data = q[i];
        args.k.data = args.v.data = kv;
        args.o.data = o[i];
        ck_assert_int_eq(fa_forward_submit(client, &args, &requests[i]), FA_OK);
    }
    for (int i = 1; i >= 0; i--) {
        ck_assert_int_eq(fa_wait(client, requests[i], NULL), FA_OK);
        ck_assert_mem_eq(q[i], o[i], LARGE_BYTES);
        free(q[i]);
        free(o[i]);
    }
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Strides --------------------------------------------------------------------------------- */

#define STRIDED 5

static void backwards_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frames[STRIDED];
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, frames, STRIDED));
    for (int i = STRIDED - 1; i >= 0; i--) {
        float o[8];

        for (int j = 0; j < 8; j++)
            o[j] = (float)(100 * fake_small_number(&frames[i]) + j);
        fake_answer(fd, &frames[i], o, sizeof o);
        fake_frame_release(&frames[i]);
    }
}

/* o of two rows, which lie farther apart from request to request. */
START_TEST(strided_outputs)
{
    struct fake_daemon fake;
    struct fake_small small[STRIDED];
    struct fa_client *client;
    float o[STRIDED][40], q[STRIDED][8];

    fake_start(&fake, backwards_script, NULL, 1);
    client = fake_open(&fake);
    for (int i = 0; i < STRIDED; i++) {
        struct fa_strides strides = {80, 40, 4 + i};

        for (int j = 0; j < 40; j++)
            o[i][j] = -7;
        fake_small_init(&small[i], i);
        small[i].args.q_len = 2;
        for (int j = 0; j < 8; j++)
            q[i][j] = (float)i;
        small[i].args.q.data = q[i];
        small[i].args.o = (struct fa_tensor){.data = o[i], .strides = &strides};
        ck_assert_int_eq(fa_forward_submit(client, &small[i].args, &small[i].request), FA_OK);
    }
    for (int i = 0; i < STRIDED; i++) {
        ck_assert_int_eq(fa_wait(client, small[i].request, NULL), FA_OK);
        for (int j = 0; j < 40; j++) {
            int row = j / (4 + i), column = j % (4 + i);
            bool inside = row < 2 && column < 4;
            ck_assert(o[i][j] == (inside ? (float)(100 * i + 4 * row + column) : -7));
        }
    }
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Closing --------------------------------------------------------------------------------- */

/* Answers the first and waits for the close. */
static void first_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    char byte;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_small_read(fd, &frame, 1));
    fake_small_answer(fd, &frame);
    fake_frame_release(&frame);
    while (recv(fd, &byte, 1, 0) > 0)
        continue;
}

/* One done and not taken, one half sent, many queued, with copies of their own and a descriptor:
 * the leak checker and fake_stop look. */
START_TEST(close_in_flight)
{
    static float large[(1 << 20) * FAKE_SMALL_WIDTH];
    const struct fa_strides gaps = {1 << 20, 1 << 20, 8};
    struct fake_daemon fake;
    struct fake_small small[20];
    struct fa_shared shared;
    struct fa_client *client;
    struct fa_request *next;

    fake_start(&fake, first_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_shared_create(&shared, PAGE), FA_OK);
    for (int i = 0; i < 20; i++) {
        struct fa_forward_args *args;

        fake_small_init(&small[i], i);
        args = &small[i].args;
        if (i > 0) {
            args->kv_len = 1 << 16;
            args->k = args->v = (struct fa_tensor){.data = large, .strides = &gaps};
            args->o.strides = &gaps;
        }
        if (i == 10)
            args->o = (struct fa_tensor){.data = shared.data, .shared = &shared};
        ck_assert_int_eq(fa_forward_submit(client, args, &small[i].request), FA_OK);
    }
    ck_assert_int_eq(fa_next(client, &next), FA_OK);
    ck_assert_ptr_eq(next, small[0].request);
    fa_client_close(client);
    fa_shared_destroy(&shared);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_flow");
    TCase *tcase = tcase_create("client_flow");

    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, descriptors, 0, 2);
    tcase_add_test(tcase, large_pipelined);
    tcase_add_test(tcase, strided_outputs);
    tcase_add_test(tcase, close_in_flight);
    suite_add_tcase(suite, tcase);
    return suite;
}
