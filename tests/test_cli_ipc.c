/* fa-cli run and load with tensors in device memory, by CUDA IPC: on a driver without a GPU (see
 * fake_cuda.h), which fa-cli loads, and a daemon of the test's own that opens the handles and
 * computes there with the float64 reference. */
#include "kernels/fa_attention.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PLACES_MAX 16

struct server {
    unsigned forgets_from; /* the forward, counted from 1, from which on it leaves outputs by CUDA
                              IPC as they were; 0: none */
    bool plain;            /* a daemon without CUDA IPC */
    bool foreign;          /* one of a device that nobody else has */
    bool both;             /* one of that device and then of the driver's */
    /* What was seen: */
    unsigned forwards, regions;
    size_t allocations, outputs; /* different ones */
    uint64_t ids[PLACES_MAX], places[PLACES_MAX];
};

static void note(uint64_t *list, size_t *count, uint64_t value)
{
    for (size_t i = 0; i < *count; i++)
        if (list[i] == value)
            return;
    ck_assert_uint_lt(*count, PLACES_MAX);
    list[(*count)++] = value;
}

/* --- Forward --------------------------------------------------------------------------------- */

/* A tensor's floats: in a mapping of its own, or in a payload. */
struct place {
    float *data;
    void *mapping;
    uint64_t size;
};

static struct place open_place(struct server *server, const Fad__Tensor *tensor, float *payload)
{
    const Fad__CudaIpcLocation *ipc = tensor->cuda_ipc;
    struct fake_cuda_handle handle;
    void *mapping;

    if (!ipc)
        return (struct place){payload, NULL, 0};
    ck_assert(!ipc->has_event && ipc->device_uuid.len == 16 && ipc->handle.len == sizeof handle);
    ck_assert_mem_eq(ipc->device_uuid.data, fake_cuda_uuids[0], 16);
    mapping = fake_cuda_open(ipc->handle.data, &handle);
    ck_assert_uint_eq(ipc->buffer_id, handle.id);
    note(server->ids, &server->allocations, handle.id);
    return (struct place){(float *)(void *)((char *)mapping + ipc->offset), mapping, handle.size};
}

static const Fad__Tensor *tensor_of(const Fad__Forward *m, int which)
{
    const Fad__Tensor *const tensors[] = {m->q, m->k, m->v, m->o, m->lse};

    return tensors[which];
}

static void put(float *to, const double *from, uint64_t count)
{
    for (uint64_t i = 0; to && i < count; i++)
        to[i] = (float)from[i];
}

static void compute(const struct server *server, const Fad__Forward *m,
                    const struct place places[5], uint64_t rows)
{
    struct fa_problem problem = {.batch = m->batch,
                                 .heads = m->heads,
                                 .kv_heads = m->kv_heads,
                                 .q_len = m->q_len,
                                 .kv_len = m->kv_len,
                                 .head_dim = m->head_dim,
                                 .dtype = FA_DTYPE_FLOAT32,
                                 .mask = (enum fa_mask)m->mask,
                                 .scale = fa_default_scale(m->head_dim)};
    const bool forgets = server->forgets_from && server->forwards >= server->forgets_from;
    const struct fa_tensors tensors = {places[0].data, places[1].data, places[2].data, NULL, NULL};
    double *o = calloc(rows * m->head_dim, sizeof *o), *lse = calloc(rows, sizeof *lse);

    fa_set_packed(&problem);
    ck_assert(fa_reference(&problem, &tensors, (struct fa_range){0, rows}, o, lse));
    if (!forgets || !places[3].mapping)
        put(places[3].data, o, rows * m->head_dim);
    if (m->lse && (!forgets || !places[4].mapping))
        put(places[4].data, lse, rows);
    free(o);
    free(lse);
}

static void forward(struct server *server, int fd, const struct fake_frame *frame)
{
    Fad__Forward *m = fake_unpack_forward(frame);
    const uint64_t rows = (uint64_t)m->batch * m->heads * m->q_len;
    const uint64_t o_bytes = m->o->inline_bytes ? rows * m->head_dim * sizeof(float) : 0;
    const uint64_t lse_bytes = m->lse && m->lse->inline_bytes ? rows * sizeof(float) : 0;
    uint64_t lse_offset, size = fa_output_layout(o_bytes, lse_bytes, &lse_offset);
    char *reply = calloc(1, size + 1);
    struct place places[5] = {{0}};

    ck_assert_ptr_nonnull(reply);
    for (int i = 0; i < 5; i++) {
        const Fad__Tensor *tensor = tensor_of(m, i);
        char *payload = i == 3 ? reply : reply + lse_offset;

        if (tensor && tensor->inline_bytes && i < 3)
            payload = (char *)frame->payload + tensor->inline_bytes->offset;
        if (tensor)
            places[i] = open_place(server, tensor, (float *)(void *)payload);
    }
    if (m->o->cuda_ipc)
        note(server->places, &server->outputs, m->o->cuda_ipc->offset);
    server->forwards++;
    compute(server, m, places, rows);
    fake_answer(fd, frame, reply, size);
    for (int i = 0; i < 5; i++)
        if (places[i].mapping)
            munmap(places[i].mapping, places[i].size);
    free(reply);
    fad__forward__free_unpacked(m, NULL);
}

static void change_device(Fad__HelloReply *hello, const void *data)
{
    const struct server *server = data;
    static char *transports[] = {FAKE_TEXT("cuda-ipc")};
    static uint8_t uuid[16] = {0xcc};

    hello->transports = transports;
    hello->n_transports = 1;
    if (server->both) {
        hello->devices[1]->has_uuid = true;
        hello->devices[1]->uuid = hello->devices[0]->uuid;
    }
    hello->devices[0]->uuid.data = uuid;
}

/* A region is asked for on the device of the memory that goes with it, and refused. */
static void refuse_region(struct server *server, int fd, const struct fake_frame *frame)
{
    Fad__AllocRegion *asked =
        fad__alloc_region__unpack(NULL, frame->frame.message_length, frame->message);

    ck_assert(asked && asked->has_device_uuid && asked->device_uuid.len == 16);
    ck_assert_mem_eq(asked->device_uuid.data, fake_cuda_uuids[0], 16);
    server->regions++;
    fake_refuse(fd, frame, FA_RESOURCE_EXHAUSTED, "size", "no room");
    fad__alloc_region__free_unpacked(asked, NULL);
}

static void serve(struct fake_daemon *fake, int fd, int round)
{
    struct server *server = fake->data;
    struct fake_frame frame;

    ck_assert_int_eq(round, 0);
    if (server->plain)
        fake_hello(fd);
    else if (server->foreign || server->both)
        fake_hello_as(fd, change_device, server);
    else
        fake_cuda_hello(fd);
    while (fake_read(fd, &frame)) {
        if (frame.frame.type == FA_FRAME_ALLOC_REGION)
            refuse_region(server, fd, &frame);
        else
            forward(server, fd, &frame);
        fake_frame_release(&frame);
    }
}

#define SHAPE "--shape", "2,4,5,8", "--kv-heads", "2", "--kv-len", "7"
#define ON(server, command, ...)                                                                   \
    cli_run_on(serve, server, (const char *const[]){test_program("fa-cli"), command, __VA_ARGS__}, \
               sizeof((const char *[]){"", "", __VA_ARGS__}) / sizeof(const char *))

/* --- With a device --------------------------------------------------------------------------- */

static const char *const ways[] = {"ipc", "q=ipc", "o=ipc", "ipc,k=inline,lse=inline", "lse=ipc"};

START_TEST(run_computes_in_device_memory)
{
    struct server server = {0};
    struct test_output output =
        ON(&server, "run", SHAPE, "--transport", ways[_i], "--check", "--json");

    ck_assert_uint_eq(server.forwards, 1);
    ck_assert_uint_eq(server.allocations, 1);
    cli_expect_output(&output, "\"passed\":true");
}
END_TEST

START_TEST(memory_is_on_a_device_that_both_have)
{
    struct server server = {.both = true};
    struct test_output output = ON(&server, "run", SHAPE, "--transport", "ipc", "--check");

    ck_assert_uint_eq(server.forwards, 1);
    cli_expect_output(&output, "PASS");
}
END_TEST

START_TEST(regions_are_on_the_same_device)
{
    struct server server = {.both = true};
    struct test_output output = ON(&server, "run", SHAPE, "--transport", "q=ipc,k=region");

    ck_assert_uint_eq(server.regions, 1);
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: size: no room");
}
END_TEST

START_TEST(run_says_how_tensors_travel)
{
    struct server server = {0};
    struct test_output output = ON(&server, "run", SHAPE, "--transport", "ipc");

    cli_expect_output(&output, ", sent ipc\n");
}
END_TEST

/* What the daemon did not write is not taken for an output: not the one of the pass before. */
START_TEST(outputs_are_poisoned)
{
    struct server server = {.forgets_from = 2};
    struct test_output output =
        ON(&server, "run", SHAPE, "--transport", "ipc", "--check", "--repeat", "2");

    ck_assert_uint_eq(server.forwards, 2);
    ck_assert_ptr_nonnull(strstr(output.out, "FAIL"));
    ck_assert_int_eq(output.code, 4);
    test_output_release(&output);
}
END_TEST

/* Every request in flight has a part of its own of its client's allocation; that of the request
 * before the load is another, freed. */
START_TEST(load_computes_in_device_memory)
{
    struct server server = {0};
    struct test_output output = ON(&server, "load", SHAPE, "--transport", "ipc", "--inflight", "3",
                                   "--duration", "0.2", "--warmup", "0");

    ck_assert_uint_eq(server.allocations, 2);
    ck_assert_uint_eq(server.outputs, 3);
    ck_assert_uint_gt(server.forwards, 3);
    cli_expect_output(&output, "1 of 1 client: the bits of a pass alone");
}
END_TEST

START_TEST(info_names_devices_as_nvidia_does)
{
    struct server server = {0};
    struct test_output output = ON(&server, "info", "--json");

    ck_assert_ptr_nonnull(strstr(output.out, "\"cuda-ipc\""));
    cli_expect_output(&output, "\"uuid\":\"GPU-aa010203-0405-0607-0809-0a0b0c0d0e0f\"");
    server = (struct server){.plain = true};
    output = ON(&server, "info");
    cli_expect_output(&output, ", aa010203-0405-0607-0809-0a0b0c0d0e0f\n");
}
END_TEST

/* --- Without --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *value; /* set in the environment */
    struct server server;
    const char *words;
} lacks[] = {
    {"FAKE_CUDA_DEVICES",
     "0",
     {0},
     "UNAVAILABLE: the CUDA driver here does not start: "
     "CUDA_ERROR_NO_DEVICE (something is wrong); see nvidia-smi"},
    {"FAKE_CUDA_FAIL",
     "cuMemAlloc_v2=2",
     {0},
     "RESOURCE_EXHAUSTED: the CUDA driver cannot allocate"},
    {"FAKE_CUDA_FAIL", "cuMemcpy=719", {0}, "INTERNAL: the CUDA driver cannot copy"},
    {"FAKE_CUDA_FAIL",
     "cuIpcGetMemHandle=201",
     {0},
     "IPC_REFUSED: q.data: the CUDA driver gives no"},
    {"FAKE_CUDA_FAIL",
     "",
     {.plain = true},
     "IPC_REFUSED: --transport ipc: the daemon's backend is "
     "cpu, which takes no CUDA IPC, but: inline memfd\n"},
    {"FAKE_CUDA_FAIL", "", {.foreign = true}, "NOT_FOUND: uuid: this process sees no such device"},
};

static const char *const commands[] = {"run", "load"};

START_TEST(what_is_lacking_is_told)
{
    for (size_t i = 0; i < sizeof lacks / sizeof lacks[0]; i++) {
        struct server server = lacks[i].server;
        struct test_output output;

        ck_assert_int_eq(setenv(lacks[i].name, lacks[i].value, 1), 0);
        output = ON(&server, commands[_i], SHAPE, "--transport", "ipc");
        unsetenv(lacks[i].name);
        ck_assert_uint_eq(server.forwards, 0);
        cli_expect_error(&output, 1, lacks[i].words);
    }
}
END_TEST

START_TEST(json_tells_it_too)
{
    struct server server = {.foreign = true};
    struct test_output output = ON(&server, "run", "--transport", "ipc", "--json");

    ck_assert_ptr_nonnull(strstr(output.out, "\"status\":\"NOT_FOUND\""));
    ck_assert_ptr_nonnull(strstr(output.out, "\"field\":\"uuid\""));
    cli_expect_error(&output, 1, "NOT_FOUND");
}
END_TEST

/* A libcuda.so.1 that is none, and one that is too old. */
START_TEST(no_driver)
{
    char path[sizeof cli_directory + 16];
    struct server server = {0};
    struct test_output output;
    FILE *file;

    snprintf(path, sizeof path, "%s/libcuda.so.1", cli_directory);
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", cli_directory, 1), 0);
    output = ON(&server, "run", "--transport", "ipc");
    cli_expect_error(&output, 1, "UNAVAILABLE: no CUDA driver here: ");
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fake_cuda_path(true), 1), 0);
    output = ON(&server, "run", "--transport", "ipc");
    cli_expect_error(&output, 1,
                     "UNAVAILABLE: the CUDA driver here has no cuIpcGetEventHandle; install "
                     "version 470");
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

static void setup(void)
{
    cli_setup();
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", fake_cuda_path(false), 1), 0);
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli_ipc");
    TCase *tcase = tcase_create("cli_ipc");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, setup, cli_teardown);
    tcase_add_loop_test(tcase, run_computes_in_device_memory, 0, sizeof ways / sizeof ways[0]);
    tcase_add_test(tcase, memory_is_on_a_device_that_both_have);
    tcase_add_test(tcase, regions_are_on_the_same_device);
    tcase_add_test(tcase, run_says_how_tensors_travel);
    tcase_add_test(tcase, outputs_are_poisoned);
    tcase_add_test(tcase, load_computes_in_device_memory);
    tcase_add_test(tcase, info_names_devices_as_nvidia_does);
    tcase_add_loop_test(tcase, what_is_lacking_is_told, 0, 2);
    tcase_add_test(tcase, json_tells_it_too);
    tcase_add_test(tcase, no_driver);
    suite_add_tcase(suite, tcase);
    return suite;
}
