/* test_ipc_shared.c: many clients with GPU memory at once, of several users, and the same bits by
 * whatever way the tensors come. The numbers are rows of ../shared/CASES.md. */
#include "tests/gpu/daemon/peer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)
#define ALL     (INPUTS | OUTPUTS)

/* --- Row 20 ---------------------------------------------------------------------------------- */

static const char *const versions[] = {"auto", "v0", "v1", "v2", "v3", "v4"};
enum { VERSIONS = 6 };

/* The bytes of o, then of lse. */
struct result {
    uint8_t *bytes;
    size_t size, o_size;
};

static void expect_same(const struct result *result, const struct wire_forward *f,
                        const struct wire_reply *reply, const char *way)
{
    uint64_t lse_at;

    if (f->tensors[FAD_O].inline_bytes) {
        fa_output_layout(result->o_size, result->size - result->o_size, &lse_at);
        ck_assert_msg(memcmp(reply->payload, result->bytes, result->o_size) == 0 &&
                          memcmp(reply->payload + lse_at, result->bytes + result->o_size,
                                 result->size - result->o_size) == 0,
                      "other bits: %s", way);
        return;
    }
    ck_assert_msg(memcmp(wire_forward_bytes(f, FAD_O), result->bytes, result->o_size) == 0 &&
                      memcmp(wire_forward_bytes(f, FAD_LSE), result->bytes + result->o_size,
                             result->size - result->o_size) == 0,
                  "other bits: %s", way);
}

/* Runs the request as it is, once checked, and keeps what it gave inline. */
static struct result run_inline(int fd, const struct wire_forward *f)
{
    struct result result;
    struct wire_reply reply;
    uint64_t lse_at;

    ck_assert(wire_forward_send(fd, f, 5));
    wire_receive(fd, &reply);
    wire_forward_check(f, &reply);
    result.o_size = wire_forward_span(f, FAD_O);
    result.size = result.o_size + wire_forward_span(f, FAD_LSE);
    result.bytes = malloc(result.size);
    ck_assert_ptr_nonnull(result.bytes);
    fa_output_layout(result.o_size, result.size - result.o_size, &lse_at);
    memcpy(result.bytes, reply.payload, result.o_size);
    memcpy(result.bytes + result.o_size, reply.payload + lse_at, result.size - result.o_size);
    wire_release(&reply);
    return result;
}

/* Sends it again; the outputs are where the pull function finds them. */
static void run_same(int fd, const struct wire_forward *f, const struct result *result,
                     const struct peer_memory *memory, const struct wire_region *region,
                     const char *way)
{
    struct wire_reply reply;

    ck_assert(wire_forward_send(fd, f, 6));
    wire_receive(fd, &reply);
    ck_assert_msg(reply.message->status == FAD__STATUS__OK, "%s: %s", way, reply.message->text);
    if (memory)
        peer_pull(memory);
    if (region)
        wire_region_pull(region, fd);
    expect_same(result, f, &reply, way);
    wire_release(&reply);
}

static const struct wire_shape shape = {2, 4, 2, 130, 150, 64};

START_TEST(row_20_same_bits_by_every_way)
{
    struct wire_forward f;
    struct result result;
    struct peer peer;
    struct peer_memory memory;
    struct wire_region region;
    int fd = wire_greet();

    peer_start(&peer, 0);
    wire_forward_make(&f, shape, 0);
    wire_forward_set_version(&f, versions[_i]);
    result = run_inline(fd, &f);
    for (int run = 0; run < 30; run++)
        run_same(fd, &f, &result, NULL, NULL, "again");
    wire_forward_free(&f);

    wire_forward_make(&f, shape, ALL);
    wire_forward_set_version(&f, versions[_i]);
    run_same(fd, &f, &result, NULL, NULL, "memfd");
    wire_forward_free(&f);

    wire_forward_make(&f, shape, 0);
    wire_forward_set_version(&f, versions[_i]);
    wire_region_register(&region, fd, peer_bytes(&f, ALL), true);
    wire_forward_use_regions(&f, ALL, &region);
    run_same(fd, &f, &result, NULL, NULL, "registered memfd");
    wire_region_release(&region, fd);
    wire_forward_free(&f);

    wire_forward_make(&f, shape, 0);
    wire_forward_set_version(&f, versions[_i]);
    wire_region_alloc(&region, fd, peer_bytes(&f, ALL));
    wire_forward_use_regions(&f, ALL, &region);
    wire_region_push(&region, fd);
    run_same(fd, &f, &result, NULL, &region, "region");
    wire_region_release(&region, fd);
    wire_forward_free(&f);

    wire_forward_make(&f, shape, 0);
    wire_forward_set_version(&f, versions[_i]);
    peer_alloc(&peer, &memory, peer_bytes(&f, ALL));
    peer_use_all(&f, ALL, &memory);
    peer_push(&memory, 0);
    run_same(fd, &f, &result, &memory, NULL, "CUDA IPC");
    wire_forward_free(&f);

    wire_forward_make(&f, shape, 0);
    wire_forward_set_version(&f, versions[_i]);
    peer_register(&memory, fd, true);
    wire_forward_use_regions(&f, ALL, &memory.region);
    peer_push(&memory, 0);
    run_same(fd, &f, &result, &memory, NULL, "registered CUDA IPC");
    wire_release_region(fd, memory.region.id);
    wire_forward_free(&f);

    free(result.bytes);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

START_TEST(row_20_same_bits_alone_and_in_a_batch)
{
    struct wire_shape one = shape, many = shape;
    struct wire_forward alone, batch;
    struct result result;
    struct peer peer;
    struct peer_memory memory;
    int fd = wire_greet();

    one.batch = 1;
    many.batch = 32;
    peer_start(&peer, 0);
    wire_forward_make(&alone, one, 0);
    wire_forward_set_version(&alone, versions[_i]);
    result = run_inline(fd, &alone);
    wire_forward_make(&batch, many, 0);
    wire_forward_set_version(&batch, versions[_i]);
    for (int t = 0; t <= FAD_V; t++) {
        const uint64_t size = wire_forward_span(&alone, (enum fad_tensor)t);

        for (size_t at = 7; at < 32; at += 12) /* among others */
            memcpy(wire_forward_bytes(&batch, (enum fad_tensor)t) + at * size,
                   wire_forward_bytes(&alone, (enum fad_tensor)t), size);
    }
    peer_alloc(&peer, &memory, peer_bytes(&batch, ALL));
    peer_use_all(&batch, ALL, &memory);
    peer_push(&memory, 0);
    peer_run(fd, &batch, 7, &memory);
    for (size_t at = 7; at < 32; at += 12) {
        const size_t lse_size = result.size - result.o_size;

        ck_assert(memcmp(wire_forward_bytes(&batch, FAD_O) + at * result.o_size, result.bytes,
                         result.o_size) == 0);
        ck_assert(memcmp(wire_forward_bytes(&batch, FAD_LSE) + at * lse_size,
                         result.bytes + result.o_size, lse_size) == 0);
    }
    free(result.bytes);
    wire_forward_free(&alone);
    wire_forward_free(&batch);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* --- Several clients ------------------------------------------------------------------------- */

/* In a process of its own, of the uid: requests of random sizes in its GPU's memory, by handle and
 * as a region, each checked. Ends with 0 when all was well. */
static void be_honest(uid_t uid, uint64_t seed)
{
    struct peer peer;
    struct peer_memory memory;
    int fd;

    peer_start(&peer, uid); /* while its program may be executed */
    ck_assert(uid == 0 || setresuid(uid, uid, uid) == 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = wire_greet();
    peer_alloc(&peer, &memory, (size_t)4 << 20);
    peer_register(&memory, fd, true);
    for (uint64_t id = 10; id < 60; id++) {
        const struct wire_shape any = {1,
                                       4,
                                       2,
                                       1 + (uint32_t)(wire_random(&seed) % 100),
                                       1 + (uint32_t)(wire_random(&seed) % 200),
                                       wire_random(&seed) % 2 ? 64 : 40};
        struct wire_forward f;
        float *q;

        wire_forward_make(&f, any, 0);
        q = (float *)(void *)wire_forward_bytes(&f, FAD_Q);
        q[0] = (float)(seed % 1000) / 300; /* no two clients ask for the same */
        if (id % 2)
            peer_use_all(&f, ALL, &memory);
        else
            wire_forward_use_regions(&f, ALL, &memory.region);
        peer_push(&memory, 0);
        peer_run(fd, &f, id, &memory);
        wire_forward_free(&f);
    }
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
    _exit(EXIT_SUCCESS);
}

static void run_clients(const uid_t *uids, int count)
{
    pid_t pids[8];

    ck_assert_int_le(count, 8);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        if (pids[i] == 0)
            be_honest(uids[i], 1000 + (uint64_t)i);
    }
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(test_wait(pids[i], TEST_PROGRAM_SECONDS), 0);
}

START_TEST(several_clients_at_once)
{
    static const uid_t same[4];

    run_clients(same, 4);
}
END_TEST

START_TEST(clients_of_several_users_at_once)
{
    static const uid_t uids[] = {0, 54321, 54321, 54322};

    ck_assert_int_eq(chmod(wire_daemon()->directory, 0755), 0);
    ck_assert_int_eq(chmod(wire_daemon()->socket, 0666), 0);
    run_clients(uids, 4);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *tests[] = {several_clients_at_once, clients_of_several_users_at_once};
    size_t count = 2;
    TCase *bits = tcase_create("bits");
    Suite *suite;

    if (getuid() != 0) {
        test_skip("clients_of_several_users_at_once", "needs root, to become other users");
        count--;
    }
    suite = wire_suite("ipc_shared", tests, count);
    tcase_set_timeout(bits, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(bits, wire_setup, wire_teardown);
    tcase_add_loop_test(bits, row_20_same_bits_by_every_way, 0, VERSIONS);
    tcase_add_loop_test(bits, row_20_same_bits_alone_and_in_a_batch, 0, VERSIONS);
    suite_add_tcase(suite, bits);
    return suite;
}
