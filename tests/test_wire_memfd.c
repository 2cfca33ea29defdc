/* test_wire_memfd.c: shared memory as clients may hand it over: sealed or not, the wrong kind of
 * file, changed afterwards; and every mix of shared and inline tensors. */
#include "tests/helpers/wire_forward.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define INPUTS     0x07u
#define ALL_SHARED 0x1fu

/* Sends a request with the descriptor (closed here) in place of its own. */
static void make_with(struct wire_forward *f, unsigned shared, int fd)
{
    wire_forward_make(f, WIRE_SMALL, shared);
    ck_assert_int_ge(fd, 0);
    close(f->memfd);
    f->memfd = fd;
}

static void expect_refused(unsigned shared, int fd, const char *words)
{
    struct wire_forward f;
    int connection = wire_greet();
    char field[16];

    /* The first tensor that lies in it is named. */
    snprintf(field, sizeof field, "%s.memfd", fad_tensor_name(__builtin_ctz(shared)));
    make_with(&f, shared, fd);
    ck_assert(wire_forward_send(connection, &f, 5));
    wire_expect_text(connection, 5, FA_INVALID_ARGUMENT, field, words);
    wire_serves(connection);
    wire_forward_free(&f);
    close(connection);
}

/* Puts the request's bytes into the memfd before it is sealed; sizes are those of the request. */
static int filled_memfd(unsigned shared, int seals)
{
    struct wire_forward f;
    int fd;

    wire_forward_make(&f, WIRE_SMALL, shared);
    fd = wire_memfd(f.memory_size, 0);
    ck_assert_int_eq(pwrite(fd, f.memory, f.memory_size, 0), (ssize_t)f.memory_size);
    ck_assert_msg(fcntl(fd, F_ADD_SEALS, seals) == 0, "seals: %s", strerror(errno));
    wire_forward_free(&f);
    return fd;
}

static void expect_served(unsigned shared, int fd)
{
    struct wire_forward f;
    int connection = wire_greet();

    make_with(&f, shared, fd);
    wire_forward_run(connection, &f, 5);
    wire_forward_free(&f);
    close(connection);
}

/* --- Seals ----------------------------------------------------------------------------------- */

START_TEST(memfd_without_seals_is_refused)
{
    expect_refused(ALL_SHARED, wire_memfd(1 << 16, 0), "F_SEAL_SHRINK");
    expect_refused(INPUTS, wire_memfd(1 << 16, F_SEAL_GROW | F_SEAL_SEAL), "F_SEAL_SHRINK");
}
END_TEST

START_TEST(memfd_sealed_against_shrinking_is_enough)
{
    struct wire_forward f;
    int connection = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, ALL_SHARED);
    ck_assert_int_eq(fcntl(f.memfd, F_GET_SEALS), F_SEAL_SHRINK);
    wire_forward_run(connection, &f, 5);
    wire_forward_free(&f);
    close(connection);
}
END_TEST

START_TEST(memfd_sealed_against_writing_takes_no_output)
{
    unsigned outputs[] = {1u << FAD_O, 1u << FAD_LSE, ALL_SHARED};

    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        expect_refused(outputs[i], filled_memfd(outputs[i], F_SEAL_SHRINK | F_SEAL_WRITE),
                       "sealed against writing");
        expect_refused(outputs[i], filled_memfd(outputs[i], F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE),
                       "sealed against writing");
    }
}
END_TEST

START_TEST(memfd_sealed_against_writing_serves_inputs)
{
    expect_served(INPUTS, filled_memfd(INPUTS, F_SEAL_SHRINK | F_SEAL_WRITE));
    expect_served(INPUTS, filled_memfd(INPUTS, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE));
    expect_served(INPUTS,
                  filled_memfd(INPUTS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL));
}
END_TEST

/* --- How it is open -------------------------------------------------------------------------- */

static int reopen(int fd, int flags)
{
    char path[64];
    int again;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, flags | O_CLOEXEC);
    ck_assert_msg(again >= 0, "open: %s", strerror(errno));
    close(fd);
    return again;
}

START_TEST(read_only_descriptor_serves_inputs_and_takes_no_output)
{
    expect_served(INPUTS, reopen(filled_memfd(INPUTS, F_SEAL_SHRINK), O_RDONLY));
    expect_refused(ALL_SHARED, reopen(filled_memfd(ALL_SHARED, F_SEAL_SHRINK), O_RDONLY),
                   "open for writing");
}
END_TEST

START_TEST(write_only_and_path_descriptors_are_refused)
{
    expect_refused(INPUTS, reopen(filled_memfd(INPUTS, F_SEAL_SHRINK), O_WRONLY),
                   "not open for reading");
    expect_refused(INPUTS, reopen(filled_memfd(INPUTS, F_SEAL_SHRINK), O_PATH), "memfd");
}
END_TEST

/* --- What it is ------------------------------------------------------------------------------ */

static int temporary_file(const char *directory)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "%s/fad-test-XXXXXX", directory);
    fd = mkostemp(path, O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    unlink(path);
    ck_assert_int_eq(ftruncate(fd, 1 << 16), 0);
    return fd;
}

START_TEST(file_is_refused)
{
    expect_refused(ALL_SHARED, temporary_file("/tmp"), "");
}
END_TEST

START_TEST(file_in_dev_shm_is_refused)
{
    expect_refused(ALL_SHARED, temporary_file("/dev/shm"), "");
}
END_TEST

START_TEST(pipe_socket_directory_and_device_are_refused)
{
    int pair[2];

    ck_assert_int_eq(pipe2(pair, O_CLOEXEC), 0);
    expect_refused(ALL_SHARED, pair[0], "no memfd");
    close(pair[1]);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    expect_refused(ALL_SHARED, pair[0], "no memfd");
    close(pair[1]);
    expect_refused(INPUTS, open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "");
    expect_refused(ALL_SHARED, open("/dev/zero", O_RDWR | O_CLOEXEC), "");
    expect_refused(ALL_SHARED, open("/dev/null", O_RDWR | O_CLOEXEC), "");
}
END_TEST

START_TEST(hugetlb_memfd_is_refused)
{
    int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

    ck_assert_int_eq(ftruncate(fd, 2 << 20), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_refused(ALL_SHARED, fd, "MFD_HUGETLB");
}
END_TEST

START_TEST(memfd_of_no_bytes_is_refused)
{
    expect_refused(ALL_SHARED, wire_memfd(0, F_SEAL_SHRINK), "no bytes");
}
END_TEST

START_TEST(memfd_over_the_mapped_limit_is_refused_naming_it)
{
    struct wire_forward f;
    int connection = wire_greet();

    make_with(&f, ALL_SHARED, wire_memfd(((uint64_t)8 << 30) + 4096, F_SEAL_SHRINK)); /* sparse */
    ck_assert(wire_forward_send(connection, &f, 5));
    wire_expect_text(connection, 5, FA_RESOURCE_EXHAUSTED, "", "shared memory and regions");
    wire_serves(connection);
    wire_forward_free(&f);
    make_with(&f, ALL_SHARED, wire_memfd(INT64_MAX, F_SEAL_SHRINK));
    ck_assert(wire_forward_send(connection, &f, 6));
    wire_expect_text(connection, 6, FA_RESOURCE_EXHAUSTED, "", "shared memory and regions");
    wire_serves(connection);
    wire_forward_free(&f);
    close(connection);
}
END_TEST

/* What a request held counts no more when its reply is there: a client with one request at a time
 * may use all of its limits each time. */
START_TEST(memfd_of_most_of_the_limit_may_follow_another)
{
    uint64_t half = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    uint64_t limit = half < (uint64_t)8 << 30 ? half : (uint64_t)8 << 30;
    struct wire_forward f;
    int connection = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 16, 16, 64}, ALL_SHARED);
    wire_forward_grow_sparse(&f, limit / 5 * 3);
    for (uint64_t id = 10; id < 60; id++)
        wire_forward_run(connection, &f, id);
    wire_forward_free(&f);
    close(connection);
}
END_TEST

/* --- Changed while it is in use -------------------------------------------------------------- */

START_TEST(shared_memory_cannot_be_cut_off)
{
    struct wire_forward f;
    int connection = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 8, 8, 512, 512, 64}, ALL_SHARED);
    ck_assert(wire_forward_send(connection, &f, 5));
    ck_assert_int_eq(ftruncate(f.memfd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    wire_expect(connection, 5, FA_OK, "");
    wire_forward_free(&f);
    close(connection);
}
END_TEST

/* The result is undefined, but there is one, and the daemon lives. */
START_TEST(shared_memory_may_be_punched_while_in_use)
{
    const struct wire_shape shape = {1, 8, 8, 512, 512, 64};
    int connection = wire_greet();

    for (uint64_t id = 10; id < 14; id++) {
        struct wire_forward f;

        wire_forward_make(&f, shape, ALL_SHARED);
        ck_assert(wire_forward_send(connection, &f, id));
        for (int i = 0; i < 200 && !wire_has_news(connection); i++)
            ck_assert_int_eq(fallocate(f.memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                                       (off_t)f.memory_size),
                             0);
        wire_expect(connection, id, FA_OK, "");
        wire_forward_free(&f);
    }
    wire_serves(connection);
    close(connection);
}
END_TEST

START_TEST(same_memory_may_be_refilled_and_sent_again)
{
    struct wire_forward f;
    int connection = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, ALL_SHARED);
    for (uint64_t id = 10; id < 60; id++) {
        for (size_t i = 0; i < f.shared[FAD_O].offset; i += sizeof(float)) {
            float value = (float)((i + id) % 7) - 3;
            memcpy(f.memory + i, &value, sizeof value);
        }
        wire_forward_run(connection, &f, id);
    }
    wire_forward_free(&f);
    close(connection);
}
END_TEST

/* --- Mixes ----------------------------------------------------------------------------------- */

START_TEST(every_mix_of_inline_and_shared_tensors)
{
    static const struct wire_shape shapes[] = {{2, 4, 2, 3, 5, 8}, {1, 3, 1, 17, 70, 63}};
    int connection = wire_greet();

    for (unsigned shared = 0; shared < 1u << FAD_TENSORS; shared++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            struct wire_forward f;

            wire_forward_make(&f, shapes[s], shared);
            wire_forward_run(connection, &f, 5);
            if (!(shared & 1u << FAD_LSE)) { /* and the same without lse */
                f.message.lse = NULL;
                wire_forward_run(connection, &f, 6);
            }
            wire_forward_free(&f);
        }
    }
    close(connection);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        memfd_without_seals_is_refused,
        memfd_sealed_against_shrinking_is_enough,
        memfd_sealed_against_writing_takes_no_output,
        memfd_sealed_against_writing_serves_inputs,
        read_only_descriptor_serves_inputs_and_takes_no_output,
        write_only_and_path_descriptors_are_refused,
        file_is_refused,
        file_in_dev_shm_is_refused,
        pipe_socket_directory_and_device_are_refused,
        memfd_of_no_bytes_is_refused,
        memfd_over_the_mapped_limit_is_refused_naming_it,
        memfd_of_most_of_the_limit_may_follow_another,
        shared_memory_cannot_be_cut_off,
        shared_memory_may_be_punched_while_in_use,
        same_memory_may_be_refilled_and_sent_again,
        every_mix_of_inline_and_shared_tensors,
        hugetlb_memfd_is_refused, /* the last: it may be left out */
    };
    size_t count = sizeof tests / sizeof tests[0];
    int huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

    if (huge < 0) {
        test_skip("hugetlb_memfd_is_refused", "this kernel makes no hugetlb memfd");
        count--;
    } else {
        close(huge);
    }
    return wire_suite("wire_memfd", tests, count);
}
