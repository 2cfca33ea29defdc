/* libfa's shared memory, and payloads larger than a socket's buffer, against a scripted daemon. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

/* --- Shared memory --------------------------------------------------------------------------- */

/* Where the small problem's tensors lie in a shared memory of this many bytes. */
enum { AT_Q = 64, AT_K = 256, AT_V = 512, AT_O = 1024, AT_LSE = 2044, SHARED_SIZE = 2100 };

static void check_place(const Fad__Tensor *tensor, uint64_t offset)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert(!tensor->inline_bytes && !tensor->cuda_ipc);
    ck_assert_ptr_nonnull(tensor->memfd);
    ck_assert(tensor->memfd->has_offset);
    ck_assert_uint_eq(tensor->memfd->offset, offset);
}

/* Doubles q's first element into o's, as one who has mapped the descriptor. */
static void shared_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    Fad__Forward *forward;
    struct stat about;
    char *memory;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_ge(frame.fd, 0);
    ck_assert_uint_eq(frame.frame.payload_length, 0);
    forward = fake_unpack_forward(&frame);
    check_place(forward->q, AT_Q);
    check_place(forward->k, AT_K);
    check_place(forward->v, AT_V);
    check_place(forward->o, AT_O);
    check_place(forward->lse, AT_LSE);
    ck_assert(!forward->q->has_stride_row);
    ck_assert(forward->o->has_stride_row && forward->o->stride_row == 6);
    ck_assert(forward->o->has_stride_batch && forward->o->stride_batch == 18);
    ck_assert(forward->o->has_stride_head && forward->o->stride_head == 3);
    fad__forward__free_unpacked(forward, NULL);

    ck_assert_int_eq(fstat(frame.fd, &about), 0);
    ck_assert_int_eq(about.st_size, SHARED_SIZE);
    ck_assert_int_eq(fcntl(frame.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
    memory = mmap(NULL, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, frame.fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    *(float *)(void *)(memory + AT_O) = 2 * *(float *)(void *)(memory + AT_Q);
    munmap(memory, SHARED_SIZE);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);

    ck_assert(fake_read(fd, &frame)); /* the descriptor does not come again by itself */
    ck_assert_int_eq(frame.fd, -1);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
}

START_TEST(all_shared)
{
    const struct fa_strides bmhd = {18, 3, 6};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_forward_args *args = &problem.args;
    struct fa_shared shared;
    struct fa_client *client;
    char *memory;

    fake_problem_init(&problem);
    fake_start(&fake, shared_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&shared, SHARED_SIZE), FA_OK);
    ck_assert_uint_eq(shared.size, SHARED_SIZE);
    ck_assert_int_eq(fcntl(shared.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    memory = shared.data;
    for (int i = 0; i < SHARED_SIZE; i++)
        ck_assert_int_eq(memory[i], 0);
    args->q = (struct fa_tensor){.data = memory + AT_Q, .shared = &shared};
    args->k = (struct fa_tensor){.data = memory + AT_K, .shared = &shared};
    args->v = (struct fa_tensor){.data = memory + AT_V, .shared = &shared};
    args->o = (struct fa_tensor){.data = memory + AT_O, .shared = &shared, .strides = &bmhd};
    args->lse = (struct fa_tensor){.data = memory + AT_LSE, .shared = &shared};
    *(float *)args->q.data = 21;
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, args, NULL), FA_OK);
    ck_assert(*(float *)args->o.data == 42);
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    fa_shared_destroy(&shared);
    fa_shared_destroy(&shared);
    fake_stop(&fake);
}
END_TEST

/* The size of k and v in mixed: together far over any socket buffer. */
#define MIXED_ROWS  (1u << 20)
#define MIXED_BYTES ((size_t)MIXED_ROWS * 4)

/* Reads all of a frame that came in many sends; fake_read fails on a second descriptor. */
static void mixed_script(struct fake_daemon *fake, int fd, int round)
{
    const float lse = 5;
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_ge(frame.fd, 0);
    ck_assert_uint_eq(frame.frame.payload_length, 2 * MIXED_BYTES);
    for (size_t i = 0; i < 2 * MIXED_BYTES; i += 4096)
        ck_assert_uint_eq(frame.payload[i], (uint8_t)(i / 4096));
    fake_answer(fd, &frame, &lse, sizeof lse);
    fake_frame_release(&frame);
}

START_TEST(shared_beside_large_inline)
{
    float lse = 0;
    struct fake_daemon fake;
    struct fa_shared shared;
    struct fa_client *client;
    uint8_t *kv = malloc(2 * MIXED_BYTES);
    struct fa_forward_args args = {
        .batch = 1, .heads = 1, .q_len = 1, .kv_len = MIXED_ROWS, .head_dim = 1};

    for (size_t i = 0; i < 2 * MIXED_BYTES; i++)
        kv[i] = (uint8_t)(i / 4096);
    fake_start(&fake, mixed_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&shared, 8), FA_OK);
    args.q = (struct fa_tensor){.data = shared.data, .shared = &shared};
    args.k.data = kv;
    args.v.data = kv + MIXED_BYTES;
    args.o = (struct fa_tensor){.data = (char *)shared.data + 4, .shared = &shared};
    args.lse.data = &lse;
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &args, NULL), FA_OK);
    ck_assert(lse == 5);
    fa_client_close(client);
    fa_shared_destroy(&shared);
    free(kv);
    fake_stop(&fake);
}
END_TEST

START_TEST(shared_sizes)
{
    struct fa_shared shared = {0};

    fa_shared_destroy(NULL);
    fa_shared_destroy(&shared);
    ck_assert_int_eq(fa_shared_create(NULL, 1), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_shared_create(&shared, 0), FA_INVALID_ARGUMENT);
    errno = 0;
    ck_assert_int_eq(fa_shared_create(&shared, SIZE_MAX), FA_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(errno, EFBIG);
    ck_assert_int_eq(fa_shared_create(&shared, (size_t)1 << 62), FA_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(errno, ENOMEM);
    ck_assert_ptr_null(shared.data);
    fa_shared_destroy(&shared);
    ck_assert_int_eq(fa_shared_create(&shared, 1), FA_OK);
    *(char *)shared.data = 1;
    fa_shared_destroy(&shared);
    ck_assert_ptr_null(shared.data);
}
END_TEST

/* --- More than the socket holds -------------------------------------------------------------- */

#define LARGE_ROWS  (1u << 18)
#define LARGE_WIDTH 64u
#define LARGE_BYTES ((size_t)LARGE_ROWS * LARGE_WIDTH * 4) /* 64 MiB */

/* Refuses when it has seen the message, in more words than its own socket buffer holds, and reads
 * no byte of the payload before the client has taken them all. */
static void early_refusal_script(struct fake_daemon *fake, int fd, int round)
{
    const int smallest = 1;
    struct fake_frame frame;
    char *text = malloc(FA_FRAME_MESSAGE_MAX);
    (void)fake, (void)round;

    memset(text, 'x', FA_FRAME_MESSAGE_MAX);
    text[60000] = '\0';
    fake_hello(fd);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
    ck_assert(fake_read_head(fd, &frame));
    ck_assert_uint_eq(frame.frame.payload_length, LARGE_BYTES + 512);
    fake_refuse(fd, &frame, FAD__STATUS__RESOURCE_EXHAUSTED, "q", text);
    fake_read_payload(fd, &frame);
    fake_frame_release(&frame);
    free(text);
    ck_assert(fake_read(fd, &frame)); /* the frame was whole: the next is in its place */
    ck_assert_int_eq(frame.frame.type, FA_FRAME_PING);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
}

static void ignore_signal(int number)
{
    (void)number;
}

/* With signals that interrupt the calls all the while. */
START_TEST(early_refusal)
{
    const struct sigaction action = {.sa_handler = ignore_signal};
    const struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    struct fake_daemon fake;
    struct fa_client *client;
    float *memory = calloc(1, LARGE_BYTES), kv[64] = {0};
    struct fa_forward_args args = {
        .batch = 1, .heads = 1, .q_len = LARGE_ROWS, .kv_len = 1, .head_dim = LARGE_WIDTH};

    args.q.data = args.o.data = memory;
    args.k.data = args.v.data = kv;
    fake_start(&fake, early_refusal_script, NULL, 1);
    client = fake_open(&fake);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    ck_assert_int_eq(fa_forward(client, &args, NULL), FA_RESOURCE_EXHAUSTED);
    setitimer(ITIMER_REAL, &never, NULL);
    ck_assert_str_eq(fa_last_error_record(client)->field, "q");
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    free(memory);
    fake_stop(&fake);
}
END_TEST

/* A large answer goes straight to its place; the socket is emptied as it fills. */
static void large_reply_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    for (size_t i = 0; i < LARGE_BYTES; i += 4096)
        frame.payload[i] ^= 0x55;
    fake_answer(fd, &frame, frame.payload, LARGE_BYTES);
    fake_frame_release(&frame);
}

START_TEST(large_reply)
{
    struct fake_daemon fake;
    struct fa_client *client;
    uint8_t *memory = malloc(LARGE_BYTES), kv[256] = {0};
    struct fa_forward_args args = {
        .batch = 1, .heads = 1, .q_len = LARGE_ROWS, .kv_len = 1, .head_dim = LARGE_WIDTH};

    for (size_t i = 0; i < LARGE_BYTES; i++)
        memory[i] = (uint8_t)(i / 4096);
    args.q.data = args.o.data = memory;
    args.k.data = args.v.data = kv;
    fake_start(&fake, large_reply_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &args, NULL), FA_OK);
    for (size_t i = 0; i < LARGE_BYTES; i++)
        if (memory[i] != (uint8_t)((i / 4096) ^ (i % 4096 ? 0 : 0x55)))
            ck_abort_msg("byte %zu is %u", i, memory[i]);
    fa_client_close(client);
    free(memory);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_shared");
    TCase *tcase = tcase_create("client_shared");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, all_shared);
    tcase_add_test(tcase, shared_beside_large_inline);
    tcase_add_test(tcase, shared_sizes);
    tcase_add_test(tcase, early_refusal);
    tcase_add_test(tcase, large_reply);
    suite_add_tcase(suite, tcase);
    return suite;
}
