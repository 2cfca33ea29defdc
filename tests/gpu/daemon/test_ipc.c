/* test_ipc.c: clients' GPU memory by CUDA IPC, straight in a Forward and registered as a region.
 * The numbers are rows of ../shared/CASES.md; 5 is test_wire_memfd.c's. */
#include "tests/gpu/daemon/peer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)
#define ALL     (INPUTS | OUTPUTS)
#define MIB     ((size_t)1 << 20)

/* Sends it; it must be refused with the status, for the field, and the connection must then serve.
 * */
static void refused(int fd, const struct wire_forward *f, enum fa_status status, const char *field)
{
    ck_assert(wire_forward_send(fd, f, 5));
    wire_expect(fd, 5, status, field);
    wire_serves(fd);
}

/* --- Row 1 ----------------------------------------------------------------------------------- */

START_TEST(row_1_one_allocation_is_mapped_once)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_alloc(&peer, &memory, 4 * MIB);
    for (uint64_t id = 10; id < 13; id++) {
        wire_forward_make(&f, (struct wire_shape){2, 4, 2, 130, 150, 64}, 0);
        peer_use_all(&f, ALL, &memory);
        peer_push(&memory, 0);
        peer_run(fd, &f, id, &memory);
        ck_assert_uint_le(peer_mapped(fd), memory.whole);
        wire_forward_free(&f);
    }
    peer_register(&memory, fd, true);
    ck_assert_uint_eq(peer_mapped(fd), memory.whole);
    wire_forward_make(&f, (struct wire_shape){2, 4, 2, 130, 150, 64}, 0);
    wire_forward_use_regions(&f, ALL, &memory.region);
    peer_push(&memory, 0);
    peer_run(fd, &f, 13, &memory);
    ck_assert_uint_eq(peer_mapped(fd), memory.whole);
    wire_release_region(fd, memory.region.id);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Allocations that the driver takes from one block of its own: each handle is for its own bytes. */
START_TEST(row_1_small_allocations_side_by_side)
{
    enum { COUNT = 8 };
    struct peer peer;
    struct peer_memory memory[COUNT];
    int fd = wire_greet();

    peer_start(&peer, 0);
    for (int i = 0; i < COUNT; i++)
        peer_alloc_exact(&peer, &memory[i], 16384);
    for (int i = 0; i < COUNT; i++) {
        struct wire_forward f;
        float *q;

        wire_forward_make(&f, WIRE_SMALL, 0);
        q = (float *)(void *)wire_forward_bytes(&f, FAD_Q);
        q[0] = (float)i; /* no two are alike */
        peer_use_all(&f, ALL, &memory[i]);
        peer_push(&memory[i], 0);
        peer_run(fd, &f, 10 + (uint64_t)i, &memory[i]);
        wire_forward_free(&f);
    }
    for (int i = 0; i < COUNT; i++)
        peer_free(&memory[i]);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* --- Row 2 ----------------------------------------------------------------------------------- */

static void refused_with_offset(int fd, struct wire_forward *f, enum fad_tensor tensor,
                                uint64_t offset, const char *field)
{
    const uint64_t sound = f->ipc[tensor].offset;

    f->ipc[tensor].offset = offset;
    refused(fd, f, FA_INVALID_ARGUMENT, field);
    f->ipc[tensor].offset = sound;
}

START_TEST(row_2_offsets_past_the_real_end)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint64_t before;
    int fd = wire_greet();

    peer_start(&peer, 0);
    before = peer_gpu_free(&peer);
    peer_alloc(&peer, &memory, 512 * MIB);
    wire_forward_make(&f, (struct wire_shape){1, 2, 2, 64, 64, 64}, 0);
    peer_use_all(&f, ALL, &memory);
    refused_with_offset(fd, &f, FAD_K, UINT64_MAX - 7, "k.cuda_ipc.offset");
    refused_with_offset(fd, &f, FAD_K, UINT64_MAX - 3, "k.cuda_ipc.offset");
    refused_with_offset(fd, &f, FAD_Q, memory.whole, "q.cuda_ipc.offset");
    refused_with_offset(fd, &f, FAD_V,
                        memory.offset + memory.whole - wire_forward_span(&f, FAD_V) + 4,
                        "v.cuda_ipc.offset");
    refused_with_offset(fd, &f, FAD_O,
                        memory.offset + memory.whole - wire_forward_span(&f, FAD_O) + 4,
                        "o.cuda_ipc.offset");
    refused_with_offset(fd, &f, FAD_LSE, (uint64_t)1 << 63, "lse.cuda_ipc.offset");
    f.ipc[FAD_K].offset = f.ipc[FAD_V].offset = memory.offset + memory.whole - MIB; /* behind o */
    f.message.kv_len = 1 << 21; /* 1 GiB: past the end */
    refused(fd, &f, FA_INVALID_ARGUMENT, "k.cuda_ipc.offset");
    f.message.kv_len = 64;
    peer_register(&memory, fd, true);
    wire_forward_use_regions(&f, ALL, &memory.region);
    f.lodged[FAD_K].offset = UINT64_MAX - 7;
    refused(fd, &f, FA_INVALID_ARGUMENT, "k.region.offset");
    f.lodged[FAD_K].offset = memory.whole - wire_forward_span(&f, FAD_K) + 4;
    refused(fd, &f, FA_INVALID_ARGUMENT, "k.region.offset");
    wire_release_region(fd, memory.region.id);
    peer_free(&memory);
    peer_expect_freed(&peer, before); /* no mapping is left */
    ck_assert_uint_eq(peer_mapped(fd), 0);
    wire_forward_free(&f);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* --- Rows 4 and 7 ---------------------------------------------------------------------------- */

static void register_refused(int fd, const struct peer_memory *memory, enum fa_status status,
                             const char *field)
{
    struct wire_bytes bytes = {0};

    peer_append_register(&bytes, 5, memory, false);
    wire_send_bytes(fd, &bytes);
    wire_expect(fd, 5, status, field);
    wire_serves(fd);
}

/* Inline and in shared memory the same connection is served as before. */
static void still_serves(int fd)
{
    struct wire_forward f;

    wire_forward_make(&f, WIRE_SMALL, ALL);
    wire_forward_run(fd, &f, 6);
    wire_forward_free(&f);
    wire_serves(fd);
}

START_TEST(rows_4_and_7_handles_that_the_driver_refuses)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint64_t seed = 4711;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, WIRE_SMALL);
    memset(memory.handle, 0, sizeof memory.handle);
    refused(fd, &f, FA_IPC_REFUSED, "q.cuda_ipc");
    register_refused(fd, &memory, FA_IPC_REFUSED, "cuda_ipc");
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof memory.handle; i++)
            memory.handle[i] = (uint8_t)wire_random(&seed);
        refused(fd, &f, FA_IPC_REFUSED, "q.cuda_ipc");
        register_refused(fd, &memory, FA_IPC_REFUSED, "cuda_ipc");
    }
    f.ipc[FAD_Q].handle.len = 63;
    refused(fd, &f, FA_INVALID_ARGUMENT, "q.cuda_ipc.handle");
    memory.uuid[3] ^= 1; /* another GPU's */
    f.ipc[FAD_Q].handle.len = 64;
    refused(fd, &f, FA_NOT_FOUND, "q.cuda_ipc.device_uuid");
    register_refused(fd, &memory, FA_NOT_FOUND, "cuda_ipc.device_uuid");
    still_serves(fd);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Freed before the daemon has ever seen it. */
START_TEST(row_7_handle_of_freed_memory)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, WIRE_SMALL);
    peer_free(&memory);
    refused(fd, &f, FA_IPC_REFUSED, "q.cuda_ipc");
    register_refused(fd, &memory, FA_IPC_REFUSED, "cuda_ipc");
    still_serves(fd);
    wire_forward_free(&f);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Memory that has no handle: a client learns it from its own driver, and asks the daemon nothing.
 * */
START_TEST(row_4_pool_managed_and_mapped_memory_have_no_handle)
{
    static const char *const kinds[] = {"pool", "managed", "vmm"};
    struct peer peer;

    peer_start(&peer, 0);
    for (int i = 0; i < 3; i++) {
        const char *answer;

        peer_tell(&peer, "alloc 31 %zu %s", 2 * MIB, kinds[i]);
        answer = peer_ask(&peer, "handle 31");
        ck_assert_msg(strncmp(answer, "error", 5) == 0, "%s memory has a handle: %s", kinds[i],
                      answer);
        peer_tell(&peer, "free 31");
    }
    peer_stop(&peer);
}
END_TEST

/* A sound handle with one byte changed: whatever the driver makes of it, it is an answer. */
START_TEST(row_7_handles_with_a_byte_changed)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, WIRE_SMALL);
    for (size_t i = 0; i < sizeof memory.handle; i++) {
        struct wire_reply reply;

        memory.handle[i] ^= 0x41;
        ck_assert(wire_forward_send(fd, &f, 5));
        wire_receive(fd, &reply);
        ck_assert_msg(reply.message->status == FAD__STATUS__OK ||
                          reply.message->status == FAD__STATUS__IPC_REFUSED ||
                          reply.message->status == FAD__STATUS__INVALID_ARGUMENT,
                      "byte %zu: %s: %s", i, fa_status_name((enum fa_status)reply.message->status),
                      reply.message->text);
        wire_release(&reply);
        memory.handle[i] ^= 0x41;
    }
    wire_serves(fd);
    peer_push(&memory, 0);
    peer_run(fd, &f, 6, &memory);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* --- Rows 9, 13 and 16 ----------------------------------------------------------------------- */

START_TEST(row_9_more_heads_than_a_grid_is_high)
{
    static const struct wire_shape shapes[] = {
        {1, 65535, 65535, 1, 2, 4}, {65536, 1, 1, 1, 2, 4}, {2, 40000, 20000, 1, 2, 4}};
    static const char *const versions[] = {"v0", "v1", "v2", "v3", "v4"};
    struct peer peer;
    int fd = wire_greet();

    peer_start(&peer, 0);
    for (size_t i = 0; i < 3; i++) {
        struct peer_memory memory;
        struct wire_forward f;

        peer_forward_make(&f, &peer, &memory, shapes[i]);
        for (size_t v = 0; v < 5; v++) {
            wire_forward_set_version(&f, versions[v]);
            memset(wire_forward_bytes(&f, FAD_O), 0xff, wire_forward_span(&f, FAD_O));
            peer_push(&memory, 0);
            peer_run(fd, &f, 10, &memory);
        }
        wire_forward_free(&f);
        peer_free(&memory);
    }
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Whatever lies beside a tensor is NaN (peer_alloc), and so are keys that no row sees. */
START_TEST(row_13_nan_past_the_keys_and_at_masked_keys)
{
    static const struct wire_shape shape = {1, 2, 1, 33, 50, 64};
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, shape);
    peer_run(fd, &f, 10, &memory); /* rows 64 bytes apart from the next tensor, tails of tiles */
    f.message.has_mask = true;
    f.message.mask = FAD__MASK__CAUSAL_TOP_LEFT; /* keys 33 to 49 are seen by no row */
    for (int t = FAD_K; t <= FAD_V; t++)
        memset(wire_forward_bytes(&f, (enum fad_tensor)t) + 33 * 64 * 4, 0xff, 17 * 64 * 4);
    peer_push(&memory, 0);
    ck_assert(wire_forward_send(fd, &f, 11));
    wire_expect(fd, 11, FA_OK, "");
    peer_pull(&memory);
    for (size_t i = 0; i < 2 * 33 * 64; i++) {
        const float *o = (const float *)(const void *)wire_forward_bytes(&f, FAD_O);
        ck_assert_msg(o[i] == o[i], "element %zu is NaN", i);
    }
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

START_TEST(row_16_any_head_dim_at_offsets_of_4)
{
    static const uint32_t dims[] = {1, 5, 63, 64, 65, 255, 256};
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_alloc(&peer, &memory, MIB);
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        uint64_t offset = 4;

        wire_forward_make(&f, (struct wire_shape){1, 2, 1, 7, 33, dims[i]}, 0);
        for (int t = 0; t < FAD_TENSORS; t++) {
            peer_use(&f, (enum fad_tensor)t, &memory, offset);
            offset += (wire_forward_span(&f, (enum fad_tensor)t) + 63) / 64 * 64;
        }
        peer_push(&memory, 0);
        peer_run(fd, &f, 10, &memory);
        f.ipc[FAD_K].offset += 2;
        refused(fd, &f, FA_INVALID_ARGUMENT, "k.cuda_ipc.offset");
        f.message.head_dim = 257;
        refused(fd, &f, FA_INVALID_ARGUMENT, "head_dim");
        wire_forward_free(&f);
    }
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        row_1_one_allocation_is_mapped_once,
        row_1_small_allocations_side_by_side,
        row_2_offsets_past_the_real_end,
        rows_4_and_7_handles_that_the_driver_refuses,
        row_4_pool_managed_and_mapped_memory_have_no_handle,
        row_7_handle_of_freed_memory,
        row_9_more_heads_than_a_grid_is_high,
        row_13_nan_past_the_keys_and_at_masked_keys,
        row_16_any_head_dim_at_offsets_of_4,
        row_7_handles_with_a_byte_changed, /* last: what a driver does with them is its own */
    };
    return wire_suite("ipc", tests, sizeof tests / sizeof tests[0]);
}
