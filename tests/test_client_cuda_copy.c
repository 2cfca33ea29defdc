/* libfa's tensors in device memory that are copied through host memory (FA_CUDA_COPY), and
 * fa_cuda.h. The driver is a fake one, see fake_cuda.h: its memory cannot be touched but by its
 * copies. */
#include "client/fa_cuda.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <string.h>

static const struct fake_cuda *cuda;

static struct fa_tensor copied(void *data, const struct fa_strides *strides)
{
    return (struct fa_tensor){.data = data, .strides = strides, .cuda = FA_CUDA_COPY};
}

/* Memory of so many floats, which count up from first. */
static void *counting(enum fake_cuda_kind kind, int device, size_t floats, float first)
{
    void *memory = cuda->make(kind, device, floats * sizeof(float));
    float *bytes = cuda->bytes(memory);

    for (size_t i = 0; i < floats; i++)
        bytes[i] = first + (float)i;
    return memory;
}

/* --- Forward --------------------------------------------------------------------------------- */

/* q packed, k with gaps and overlapping rows, v as it lies. */
static void copied_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    forward = fake_unpack_forward(&frame);
    fake_check_input(forward->q, 0, 144);
    fake_check_input(forward->k, 192, 120);
    ck_assert_uint_eq(forward->v->inline_bytes->length, 12);
    ck_assert(forward->v->has_stride_row && forward->v->stride_row == 0);
    for (int i = 0; i < 36; i++)
        ck_assert_mem_eq(frame.payload + 4 * i, &(float){(float)(i + 1)}, 4);
    for (int i = 0; i < 30; i++) { /* see copies */
        int place = 1000 * (i / 15) + 2 * (i / 3 % 5) + i % 3;
        ck_assert_mem_eq(frame.payload + 192 + 4 * i, &(float){(float)place}, 4);
    }
    for (int i = 0; i < 3; i++)
        ck_assert_mem_eq(frame.payload + 320 + 4 * i, &(float){(float)(700 + i)}, 4);
    fake_check_output(forward->o);
    fake_check_output(forward->lse);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

/* That the count floats at memory are as they were but for those of [heads 4, rows 3] rows of this
 * width, which count up from first. */
static void check_output(void *memory, size_t count, const struct fa_strides *strides, int width,
                         float first)
{
    const float *bytes = cuda->bytes(memory);
    float expected[400];

    ck_assert_uint_le(count, 400);
    memset(expected, 0xcd, sizeof expected);
    for (int row = 0; row < 12; row++)
        for (int i = 0; i < width; i++)
            expected[row / 6 * strides->batch + row / 3 % 2 * strides->head +
                     row % 3 * strides->row + i] = first++;
    ck_assert_mem_eq(bytes, expected, count * sizeof(float));
}

START_TEST(copies)
{
    const struct fa_strides overlapping = {1000, 0, 2}, one = {0, 0, 0}, gaps = {100, 40, 10},
                            lse_gaps = {9, 4, 1};
    void *q = counting(FAKE_CUDA_POOL, 0, 36, 1), *k = counting(FAKE_CUDA_MANAGED, 0, 1011, 0),
         *v = counting(FAKE_CUDA_PLAIN, 1, 3, 700),
         *o = cuda->make(FAKE_CUDA_VIRTUAL, 0, 200 * sizeof(float)),
         *lse = cuda->make(FAKE_CUDA_PLAIN, 0, 16 * sizeof(float));
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    problem.args.q = copied(q, NULL);
    problem.args.k = copied(k, &overlapping);
    problem.args.v = copied(v, &one);
    problem.args.o = copied(o, &gaps);
    problem.args.lse = copied(lse, &lse_gaps);
    problem.args.cuda_event = cuda->event(false);
    fake_start(&fake, copied_script, NULL, 1);
    client = fake_open(&fake);
    cuda->use(1);
    ck_assert_msg(fa_forward(client, &problem.args, NULL) == FA_OK, "%s", fa_last_error(client));
    ck_assert(cuda->event_awaited(problem.args.cuda_event));
    check_output(o, 200, &gaps, 3, 1000);
    check_output(lse, 16, &lse_gaps, 1, 2000);
    ck_assert_uint_eq(cuda->calls("cuMemcpy2DUnaligned_v2"), 4);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), 0);
    ck_assert_int_eq(cuda->pushed(), 1);
    ck_assert_int_eq(cuda->retained(), 0);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

static void answering_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    while (fake_read(fd, &frame)) {
        if (frame.frame.type == FA_FRAME_FORWARD)
            fake_answer_problem(fd, &frame);
        else
            fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

/* The request ends with it, after its reply was read; the connection goes on. */
START_TEST(an_output_that_cannot_be_copied)
{
    static const char *const fields[] = {"o.data", "lse.data"};
    void *memory = cuda->make(FAKE_CUDA_PLAIN, 0, 144);
    struct fake_daemon fake;
    struct fa_client *client;

    fake_start(&fake, answering_script, NULL, 1);
    client = fake_open(&fake);
    for (int i = 0; i < 2; i++) {
        struct fake_problem problem;
        struct fa_request *request;
        struct fa_forward_result result;

        fake_problem_init(&problem);
        *(i ? &problem.args.lse : &problem.args.o) = copied(memory, NULL);
        ck_assert_int_eq(fa_forward_submit(client, &problem.args, &request), FA_OK);
        cuda->let_fail("cuMemcpy", 719);
        ck_assert_int_eq(fa_wait(client, request, &result), FA_INTERNAL);
        ck_assert_str_eq(fa_last_error_record(client)->field, fields[i]);
        ck_assert_str_eq(result.kernel, "");
        cuda->let_fail("cuMemcpy", 0);
        ck_assert_int_eq(fa_ping(client), FA_OK);
        ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    }
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- fa_cuda.h ------------------------------------------------------------------------------- */

START_TEST(allocations)
{
    void *first, *second;
    struct fa_error error = {0};
    char text[6] = "";

    ck_assert_int_eq(fa_cuda_alloc(&first, 4096, NULL, NULL), FA_OK);
    ck_assert_int_eq(fa_cuda_alloc(&second, 4096, fake_cuda_uuids[1], &error), FA_OK);
    ck_assert_int_eq(cuda->retained(), 2);
    ck_assert_int_eq(fa_cuda_copy((char *)first + 3, "hello", 6, &error), FA_OK);
    ck_assert_str_eq((char *)cuda->bytes(first) + 3, "hello");
    ck_assert_int_eq(fa_cuda_copy(second, (char *)first + 3, 6, &error), FA_OK);
    ck_assert_int_eq(fa_cuda_copy(text, second, 6, NULL), FA_OK);
    ck_assert_str_eq(text, "hello");
    ck_assert_int_eq(fa_cuda_free(first, &error), FA_OK);
    ck_assert_int_eq(fa_cuda_free(second, NULL), FA_OK);
    ck_assert_int_eq(fa_cuda_free(NULL, NULL), FA_OK);
    ck_assert_int_eq(cuda->retained(), 0);
    ck_assert_int_eq(cuda->pushed(), 0);
}
END_TEST

#define REFUSED(call, with, name, words)                                                        \
    do {                                                                                        \
        error = (struct fa_error){0};                                                           \
        ck_assert_int_eq(call, with);                                                           \
        ck_assert_int_eq(error.status, with);                                                   \
        ck_assert_str_eq(error.field, name);                                                    \
        ck_assert_msg(strstr(error.text, words) != NULL, "'%s' lacks '" words "'", error.text); \
        ck_assert_int_eq(cuda->retained(), held);                                               \
        ck_assert_int_eq(cuda->pushed(), 0);                                                    \
    } while (0)

START_TEST(refused_allocations)
{
    static const uint8_t unknown[16] = {0xcc};
    void *memory;
    struct fa_error error;
    int held = 0;

    REFUSED(fa_cuda_alloc(NULL, 1, NULL, &error), FA_INVALID_ARGUMENT, "out", "is NULL");
    REFUSED(fa_cuda_alloc(&memory, 0, NULL, &error), FA_INVALID_ARGUMENT, "size", "is 0");
    memory = &held;
    REFUSED(fa_cuda_alloc(&memory, 1, unknown, &error), FA_NOT_FOUND, "uuid", "nvidia-smi -L");
    ck_assert_ptr_null(memory);
    cuda->let_fail("cuMemAlloc_v2", 2);
    REFUSED(fa_cuda_alloc(&memory, 1, NULL, &error), FA_RESOURCE_EXHAUSTED, "",
            "cannot allocate memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
    ck_assert_ptr_null(memory);
    cuda->let_fail("cuMemAlloc_v2", 0);
    cuda->let_fail("cuDevicePrimaryCtxRetain", 46);
    REFUSED(fa_cuda_alloc(&memory, 1, NULL, &error), FA_INTERNAL, "", "CUDA error 46");
    cuda->let_fail("cuDevicePrimaryCtxRetain", 0);
    cuda->let_fail("cuDeviceGetCount", 3);
    REFUSED(fa_cuda_alloc(&memory, 1, NULL, &error), FA_INTERNAL, "", "list its devices");
    cuda->let_fail("cuDeviceGetCount", 0);

    ck_assert_int_eq(fa_cuda_alloc(&memory, 16, NULL, &error), FA_OK);
    held = 1;
    REFUSED(fa_cuda_free(&error, &error), FA_INVALID_ARGUMENT, "pointer", "does not know it");
    REFUSED(fa_cuda_free((char *)memory + 1, &error), FA_INVALID_ARGUMENT, "", "cannot free");
    REFUSED(fa_cuda_copy(&held, &held, 4, &error), FA_INVALID_ARGUMENT, "", "neither side is");
    REFUSED(fa_cuda_copy(memory, unknown, 17, &error), FA_INVALID_ARGUMENT, "", "cannot copy");
    cuda->let_fail("cuStreamSynchronize", 719);
    REFUSED(fa_cuda_copy(memory, unknown, 16, &error), FA_INTERNAL, "", "CUDA error 719");
    ck_assert_int_eq(fa_cuda_free(memory, &error), FA_OK);
}
END_TEST

static void setup(void)
{
    cuda = fake_cuda_load();
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_cuda_copy");
    TCase *tcase = tcase_create("client_cuda_copy");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, copies);
    tcase_add_test(tcase, an_output_that_cannot_be_copied);
    tcase_add_test(tcase, allocations);
    tcase_add_test(tcase, refused_allocations);
    suite_add_tcase(suite, tcase);
    return suite;
}
