/* test_wire_register.c: shared memory registered as a region: what may be, that it stays whole, and
 * that what a client puts there is always what is seen. */
#include "tests/helpers/wire_region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)

static void fill(uint8_t *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)wire_random(&seed);
}

/* --- What may be registered ------------------------------------------------------------------ */

/* Sends a RegisterRegion with the descriptor, which is closed; it must be refused, and leave no
 * mapping. */
static void register_refused(int memfd, bool writable, const char *words)
{
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    ck_assert_int_ge(memfd, 0);
    wire_append_register(&bytes, 5, writable);
    wire_send_bytes_fds(fd, &bytes, &memfd, 1);
    wire_expect_text(fd, 5, FA_INVALID_ARGUMENT, "header.nfds", words);
    ck_assert_int_eq(wire_daemon_mappings(), 0);
    wire_serves(fd);
    close(memfd);
    close(fd);
}

static int reopened(int memfd, int flags)
{
    char path[64];
    int again;

    snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
    again = open(path, flags | O_CLOEXEC);
    ck_assert_msg(again >= 0, "open: %s", strerror(errno));
    close(memfd);
    return again;
}

START_TEST(memory_that_could_fault_is_not_registered)
{
    int ends[2];

    register_refused(wire_memfd(4096, 0), false, "F_SEAL_SHRINK");
    register_refused(wire_memfd(4096, F_SEAL_GROW), true, "F_SEAL_SHRINK");
    register_refused(wire_memfd(0, F_SEAL_SHRINK), false, "no bytes");
    register_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), true, "");
    register_refused(open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC), false, "");
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[1]);
    register_refused(ends[0], false, "no memfd");
    register_refused(reopened(wire_memfd(4096, F_SEAL_SHRINK), O_WRONLY), false,
                     "not open for reading");
    register_refused(reopened(wire_memfd(4096, F_SEAL_SHRINK), O_PATH), false, "memfd");
}
END_TEST

START_TEST(memory_sealed_against_writing_is_registered_read_only)
{
    static const int seals[] = {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE};

    for (int i = 0; i < 2; i++) {
        int fd = wire_greet(), memfd = wire_memfd(5000, 0);
        uint8_t bytes[100], back[100];
        struct wire_bytes bytes_out = {0};
        uint64_t region;

        fill(bytes, sizeof bytes, 3);
        ck_assert_int_eq(pwrite(memfd, bytes, sizeof bytes, 4900), sizeof bytes);
        ck_assert_int_eq(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | seals[i]), 0);
        register_refused(fcntl(memfd, F_DUPFD_CLOEXEC, 0), true, "sealed against writing");
        region = wire_register(fd, memfd, false);
        wire_read(fd, region, 4900, back, sizeof back);
        ck_assert(memcmp(bytes, back, sizeof back) == 0);
        wire_append_write(&bytes_out, 5, region, 0, "data", 4);
        wire_bytes_refused(fd, &bytes_out, FA_INVALID_ARGUMENT, "region", "writable");
        wire_release_region(fd, region);
        close(memfd);
        close(fd);
    }
    register_refused(reopened(wire_memfd(4096, F_SEAL_SHRINK), O_RDONLY), true, "open for writing");
}
END_TEST

START_TEST(register_needs_one_descriptor_and_no_payload)
{
    Fad__RegisterRegion message = FAD__REGISTER_REGION__INIT;
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), memfd = wire_memfd(4096, F_SEAL_SHRINK);

    wire_append_register(&bytes, 5, false);
    bytes.data[6] = 0; /* the header's nfds */
    wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, "header.nfds", "descriptor");
    wire_append_message(&bytes, FA_FRAME_REGISTER_REGION, 5, &message.base, "data", 4);
    wire_send_bytes_fds(fd, &bytes, &memfd, 1);
    wire_expect(fd, 5, FA_INVALID_ARGUMENT, "header.payload_length");
    wire_serves(fd);
    wire_append_register(&bytes, 5, false); /* announced, and not sent */
    wire_send_bytes(fd, &bytes);
    wire_expect_last(fd, 5, FA_PROTOCOL_ERROR, "header.nfds");
    close(memfd);
}
END_TEST

/* What was checked stays so: the seal keeps the client itself from cutting the memory off, and the
 * daemon needs the client's descriptor no more. */
START_TEST(registered_memory_stays_whole)
{
    struct wire_region region;
    struct wire_bytes bytes = {0};
    uint8_t byte;
    int fd = wire_greet();

    wire_region_register(&region, fd, 1 << 20, false);
    ck_assert_int_eq(ftruncate(region.memfd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(region.memfd, 4 << 20), 0); /* growing changes nothing */
    wire_append_read(&bytes, 5, region.id, 1 << 20, 1);
    wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, "offset", "");
    close(region.memfd);
    region.memfd = wire_memfd(4096, 0); /* for wire_region_release */
    region.memory[(1 << 20) - 1] = 42;
    wire_read(fd, region.id, (1 << 20) - 1, &byte, 1);
    ck_assert_uint_eq(byte, 42);
    ck_assert_int_eq(wire_daemon_mappings(), 1);
    wire_region_release(&region, fd);
    ck_assert_int_eq(wire_daemon_mappings(), 0); /* gone with the reply */
    close(fd);
}
END_TEST

/* --- Its bytes ------------------------------------------------------------------------------- */

START_TEST(writes_and_reads_reach_registered_memory)
{
    static uint8_t bytes[70000], back[70000];
    struct wire_region region;
    int fd = wire_greet();

    fill(bytes, sizeof bytes, 5);
    wire_region_register(&region, fd, 100001, true);
    wire_write(fd, region.id, 30001, bytes, sizeof bytes);
    ck_assert(memcmp(region.memory + 30001, bytes, sizeof bytes) == 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        region.memory[i + 1] = (uint8_t)(bytes[i] + 1);
    wire_read(fd, region.id, 1, back, sizeof back);
    ck_assert(memcmp(region.memory + 1, back, sizeof back) == 0);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

/* A region that is not written is mapped privately: its pages must still be the client's. */
START_TEST(changed_contents_are_seen_by_the_next_request)
{
    struct wire_region in, out;
    struct wire_forward f;
    uint64_t seed = 11;
    int fd = wire_greet();

    wire_region_register(&in, fd, 1 << 14, false);
    wire_region_register(&out, fd, 1 << 14, true);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, INPUTS, &in);
    wire_forward_use_regions(&f, OUTPUTS, &out);
    for (uint64_t id = 10; id < 210; id++) {
        for (size_t i = 0; i < in.size; i += sizeof(float)) {
            float value = (float)(wire_random(&seed) % 2001) / 500.0f - 2.0f;
            memcpy(in.memory + i, &value, sizeof value);
        }
        if (id % 10 == 0) /* pages that go and come again */
            ck_assert_int_eq(fallocate(in.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                       (off_t)in.size / 2),
                             0);
        memset(out.memory, 0xff, out.size);
        wire_forward_run(fd, &f, id);
    }
    wire_forward_free(&f);
    wire_region_release(&in, fd);
    wire_region_release(&out, fd);
    close(fd);
}
END_TEST

/* Freed and made again, at the same address and of the same size, a thousand times. */
START_TEST(new_memory_each_time_is_never_stale)
{
    struct wire_forward f;
    int fd = wire_greet(), most = 0;

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 2, 3, 8}, 0);
    for (uint64_t id = 10; id < 1010; id++) {
        struct wire_region region;
        float value = (float)(id % 97) - 48;
        int mapped;

        for (int i = 0; i < 16; i++) /* q */
            memcpy(f.payload.data + 4 * i, &value, sizeof value);
        wire_region_register(&region, fd, 4096, true);
        wire_forward_use_regions(&f, INPUTS | OUTPUTS, &region);
        wire_forward_run(fd, &f, id);
        mapped = wire_daemon_mappings();
        most = mapped > most ? mapped : most;
        wire_region_release(&region, fd);
        memset(f.regions, 0, sizeof f.regions); /* the next copies from the payload */
    }
    ck_assert_int_eq(most, 1);
    ck_assert_int_eq(wire_daemon_mappings(), 0);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        memory_that_could_fault_is_not_registered,
        memory_sealed_against_writing_is_registered_read_only,
        register_needs_one_descriptor_and_no_payload,
        registered_memory_stays_whole,
        writes_and_reads_reach_registered_memory,
        changed_contents_are_seen_by_the_next_request,
        new_memory_each_time_is_never_stale,
    };
    return wire_suite("wire_register", tests, sizeof tests / sizeof tests[0]);
}
