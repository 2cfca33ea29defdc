/* test_ipc_end.c: how clients' GPU memory ends: released, freed, or left behind by those who are
 * killed. Afterwards the daemon holds nothing (the fixture looks) and the GPU's memory is as it
 * was. The numbers are rows of ../shared/CASES.md. */
#include "tests/gpu/daemon/peer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL 0x1fu
#define MIB ((size_t)1 << 20)

enum { IN_FLIGHT = 8 };

/* Milliseconds of work each, so that all are in flight when they are sent at once. */
static const struct wire_shape slow = {1, 16, 16, 1024, 2048, 64};

/* Of each of its tensors; all of it is more than drivers keep (peer_expect_freed). */
static const size_t place = 8 * MIB;

/* Eight requests on one allocation, each with outputs of its own. */
struct burst {
    struct peer_memory memory;
    struct wire_forward f[IN_FLIGHT];
};

static void burst_make(struct burst *burst, struct peer *peer, int fd, bool registered)
{
    peer_alloc(peer, &burst->memory, (3 + 2 * IN_FLIGHT) * place);
    if (registered)
        peer_register(&burst->memory, fd, true);
    for (size_t i = 0; i < IN_FLIGHT; i++) {
        uint64_t offset = 0;

        wire_forward_make(&burst->f[i], slow, 0);
        for (int t = 0; t < FAD_TENSORS; t++) {
            const uint64_t at = offset + (t > FAD_V ? i * place : 0);

            if (registered)
                wire_forward_use_region(&burst->f[i], (enum fad_tensor)t, &burst->memory.region,
                                        at);
            else
                peer_use(&burst->f[i], (enum fad_tensor)t, &burst->memory, at);
            offset += place * (t == FAD_O ? IN_FLIGHT : 1);
        }
        peer_drop_payload(&burst->f[i]);
    }
    peer_push(&burst->memory, 0);
}

static void burst_append(const struct burst *burst, struct wire_bytes *bytes)
{
    for (uint64_t i = 0; i < IN_FLIGHT; i++)
        wire_forward_append(&burst->f[i], 10 + i, bytes);
}

/* All are answered well, in any order. */
static void burst_expect(int fd)
{
    unsigned seen = 0;

    for (int i = 0; i < IN_FLIGHT; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 10 && reply.frame.id < 10 + IN_FLIGHT);
        ck_assert(!(seen & 1u << (reply.frame.id - 10)));
        seen |= 1u << (reply.frame.id - 10);
        ck_assert_msg(reply.message->status == FAD__STATUS__OK, "%s: %s",
                      fa_status_name((enum fa_status)reply.message->status), reply.message->text);
        wire_release(&reply);
    }
}

/* All have given the same. */
static void burst_check(const struct burst *burst)
{
    const struct wire_forward *first = &burst->f[0];

    peer_pull(&burst->memory);
    for (size_t i = 1; i < IN_FLIGHT; i++)
        for (int t = FAD_O; t < FAD_TENSORS; t++)
            ck_assert(memcmp(wire_forward_bytes(first, (enum fad_tensor)t),
                             wire_forward_bytes(&burst->f[i], (enum fad_tensor)t),
                             wire_forward_span(first, (enum fad_tensor)t)) == 0);
}

static void burst_free(struct burst *burst)
{
    for (size_t i = 0; i < IN_FLIGHT; i++)
        wire_forward_free(&burst->f[i]);
    free(burst->memory.region.memory);
}

/* --- Row 3 ----------------------------------------------------------------------------------- */

START_TEST(row_3_release_with_eight_in_flight)
{
    struct peer peer;
    struct burst burst;
    struct wire_bytes bytes = {0};
    uint64_t before;
    int fd = wire_greet();

    peer_start(&peer, 0);
    before = peer_gpu_free(&peer);
    burst_make(&burst, &peer, fd, true);
    burst_append(&burst, &bytes);
    wire_append_release(&bytes, 5, burst.memory.region.id);
    wire_send_bytes(fd, &bytes);
    burst_expect(fd);
    wire_expect(fd, 5, FA_OK, "");
    ck_assert_uint_eq(peer_mapped(fd), 0);
    burst_check(&burst);
    peer_tell(&peer, "free %u", burst.memory.slot);
    peer_expect_freed(&peer, before);
    burst_free(&burst);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Its memory stays until the requests are done with it, and goes then. */
START_TEST(row_3_owner_of_the_memory_killed_with_eight_in_flight)
{
    struct peer peer, witness;
    struct wire_bytes bytes = {0};
    struct burst burst;
    uint64_t before;
    int fd = wire_greet();

    peer_start(&witness, 0);
    before = peer_gpu_free(&witness);
    peer_start(&peer, 0);
    burst_make(&burst, &peer, fd, _i);
    burst_append(&burst, &bytes);
    wire_send_bytes(fd, &bytes);
    peer_kill(&peer);
    burst_expect(fd);
    wire_serves(fd);
    if (_i)
        wire_release_region(fd, burst.memory.region.id);
    peer_expect_freed(&witness, before);
    burst_free(&burst);
    peer_stop(&witness);
    close(fd);
}
END_TEST

/* In a process of its own: sends its requests, says so, and waits to be killed. */
static void be_a_client(int ready, bool registered)
{
    struct wire_bytes bytes = {0};
    struct peer peer;
    struct burst burst;
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = wire_greet();
    peer_start(&peer, 0);
    burst_make(&burst, &peer, fd, registered);
    burst_append(&burst, &bytes);
    wire_send_bytes(fd, &bytes);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* With its exporter, which dies with it. */
START_TEST(row_3_client_killed_with_eight_in_flight)
{
    struct peer witness;
    uint64_t before;
    int other = wire_greet();

    peer_start(&witness, 0);
    before = peer_gpu_free(&witness);
    for (int round = 0; round < 4; round++) {
        int ready[2];
        char byte;
        pid_t pid;

        ck_assert_int_eq(pipe(ready), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_a_client(ready[1], round % 2);
        close(ready[1]);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert(WIFSIGNALED(test_wait(pid, WIRE_SECONDS)));
        close(ready[0]);
        wire_serves(other);
    }
    wire_expect_idle(other);
    peer_expect_freed(&witness, before);
    peer_stop(&witness);
    close(other);
}
END_TEST

/* --- Row 8 ----------------------------------------------------------------------------------- */

/* All of v, and so all of o, is one value. */
static void set_value(struct wire_forward *f, float value)
{
    float *v = (float *)(void *)wire_forward_bytes(f, FAD_V);
    const uint64_t count = wire_forward_span(f, FAD_V) / sizeof(float);

    for (uint64_t i = 0; i < count; i++)
        v[i] = value;
    memset(wire_forward_bytes(f, FAD_O), 0xff, wire_forward_span(f, FAD_O));
}

/* Freed and allocated again, mostly at the same address: what is read and written is the new
 * memory; nor do mappings of the old add up. */
START_TEST(row_8_new_memory_at_an_old_address_is_never_stale)
{
    const size_t size = 32 * MIB;
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    uint64_t before, least = UINT64_MAX;
    int fd = wire_greet();

    peer_start(&peer, 0);
    before = peer_gpu_free(&peer);
    peer_alloc(&peer, &memory, size);
    memory.region.size = MIB; /* what is pushed and pulled */
    wire_forward_make(&f, WIRE_SMALL, 0);
    for (uint64_t id = 10; id < 1010; id++) {
        uint64_t now;

        peer_renew(&memory);
        memset(f.regions, 0, sizeof f.regions); /* the inputs are the payload's each time */
        for (int t = 0; t < FAD_TENSORS; t++)
            f.tensors[t].cuda_ipc = NULL;
        peer_use_all(&f, ALL, &memory);
        set_value(&f, (float)(id % 97) - 48);
        peer_push(&memory, 0);
        peer_run(fd, &f, id, &memory);
        if (id % 50 == 0 && (now = peer_gpu_free(&peer)) < least)
            least = now;
    }
    /* A thousand mappings would be 31 GiB. */
    ck_assert_msg(before - least < 20 * (uint64_t)1024 * MIB, "%ju MiB are mapped",
                  (uintmax_t)((before - least) / MIB));
    peer_free(&memory);
    peer_expect_freed(&peer, before);
    wire_forward_free(&f);
    peer_stop(&peer);
    close(fd);
}
END_TEST

/* Freed while the daemon knows the mapping; a request with the old handle is answered, and sees
 * what it names, or nothing; never what lies there now. */
START_TEST(row_8_old_handle_never_names_new_memory)
{
    struct peer peer;
    struct peer_memory memory;
    struct wire_forward f;
    int fd = wire_greet();

    peer_start(&peer, 0);
    peer_forward_make(&f, &peer, &memory, WIRE_SMALL);
    set_value(&f, 1);
    peer_push(&memory, 0);
    peer_run(fd, &f, 10, &memory);
    for (uint64_t id = 11; id < 31; id++) {
        struct wire_reply reply;

        peer_tell(&peer, "free %u", memory.slot);
        peer_tell(&peer, "alloc %u %zu malloc", memory.slot, memory.allocated);
        memset(memory.region.memory, 0xff, memory.region.size);
        peer_push(&memory, 0); /* NaN */
        ck_assert(wire_forward_send(fd, &f, id));
        wire_receive(fd, &reply);
        ck_assert(reply.message->status == FAD__STATUS__OK ||
                  reply.message->status == FAD__STATUS__IPC_REFUSED);
        wire_release(&reply);
        peer_pull(&memory);
        for (size_t i = 0; i < memory.region.size; i++)
            ck_assert_msg(memory.region.memory[i] == 0xff, "byte %zu was written", i);
    }
    wire_serves(fd);
    wire_forward_free(&f);
    peer_free(&memory);
    peer_stop(&peer);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite;
    TCase *more = tcase_create("owner killed");
    const TTest *const tests[] = {
        row_3_release_with_eight_in_flight,
        row_3_client_killed_with_eight_in_flight,
        row_8_new_memory_at_an_old_address_is_never_stale,
        row_8_old_handle_never_names_new_memory,
    };

    suite = wire_suite("ipc_end", tests, sizeof tests / sizeof tests[0]);
    tcase_set_timeout(more, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(more, wire_setup, wire_teardown);
    tcase_add_loop_test(more, row_3_owner_of_the_memory_killed_with_eight_in_flight, 0, 2);
    suite_add_tcase(suite, more);
    return suite;
}
