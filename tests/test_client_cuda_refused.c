/* What libfa refuses of device memory, with which words, and that nothing is sent then. The driver
 * is a fake one, see fake_cuda.h, or there is none. */
#include "client/fa_cuda.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <dlfcn.h>
#include <string.h>

#define SIZE  1024
#define FIRST "GPU-aa010203-0405-0607-0809-0a0b0c0d0e0f"
#define OTHER "GPU-bb010203-0405-0607-0809-0a0b0c0d0e0f"

static const struct fake_cuda *cuda;

static struct fa_tensor ipc(void *data)
{
    return (struct fa_tensor){.data = data, .cuda = FA_CUDA_IPC};
}

static struct fa_tensor copied(void *data)
{
    return (struct fa_tensor){.data = data, .cuda = FA_CUDA_COPY};
}

/* --- With a driver --------------------------------------------------------------------------- */

struct refused_case {
    struct fa_forward_args *args;
    char *plain;
    void *pool, *managed, *virtual, *pinned, *elsewhere; /* of SIZE bytes */
    struct fa_shared shared;
};

static void host_memory(struct refused_case *c)
{
    c->args->q = ipc(c->args->q.data);
}

static void host_memory_copied(struct refused_case *c)
{
    c->args->lse = copied(c->args->lse.data);
}

static void pinned(struct refused_case *c)
{
    c->args->k = ipc(c->pinned);
}

static void pinned_copied(struct refused_case *c)
{
    c->args->k = copied(c->pinned);
}

static void pool(struct refused_case *c)
{
    c->args->q = ipc(c->pool);
}

static void managed(struct refused_case *c)
{
    c->args->v = ipc(c->managed);
}

static void virtual(struct refused_case *c)
{
    c->args->o = ipc(c->virtual);
}

static void elsewhere(struct refused_case *c)
{
    c->args->lse = ipc(c->elsewhere);
}

static void past_end(struct refused_case *c)
{
    c->args->q = ipc(c->plain + SIZE - 140);
}

static void unaligned(struct refused_case *c)
{
    c->args->q = ipc(c->plain + 2);
}

static void in_shared(struct refused_case *c)
{
    c->args->q =
        (struct fa_tensor){.data = c->shared.data, .shared = &c->shared, .cuda = FA_CUDA_IPC};
}

static void no_cuda(struct refused_case *c)
{
    c->args->q = (struct fa_tensor){.data = c->plain, .cuda = (enum fa_cuda)3};
}

static void event_alone(struct refused_case *c)
{
    c->args->cuda_event = cuda->event(true);
}

static void event_without_handle(struct refused_case *c)
{
    c->args->k = ipc(c->plain);
    c->args->cuda_event = cuda->event(false);
}

static void no_handle(struct refused_case *c)
{
    c->args->q = ipc(c->plain);
    cuda->let_fail("cuIpcGetMemHandle", 201);
}

static void no_context(struct refused_case *c)
{
    c->args->q = ipc(c->plain);
    cuda->let_fail("cuCtxPushCurrent_v2", 201);
}

static void no_context_of_its_own(struct refused_case *c)
{
    c->args->q = copied(c->pool);
    cuda->let_fail("cuCtxPushCurrent_v2", 201);
}

static void no_copy(struct refused_case *c)
{
    c->args->q = copied(c->pool);
    cuda->let_fail("cuMemcpy", 719);
}

static void no_room(struct refused_case *c)
{
    c->args->v = copied(c->virtual);
    cuda->let_fail("cuMemcpy", 2);
}

static void copied_past_end(struct refused_case *c)
{
    c->args->q = copied((char *)c->pool + SIZE - 140);
}

static void no_wait(struct refused_case *c)
{
    c->args->q = copied(c->pool);
    c->args->cuda_event = cuda->event(true);
    cuda->let_fail("cuEventSynchronize", 719);
}

static const struct {
    void (*spoil)(struct refused_case *c);
    enum fa_status status;
    const char *field, *words;
} refused[] = {
    /* Before the others: once there is a handle, it is kept. */
    {no_handle, FA_IPC_REFUSED, "q.data", "CUDA_ERROR_INVALID_CONTEXT"},
    {no_context, FA_IPC_REFUSED, "q.data", "CUDA_ERROR_INVALID_CONTEXT"},
    {host_memory, FA_INVALID_ARGUMENT, "q.data", "does not know it"},
    {host_memory_copied, FA_INVALID_ARGUMENT, "lse.data", "does not know it"},
    {pinned, FA_INVALID_ARGUMENT, "k.data", "host memory, which FA_CUDA_NO is for"},
    {pinned_copied, FA_INVALID_ARGUMENT, "k.data", "host memory, which FA_CUDA_NO is for"},
    {pool, FA_IPC_REFUSED, "q.data",
     "is pool memory (cudaMallocAsync), which CUDA IPC cannot share; allocate with cudaMalloc, use "
     "FA_CUDA_COPY, or copy it to a region"},
    {managed, FA_IPC_REFUSED, "v.data", "is managed memory (cudaMallocManaged)"},
    {virtual, FA_IPC_REFUSED, "o.data",
     "expandable segments), or another process's, which CUDA IPC cannot share; allocate with "
     "cudaMalloc, use FA_CUDA_COPY, or copy it to a region"},
    {elsewhere, FA_IPC_REFUSED, "lse.data",
     "is on device " OTHER "; use FA_CUDA_COPY, or one that the daemon serves: " FIRST},
    {past_end, FA_INVALID_ARGUMENT, "q.data", "144 bytes, of which 140 are left"},
    {unaligned, FA_INVALID_ARGUMENT, "q.data", "multiple of 4"},
    {in_shared, FA_INVALID_ARGUMENT, "q.cuda", "FA_CUDA_NO"},
    {no_cuda, FA_INVALID_ARGUMENT, "q.cuda", "3 is no enum fa_cuda"},
    {event_alone, FA_INVALID_ARGUMENT, "cuda_event", "no tensor is"},
    {event_without_handle, FA_IPC_REFUSED, "cuda_event",
     "CUDA_ERROR_INVALID_VALUE (something is wrong); make it with cudaEventInterprocess"},
    {no_context_of_its_own, FA_INTERNAL, "q.data", "CUDA_ERROR_INVALID_CONTEXT"},
    {no_copy, FA_INTERNAL, "q.data", "cannot copy it to host memory: CUDA error 719"},
    {no_room, FA_RESOURCE_EXHAUSTED, "v.data", "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"},
    {copied_past_end, FA_INVALID_ARGUMENT, "q.data", "CUDA_ERROR_INVALID_VALUE"},
    {no_wait, FA_INTERNAL, "cuda_event", "cannot wait for it: CUDA error 719"},
};

static void nothing_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_cuda_hello(fd);
    ck_assert(!fake_read(fd, &frame)); /* nothing that is wrong is sent */
}

static void let_succeed(void)
{
    static const char *const names[] = {"cuIpcGetMemHandle", "cuCtxPushCurrent_v2", "cuMemcpy",
                                        "cuEventSynchronize"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cuda->let_fail(names[i], 0);
}

START_TEST(refusals)
{
    struct fake_daemon fake;
    struct refused_case c = {.plain = cuda->make(FAKE_CUDA_PLAIN, 0, SIZE),
                             .pool = cuda->make(FAKE_CUDA_POOL, 0, SIZE),
                             .managed = cuda->make(FAKE_CUDA_MANAGED, 0, SIZE),
                             .virtual = cuda->make(FAKE_CUDA_VIRTUAL, 0, SIZE),
                             .pinned = cuda->make(FAKE_CUDA_PINNED, 0, SIZE),
                             .elsewhere = cuda->make(FAKE_CUDA_PLAIN, 1, SIZE)};
    struct fa_client *client;

    fake_start(&fake, nothing_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&c.shared, SIZE), FA_OK);
    client = fake_open(&fake);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct fa_error *error = fa_last_error_record(client);
        struct fake_problem problem;

        fake_problem_init(&problem);
        c.args = &problem.args;
        refused[i].spoil(&c);
        ck_assert_msg(fa_forward(client, c.args, NULL) == refused[i].status, "%zu: %s", i,
                      fa_last_error(client));
        ck_assert_str_eq(error->field, refused[i].field);
        ck_assert_msg(strstr(error->text, refused[i].words) != NULL, "'%s' lacks '%s'", error->text,
                      refused[i].words);
        let_succeed();
        ck_assert_int_eq(cuda->pushed(), 0);
        ck_assert_int_eq(cuda->retained(), 0);
    }
    fa_client_close(client);
    fa_shared_destroy(&c.shared);
    fake_stop(&fake);
    /* The pages of the test's own process end with it. */
}
END_TEST

START_TEST(refused_regions)
{
    struct fake_daemon fake;
    char *plain = cuda->make(FAKE_CUDA_PLAIN, 0, SIZE), *pool = cuda->make(FAKE_CUDA_POOL, 0, SIZE);
    struct fa_region *region = (struct fa_region *)&fake;
    struct fa_client *client;

    fake_start(&fake, nothing_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_register_cuda(client, &region, pool, true), FA_IPC_REFUSED);
    ck_assert_ptr_null(region);
    ck_assert_str_eq(fa_last_error_record(client)->field, "pointer");
    ck_assert_int_eq(fa_region_register_cuda(client, &region, plain + 2, true),
                     FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "pointer");
    ck_assert_int_eq(fa_region_register_cuda(client, &region, NULL, true), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "pointer");
    ck_assert_int_eq(fa_region_register_cuda(client, NULL, plain, true), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "out");
    ck_assert_int_eq(fa_region_register_cuda(NULL, &region, plain, true), FA_INVALID_ARGUMENT);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

static void plain_script(struct fake_daemon *fake, int fd, int round)
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

/* It is refused without a look at the driver; copies it takes. */
START_TEST(daemon_on_the_cpu)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_region *region;
    char *plain = cuda->make(FAKE_CUDA_PLAIN, 0, SIZE);

    fake_problem_init(&problem);
    fake_start(&fake, plain_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert(fa_info_has_transport(fa_client_info(client), "inline"));
    ck_assert(fa_info_has_transport(fa_client_info(client), "memfd"));
    ck_assert(!fa_info_has_transport(fa_client_info(client), "mem"));
    ck_assert(!fa_info_has_transport(fa_client_info(client), "memfds"));
    problem.args.o = ipc(plain);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_IPC_REFUSED);
    ck_assert_str_eq(fa_last_error(client),
                     "IPC_REFUSED: o.data: the daemon, whose backend is cpu, takes no CUDA IPC "
                     "but: inline memfd; use FA_CUDA_COPY, or host memory");
    ck_assert_int_eq(fa_region_register_cuda(client, &region, plain, true), FA_IPC_REFUSED);
    ck_assert_uint_eq(cuda->calls("cuInit"), 0);
    problem.args.o = copied(plain);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    memcpy(problem.o, cuda->bytes(plain), sizeof problem.o);
    fake_problem_check(&problem);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Without --------------------------------------------------------------------------------- */

START_TEST(no_driver)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_error error;
    void *memory = &fake;

    fake_problem_init(&problem);
    fake_start(&fake, plain_script, NULL, 1);
    client = fake_open(&fake);
    for (int i = 0; i < 2; i++) {
        problem.args.q.cuda = FA_CUDA_COPY;
        ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_UNAVAILABLE);
        ck_assert_str_eq(fa_last_error_record(client)->field, "q.data");
        ck_assert_ptr_nonnull(strstr(fa_last_error(client), "no CUDA driver here: libcuda.so.1: "));
    }
    ck_assert_int_eq(fa_cuda_alloc(&memory, SIZE, NULL, &error), FA_UNAVAILABLE);
    ck_assert_ptr_null(memory);
    ck_assert_ptr_nonnull(strstr(error.text, "libcuda.so.1"));
    ck_assert_int_eq(fa_cuda_free(&fake, NULL), FA_UNAVAILABLE);
    ck_assert_int_eq(fa_cuda_copy(&fake, &fake, 1, NULL), FA_UNAVAILABLE);
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

static void setup(void)
{
    cuda = fake_cuda_load();
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_cuda_refused");
    TCase *with = tcase_create("with_a_driver"), *without = tcase_create("without");

    tcase_set_timeout(with, 60);
    tcase_add_checked_fixture(with, setup, NULL);
    tcase_add_test(with, refusals);
    tcase_add_test(with, refused_regions);
    tcase_add_test(with, daemon_on_the_cpu);
    suite_add_tcase(suite, with);
    tcase_set_timeout(without, 60);
    if (dlopen("libcuda.so.1", RTLD_LAZY))
        test_skip("no_driver", "this machine has a CUDA driver");
    else
        tcase_add_test(without, no_driver);
    suite_add_tcase(suite, without);
    return suite;
}
