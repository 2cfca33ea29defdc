/* libfa's tensors and regions in device memory that is shared by CUDA IPC: how they are named on
 * the wire, and when the driver is asked for a handle. The driver is that of fake_cuda.h. */
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_region.h"
#include "tests/helpers/test.h"

#include <string.h>
#include <sys/mman.h>

#define SIZE 4096

static const struct fake_cuda *cuda;

static char *make(size_t size)
{
    return cuda->make(FAKE_CUDA_PLAIN, 0, size);
}

static struct fa_tensor ipc(void *data)
{
    return (struct fa_tensor){.data = data, .cuda = FA_CUDA_IPC};
}

/* That it is in that allocation of that id, of which the handle is. */
static void check_location(const Fad__CudaIpcLocation *location, const void *base, uint64_t id)
{
    ck_assert(location->has_handle);
    fake_cuda_expect_memory(location->handle.data, location->handle.len, base, id);
    ck_assert(location->has_buffer_id && location->has_device_uuid);
    ck_assert_uint_eq(location->buffer_id, id);
    ck_assert_uint_eq(location->device_uuid.len, 16);
    ck_assert_mem_eq(location->device_uuid.data, fake_cuda_uuids[0], 16);
}

static void check_place(const Fad__Tensor *tensor, const void *base, uint64_t id, uint64_t offset)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert(!tensor->inline_bytes && !tensor->memfd && !tensor->region);
    ck_assert_ptr_nonnull(tensor->cuda_ipc);
    check_location(tensor->cuda_ipc, base, id);
    ck_assert(tensor->cuda_ipc->has_offset);
    ck_assert_uint_eq(tensor->cuda_ipc->offset, offset);
}

/* number 0: there is none. */
static void check_event(const Fad__Tensor *tensor, uint32_t number)
{
    const Fad__RegionLocation *region = tensor->region;
    const ProtobufCBinaryData event = region ? region->event : tensor->cuda_ipc->event;

    ck_assert((region ? region->has_event : tensor->cuda_ipc->has_event) == (number != 0));
    if (number != 0)
        fake_cuda_expect_event(event.data, event.len, number);
}

/* --- Where they are -------------------------------------------------------------------------- */

struct places {
    char *a, *b;
    uint64_t a_id, b_id;
};

/* The first forward waits for an event, the second for none. */
static void places_script(struct fake_daemon *fake, int fd, int round)
{
    const struct places *places = fake->data;
    (void)round;

    fake_cuda_hello(fd);
    for (uint32_t event = 1; event != UINT32_MAX; event--) {
        struct fake_frame frame;
        Fad__Forward *forward;

        ck_assert(fake_read(fd, &frame));
        ck_assert_int_eq(frame.fd, -1);
        ck_assert_uint_eq(frame.frame.payload_length, 0);
        forward = fake_unpack_forward(&frame);
        check_place(forward->q, places->a, places->a_id, 256);
        ck_assert(forward->q->has_stride_row && forward->q->stride_row == 6);
        check_event(forward->q, event);
        check_place(forward->k, places->a, places->a_id, 404);
        ck_assert(!forward->k->has_stride_row);
        check_event(forward->k, 0);
        check_place(forward->v, places->b, places->b_id, 0);
        check_event(forward->v, 0);
        check_place(forward->o, places->a, places->a_id, 1024);
        check_place(forward->lse, places->a, places->a_id, SIZE - 48);
        fad__forward__free_unpacked(forward, NULL);
        fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

START_TEST(placed_in_memory)
{
    const struct fa_strides bmhd = {18, 3, 6};
    struct places places = {make(SIZE), make(1024), 0, 0};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    places.a_id = cuda->id(places.a);
    places.b_id = cuda->id(places.b);
    fake_problem_init(&problem);
    problem.args.q = ipc(places.a + 256);
    problem.args.q.strides = &bmhd;
    problem.args.k = ipc(places.a + 404);
    problem.args.v = ipc(places.b);
    problem.args.o = ipc(places.a + 1024);
    problem.args.lse = ipc(places.a + SIZE - 48);
    problem.args.cuda_event = cuda->event(true);
    fake_start(&fake, places_script, &places, 1);
    client = fake_open(&fake);
    cuda->use(1); /* the caller's context, which stays current */
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert(!cuda->event_awaited(problem.args.cuda_event));
    problem.args.cuda_event = NULL;
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), 2);
    ck_assert_int_eq(cuda->pushed(), 1);
    ck_assert_int_eq(cuda->retained(), 0);
    fa_client_close(client);
    fake_stop(&fake);
    cuda->drop(places.a);
    cuda->drop(places.b);
}
END_TEST

/* A q by CUDA IPC beside a k in shared memory, a v inline and inline outputs; and a forward whose k
 * and v have no elements, wherever they are said to be. */
static void mixed_script(struct fake_daemon *fake, int fd, int round)
{
    const struct places *places = fake->data;
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)round;

    fake_cuda_hello(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_ge(frame.fd, 0);
    forward = fake_unpack_forward(&frame);
    check_place(forward->q, places->a, places->a_id, 8);
    ck_assert_ptr_nonnull(forward->k->memfd);
    fake_check_input(forward->v, 0, 120);
    fake_check_output(forward->o);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);

    ck_assert(fake_read(fd, &frame));
    forward = fake_unpack_forward(&frame);
    check_place(forward->q, places->a, places->a_id, 8);
    check_event(forward->q, 1);
    fake_check_input(forward->k, 0, 0);
    fake_check_input(forward->v, 0, 0);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

START_TEST(mixed)
{
    struct places places = {.a = make(SIZE)};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_shared shared;

    places.a_id = cuda->id(places.a);
    fake_problem_init(&problem);
    fake_start(&fake, mixed_script, &places, 1);
    ck_assert_int_eq(fa_shared_create(&shared, SIZE), FA_OK);
    client = fake_open(&fake);
    problem.args.q = ipc(places.a + 8);
    problem.args.k = (struct fa_tensor){.data = shared.data, .shared = &shared};
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    fake_problem_check(&problem);
    problem.args.k = problem.args.v = ipc(&problem);
    problem.args.kv_len = 0;
    problem.args.cuda_event = cuda->event(true);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    fa_client_close(client);
    fa_shared_destroy(&shared);
    fake_stop(&fake);
    cuda->drop(places.a);
}
END_TEST

/* --- Handles that are kept ------------------------------------------------------------------- */

/* Expects q in each of the allocations, whose id q's buffer_id is. */
struct series {
    void *base;
    uint64_t id;
};

static void series_script(struct fake_daemon *fake, int fd, int round)
{
    const struct series *series = fake->data;
    struct fake_frame frame;
    (void)round;

    fake_cuda_hello(fd);
    while (fake_read(fd, &frame)) {
        Fad__Forward *forward = fake_unpack_forward(&frame);

        check_place(forward->q, series->base, series->id, 0);
        fad__forward__free_unpacked(forward, NULL);
        fake_answer_problem(fd, &frame);
        fake_frame_release(&frame);
    }
}

/* A forward pass with q there. */
static void forward_at(struct fa_client *client, struct series *series, void *base)
{
    struct fake_problem problem;

    fake_problem_init(&problem);
    problem.args.q = ipc(base);
    *series = (struct series){base, cuda->id(base)};
    ck_assert_msg(fa_forward(client, &problem.args, NULL) == FA_OK, "%s", fa_last_error(client));
}

START_TEST(memory_that_is_freed)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct series series;
    char *first = make(SIZE), *second;

    fake_start(&fake, series_script, &series, 1);
    client = fake_open(&fake);
    forward_at(client, &series, first);
    forward_at(client, &series, first);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), 1);
    cuda->drop(first);

    fake_problem_init(&problem);
    problem.args.q = ipc(first);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "q.data");

    second = make(SIZE);
    ck_assert_ptr_eq(second, first);
    forward_at(client, &series, second);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), 2);
    fa_client_close(client);
    fake_stop(&fake);
    cuda->drop(second);
}
END_TEST

/* More allocations than a client keeps handles of; the oldest is forgotten. And another client,
 * which has kept none. */
START_TEST(many_allocations)
{
    enum { MANY = 65 };
    struct fake_daemon fake;
    struct fa_client *client;
    struct series series;
    char *memory[MANY];

    for (int i = 0; i < MANY; i++)
        memory[i] = make(SIZE);
    fake_start(&fake, series_script, &series, 2);
    client = fake_open(&fake);
    for (int i = 0; i < MANY; i++)
        forward_at(client, &series, memory[i]);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), MANY);
    for (int i = 1; i < MANY; i++)
        forward_at(client, &series, memory[i]);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), MANY);
    forward_at(client, &series, memory[0]);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), MANY + 1);
    fa_client_close(client);
    client = fake_open(&fake);
    forward_at(client, &series, memory[0]);
    ck_assert_uint_eq(cuda->calls("cuIpcGetMemHandle"), MANY + 2);
    fa_client_close(client);
    fake_stop(&fake);
    for (int i = 0; i < MANY; i++)
        cuda->drop(memory[i]);
}
END_TEST

/* --- Regions --------------------------------------------------------------------------------- */

enum { REGION = 9, BASE = 260 };

/* A writable and a read-only one of the same memory; the daemon's is larger than the allocation. */
static void serve_register(int fd, const struct series *series, bool writable, uint64_t id)
{
    struct fake_frame frame;
    Fad__RegisterRegion *message;

    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.frame.type, FA_FRAME_REGISTER_REGION);
    ck_assert_int_eq(frame.fd, -1);
    message = fad__register_region__unpack(NULL, frame.frame.message_length, frame.message);
    ck_assert_ptr_nonnull(message);
    ck_assert(message->has_writable && message->writable == writable);
    ck_assert_ptr_nonnull(message->cuda_ipc);
    check_location(message->cuda_ipc, series->base, series->id);
    ck_assert(!message->cuda_ipc->has_event);
    fad__register_region__free_unpacked(message, NULL);
    fake_region_answer(fd, &frame, id, 2 * SIZE);
    fake_frame_release(&frame);
}

static void regions_script(struct fake_daemon *fake, int fd, int round)
{
    static uint8_t memory[SIZE];
    struct fake_frame frame;
    struct fake_part part;
    Fad__Forward *forward;
    (void)round;

    fake_cuda_hello(fd);
    serve_register(fd, fake->data, true, REGION);
    serve_register(fd, fake->data, false, REGION + 1);
    fake_part_read(fd, &part, REGION);
    ck_assert_uint_eq(part.offset, BASE + 1);
    fake_part_answer(fd, &part, memory);
    fake_part_read(fd, &part, REGION + 1);
    ck_assert_uint_eq(part.offset, BASE);
    fake_part_answer(fd, &part, memory);
    for (uint32_t number = 0; number < 2; number++) {
        ck_assert(fake_read(fd, &frame));
        forward = fake_unpack_forward(&frame);
        ck_assert_ptr_nonnull(forward->q->region);
        ck_assert_uint_eq(forward->q->region->region, REGION);
        ck_assert_uint_eq(forward->q->region->offset, BASE + 8);
        check_event(forward->q, number);
        fad__forward__free_unpacked(forward, NULL);
        fake_answer_problem(fd, &frame);
        fake_frame_release(&frame);
    }
}

START_TEST(regions)
{
    struct series series = {make(SIZE), 0};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_region *region, *fixed;
    char text[4] = "";

    series.id = cuda->id(series.base);
    fake_start(&fake, regions_script, &series, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_register_cuda(client, &region, (char *)series.base + BASE, true),
                     FA_OK);
    ck_assert_int_eq(fa_region_register_cuda(client, &fixed, (char *)series.base + BASE, false),
                     FA_OK);
    ck_assert_uint_eq(fa_region_size(region), SIZE - BASE);
    ck_assert_int_eq(fa_region_write(client, region, 1, "xyz", 3), FA_OK);
    ck_assert_int_eq(fa_region_read(client, fixed, 0, text, 4), FA_OK);
    ck_assert_mem_eq(text, "\0xyz", 4);
    ck_assert_int_eq(fa_region_write(client, fixed, 0, "xyz", 3), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_read(client, region, SIZE - BASE - 3, text, 4), FA_INVALID_ARGUMENT);
    fake_problem_init(&problem);
    problem.args.q = (struct fa_tensor){.region = region, .region_offset = SIZE - BASE - 140};
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_INVALID_ARGUMENT);
    problem.args.q.region_offset = 8;
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    problem.args.cuda_event = cuda->event(true);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    ck_assert(!cuda->event_awaited(problem.args.cuda_event));
    fa_client_close(client);
    fake_stop(&fake);
    cuda->drop(series.base);
}
END_TEST

static void setup(void)
{
    cuda = fake_cuda_load();
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_cuda");
    TCase *tcase = tcase_create("client_cuda");

    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, placed_in_memory);
    tcase_add_test(tcase, mixed);
    tcase_add_test(tcase, memory_that_is_freed);
    tcase_add_test(tcase, many_allocations);
    tcase_add_test(tcase, regions);
    suite_add_tcase(suite, tcase);
    return suite;
}
