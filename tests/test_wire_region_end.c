/* test_wire_region_end.c: how regions end: released or left behind with requests in flight on them,
 * by clients that live, hang up or are killed, at any byte. */
#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)
#define ALL     (INPUTS | OUTPUTS)

enum { IN_FLIGHT = 8 };

/* Milliseconds of work: all of eight are in flight when they are sent at once. */
#define SLOW ((struct wire_shape){1, 4, 4, 128, 256, 64})

/* Eight requests with the same inputs, each with outputs of its own. */
struct burst {
    struct wire_forward f;
    struct wire_region region;
    uint64_t output_offset[FAD_TENSORS], output_size;
};

static void burst_make(struct burst *burst, int fd, bool registered)
{
    uint64_t size = 0, inputs = 0;

    wire_forward_make(&burst->f, SLOW, 0);
    for (int t = 0; t < FAD_TENSORS; t++) {
        if (t == FAD_O)
            inputs = size;
        burst->output_offset[t] = size;
        size += (wire_forward_span(&burst->f, (enum fad_tensor)t) + 63) / 64 * 64;
    }
    burst->output_size = size - inputs;
    size = inputs + IN_FLIGHT * burst->output_size;
    if (registered)
        wire_region_register(&burst->region, fd, size, true);
    else
        wire_region_alloc(&burst->region, fd, size);
    wire_forward_use_regions(&burst->f, ALL, &burst->region);
    if (!registered)
        wire_region_push(&burst->region, fd);
}

static void burst_append(struct burst *burst, struct wire_bytes *bytes)
{
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        for (int t = FAD_O; t < FAD_TENSORS; t++)
            burst->f.lodged[t].offset = burst->output_offset[t] + i * burst->output_size;
        wire_forward_append(&burst->f, 10 + i, bytes);
    }
}

static void burst_free(struct burst *burst)
{
    wire_forward_free(&burst->f);
    wire_region_free(&burst->region);
}

/* All eight are answered once each, then comes the release's reply (id 5). Checks one against
 * double precision and the others against it, where their bytes can be seen. */
static void burst_expect(struct burst *burst, int fd)
{
    const uint8_t *first = burst->region.memory + burst->output_offset[FAD_O];
    unsigned answered = 0;

    for (int i = 0; i < IN_FLIGHT; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 10 && reply.frame.id < 10 + IN_FLIGHT);
        ck_assert(!(answered & 1u << (reply.frame.id - 10)));
        answered |= 1u << (reply.frame.id - 10);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        if (burst->region.memfd >= 0 && reply.frame.id == 10) {
            for (int t = FAD_O; t < FAD_TENSORS; t++)
                burst->f.lodged[t].offset = burst->output_offset[t];
            wire_forward_check(&burst->f, &reply);
        }
        wire_release(&reply);
    }
    wire_expect(fd, 5, FA_OK, "");
    for (size_t i = 1; burst->region.memfd >= 0 && i < IN_FLIGHT; i++) {
        const uint8_t *other = first + i * burst->output_size;
        ck_assert(memcmp(first, other, wire_forward_span(&burst->f, FAD_O)) == 0);
    }
}

/* --- Released -------------------------------------------------------------------------------- */

START_TEST(release_with_eight_in_flight)
{
    for (int round = 0; round < 4; round++) {
        struct burst burst;
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        burst_make(&burst, fd, round % 2);
        burst_append(&burst, &bytes);
        wire_append_release(&bytes, 5, burst.region.id);
        if (round < 2)
            wire_send_bytes(fd, &bytes); /* glued behind them in one send */
        else
            wire_send_pieces(fd, bytes.data, bytes.size, 64, 3);
        wire_free(&bytes);
        burst_expect(&burst, fd);
        ck_assert_int_eq(wire_daemon_mappings(), 0);
        wire_serves(fd);
        burst_free(&burst);
        close(fd);
    }
}
END_TEST

/* The reply waits for the memory's last user, however long that is; the name does not. */
START_TEST(release_waits_for_a_long_request_and_frees_the_name_at_once)
{
    struct wire_region region;
    struct wire_forward slow, f;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_region_register(&region, fd, 1 << 14, false);
    wire_forward_make_long(&slow);
    slow.message.has_priority = true;
    slow.message.priority = FAD__PRIORITY__LOW;
    wire_forward_use_regions(&slow, INPUTS, &region);
    ck_assert(wire_forward_send(fd, &slow, 7));
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, INPUTS, &region); /* what the other reads means nothing */
    wire_forward_run(fd, &f, 8);
    wire_append_release(&bytes, 5, region.id);
    wire_send_bytes(fd, &bytes);
    wire_refused(fd, &f, FA_NOT_FOUND, "q.region.region");
    wire_append_release(&bytes, 9, region.id);
    wire_send_bytes(fd, &bytes);
    wire_expect(fd, 9, FA_NOT_FOUND, "region");
    ck_assert_int_eq(wire_daemon_mappings(), 1);
    ck_assert(!wire_has_news(fd));
    ck_assert(wire_cancel(fd, 7));
    wire_expect(fd, 7, FA_CANCELLED, "");
    wire_expect(fd, 5, FA_OK, "");
    ck_assert_int_eq(wire_daemon_mappings(), 0);
    wire_forward_free(&slow);
    wire_forward_free(&f);
    wire_region_free(&region);
    close(fd);
}
END_TEST

/* Also where the request has other memory that takes longer to give back. */
START_TEST(release_is_answered_after_the_requests_that_used_the_region)
{
    for (int round = 0; round < 50; round++) {
        struct wire_region region;
        struct wire_forward f;
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        wire_region_alloc(&region, fd, 1 << 14);
        wire_forward_make(&f, WIRE_SMALL, OUTPUTS);
        wire_forward_grow(&f, 1 << 20);
        wire_forward_use_regions(&f, INPUTS, &region);
        wire_region_push(&region, fd);
        wire_forward_append(&f, 10, &bytes);
        wire_append_release(&bytes, 5, region.id);
        wire_send_bytes_fds(fd, &bytes, &f.memfd, 1);
        wire_expect(fd, 10, FA_OK, "");
        wire_expect(fd, 5, FA_OK, "");
        wire_forward_free(&f);
        wire_region_free(&region);
        close(fd);
    }
}
END_TEST

START_TEST(release_while_its_bytes_are_copied)
{
    struct wire_region region;
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    int fd = wire_greet();

    for (int round = 0; round < 8; round++) {
        wire_region_alloc(&region, fd, 1 << 20); /* large enough not to be copied on the spot */
        memset(region.memory, round + 1, region.size);
        wire_region_push(&region, fd);
        wire_append_read(&bytes, 10, region.id, 0, region.size);
        wire_append_release(&bytes, 5, region.id);
        wire_send_bytes(fd, &bytes);
        wire_receive(fd, &reply);
        ck_assert_uint_eq(reply.frame.id, 10);
        ck_assert_uint_eq(reply.frame.payload_length, region.size);
        ck_assert(memcmp(reply.payload, region.memory, region.size) == 0);
        wire_release(&reply);
        wire_expect(fd, 5, FA_OK, "");
        wire_region_free(&region);
    }
    close(fd);
}
END_TEST

/* --- Left behind ----------------------------------------------------------------------------- */

/* Sends a ping and awaits its reply, whatever comes before it. */
static void await_pong(int fd)
{
    struct wire_frame ping = wire_ping_frame(99);
    struct wire_reply reply;
    bool pong;

    wire_send_frame(fd, &ping);
    do {
        wire_receive(fd, &reply);
        pong = reply.frame.id == 99;
        wire_release(&reply);
    } while (!pong);
}

START_TEST(hang_up_with_eight_in_flight)
{
    int other = wire_greet();

    for (int round = 0; round < 8; round++) {
        struct burst burst;
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        burst_make(&burst, fd, round & 1);
        burst_append(&burst, &bytes);
        if (round & 2)
            wire_append_release(&bytes, 5, burst.region.id);
        wire_send_bytes(fd, &bytes);
        if (round & 4)
            await_pong(fd); /* by now all are admitted */
        close(fd);
        burst_free(&burst);
    }
    wire_serves(other);
    close(other);
    wire_expect_rest();
}
END_TEST

/* A client process with eight requests in flight on a region; it waits to be killed. */
static void be_a_client(int ready, bool registered)
{
    struct burst burst;
    struct wire_bytes bytes = {0};
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody */
    fd = wire_greet();
    burst_make(&burst, fd, registered);
    burst_append(&burst, &bytes);
    if (!wire_try_send(fd, bytes.data, bytes.size) || write(ready, "r", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

START_TEST(client_killed_with_eight_in_flight)
{
    int other = wire_greet();

    for (int round = 0; round < 8; round++) {
        int ready[2];
        char byte;
        pid_t pid;

        ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            be_a_client(ready[1], round % 2);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert(WIFSIGNALED(test_wait(pid, WIRE_SECONDS)));
        close(ready[0]);
        close(ready[1]);
        wire_serves(other);
    }
    close(other);
    wire_expect_rest();
}
END_TEST

START_TEST(hang_up_inside_a_write)
{
    static const uint8_t data[1 << 20];
    static const size_t cuts[] = {0, 1, 40, 70000, sizeof data - 1};
    int other;

    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct wire_region region;
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        wire_region_register(&region, fd, sizeof data, true);
        memset(region.memory, 9, region.size);
        wire_append_write(&bytes, 5, region.id, 0, data, sizeof data);
        wire_send(fd, bytes.data, bytes.size - sizeof data + cuts[i]);
        close(fd);
        wire_expect_rest();
        for (size_t at = 0; at < 2; at++) /* nothing of it was written */
            ck_assert_uint_eq(region.memory[at * (region.size - 1)], 9);
        wire_free(&bytes);
        wire_region_free(&region);
    }
    other = wire_greet();
    wire_serves(other);
    close(other);
}
END_TEST

START_TEST(hang_up_with_read_bytes_unread)
{
    int other = wire_greet();

    for (int round = 0; round < 6; round++) {
        struct wire_region region;
        struct wire_bytes bytes = {0};
        struct wire_reply reply;
        int fd = wire_greet();

        wire_region_alloc(&region, fd, 4 << 20);
        for (uint64_t id = 10; id < 14; id++)
            wire_append_read(&bytes, id, region.id, 0, region.size);
        wire_send_bytes(fd, &bytes);
        if (round & 1)
            wire_receive(fd, &reply);
        if (round & 2)
            ck_assert_int_eq(shutdown(fd, SHUT_RDWR), 0);
        close(fd);
        if (round & 1)
            wire_release(&reply);
        wire_region_free(&region);
    }
    wire_serves(other);
    wire_expect_idle(other);
    close(other);
}
END_TEST

/* With the region still being made. */
START_TEST(hang_up_at_every_byte_of_region_frames)
{
    struct wire_bytes alloc = {0}, registers = {0};
    int other = wire_greet(), memfd = wire_memfd(4096, F_SEAL_SHRINK);

    wire_append_alloc(&alloc, 5, 1 << 20);
    wire_append_register(&registers, 6, true);
    for (size_t size = 1; size <= alloc.size; size++) {
        int fd = wire_greet();
        wire_send(fd, alloc.data, size);
        close(fd);
    }
    for (size_t size = 1; size <= registers.size; size++) {
        int fd = wire_greet();
        ck_assert(wire_try_send_fds(fd, registers.data, size, 1, &memfd, 1));
        close(fd);
    }
    wire_serves(other);
    close(other);
    close(memfd);
    wire_free(&alloc);
    wire_free(&registers);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        release_with_eight_in_flight,
        release_waits_for_a_long_request_and_frees_the_name_at_once,
        release_is_answered_after_the_requests_that_used_the_region,
        release_while_its_bytes_are_copied,
        hang_up_with_eight_in_flight,
        client_killed_with_eight_in_flight,
        hang_up_inside_a_write,
        hang_up_with_read_bytes_unread,
        hang_up_at_every_byte_of_region_frames,
    };
    return wire_suite("wire_region_end", tests, sizeof tests / sizeof tests[0]);
}
