/* test_wire_region_flow.c: requests about regions as they flow: cut, glued, pipelined, with
 * descriptors, and from clients that stall or do not read. */
#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)

/* --- Descriptors ----------------------------------------------------------------------------- */

/* A memfd whose bytes tell which one it is. */
static int numbered_memfd(uint8_t number)
{
    int memfd = wire_memfd(4096, 0);

    ck_assert_int_eq(pwrite(memfd, &number, 1, 100), 1);
    ck_assert_int_eq(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return memfd;
}

/* Takes the replies to the RegisterRegion of the id and to so many others, in any order, which must
 * be successes; the memory must be that of the
 * number. */
static void expect_numbered(int fd, uint64_t id, unsigned others, uint8_t number)
{
    uint64_t region = 0;
    uint8_t byte;

    for (unsigned i = 0; i <= others; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        if (reply.frame.id == id)
            region = reply.message->region->region;
        wire_release(&reply);
    }
    ck_assert_uint_ne(region, 0);
    wire_read(fd, region, 100, &byte, 1);
    ck_assert_uint_eq(byte, number);
}

START_TEST(eight_registrations_with_their_descriptors_at_once)
{
    struct wire_bytes bytes = {0};
    struct wire_reply replies[8];
    int fds[8], fd = wire_greet();

    for (uint8_t i = 0; i < 8; i++) {
        fds[i] = numbered_memfd(i);
        wire_append_register(&bytes, 10 + i, false);
    }
    wire_send_bytes_fds(fd, &bytes, fds, 8);
    for (int i = 0; i < 8; i++) {
        wire_receive(fd, &replies[i]);
        ck_assert_int_eq(replies[i].message->status, FAD__STATUS__OK);
    }
    for (int i = 0; i < 8; i++) {
        uint8_t byte;

        wire_read(fd, replies[i].message->region->region, 100, &byte, 1);
        ck_assert_uint_eq(byte, replies[i].frame.id - 10);
        wire_release(&replies[i]);
        close(fds[i]);
    }
    ck_assert_int_eq(wire_daemon_mappings(), 8);
    close(fd);
}
END_TEST

/* A descriptor may come with the bytes of the frames before its own; those keep theirs. */
START_TEST(descriptor_glued_to_the_frame_before)
{
    struct wire_forward f;
    struct wire_region region;
    struct wire_bytes bytes = {0};
    int fd = wire_greet(), memfds[2];

    wire_region_alloc(&region, fd, 64);
    wire_append_write(&bytes, 8, region.id, 0, "data", 4);
    wire_append_register(&bytes, 9, false);
    memfds[0] = numbered_memfd(77);
    wire_send_bytes_fds(fd, &bytes, memfds, 1);
    expect_numbered(fd, 9, 1, 77);
    wire_forward_make(&f, WIRE_SMALL, 0x1f);
    wire_forward_append(&f, 10, &bytes);
    wire_append_register(&bytes, 11, false);
    memfds[1] = f.memfd;
    wire_send_bytes_fds(fd, &bytes, (int[]){f.memfd, memfds[0]}, 2);
    for (int i = 0; i < 2; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        if (reply.frame.id == 10)
            wire_forward_check(&f, &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        wire_release(&reply);
    }
    wire_forward_free(&f);
    wire_region_release(&region, fd);
    close(memfds[0]);
    close(fd);
}
END_TEST

START_TEST(one_descriptor_too_many_or_too_few)
{
    int memfd = numbered_memfd(5), fds[2] = {memfd, memfd}, fd;

    for (int few = 0; few < 2; few++) {
        struct wire_bytes bytes = {0};
        unsigned answered = 0;

        fd = wire_greet();
        wire_append_register(&bytes, 10, false);
        if (few)
            wire_append_register(&bytes, 11, false);
        wire_send_bytes_fds(fd, &bytes, fds, few ? 1 : 2);
        for (bool last = false; !last; answered++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            last = reply.frame.type == FA_FRAME_REPLY;
            ck_assert_int_eq(reply.message->status,
                             last ? FAD__STATUS__PROTOCOL_ERROR : FAD__STATUS__OK);
            wire_release(&reply);
        }
        ck_assert_uint_le(answered, 2);
        wire_expect_end(fd);
        wire_expect_rest();
    }
    close(memfd);
}
END_TEST

START_TEST(flood_of_registrations_is_bounded)
{
    enum { FRAMES = 600 };
    int memfd = numbered_memfd(5), fd = wire_greet(), opened = 0;
    struct wire_bytes frame = {0};

    for (int round = 0; round < FRAMES / 100; round++) {
        for (uint64_t id = 10; id < 110; id++) {
            wire_append_register(&frame, id, id % 2);
            wire_send_bytes_fds(fd, &frame, &memfd, 1);
        }
        ck_assert_int_lt(wire_daemon_fds(), 64);
        for (int i = 0; i < 100; i++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            opened += reply.message->status == FAD__STATUS__OK;
            wire_release(&reply);
        }
    }
    ck_assert_int_eq(opened, 64);
    ck_assert_int_eq(wire_daemon_mappings(), 64);
    close(memfd);
    close(fd);
}
END_TEST

/* --- Cut and glued --------------------------------------------------------------------------- */

/* Of one connection, all sent before anything is read. Requests run in any order, so none of them
 * touches the bytes of another. */
static void append_everything(struct wire_bytes *bytes, struct wire_forward *f,
                              const struct wire_region regions[2])
{
    static const uint8_t data[200] = {1, 2, 3};

    wire_forward_use_regions(f, INPUTS | OUTPUTS, &regions[0]);
    wire_append_write(bytes, 10, regions[0].id, 1 << 14, data, sizeof data);
    wire_append_read(bytes, 11, regions[0].id, 20000, 300);
    wire_append_alloc(bytes, 12, 5000);
    wire_forward_append(f, 13, bytes);
    wire_append_write(bytes, 14, regions[1].id, 7, data, sizeof data);
    wire_append_release(bytes, 15, regions[1].id);
    wire_append_cancel(bytes, 16, 10);
    wire_append_read(bytes, 17, UINT64_MAX, 0, 1);
}

static void expect_everything(int fd)
{
    unsigned seen = 0;

    for (int i = 0; i < 8; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 10 && reply.frame.id < 18);
        ck_assert(!(seen & 1u << (reply.frame.id - 10)));
        seen |= 1u << (reply.frame.id - 10);
        ck_assert_int_eq(reply.message->status,
                         reply.frame.id == 17 ? FAD__STATUS__NOT_FOUND : FAD__STATUS__OK);
        ck_assert_uint_eq(reply.frame.payload_length, reply.frame.id == 11 ? 300 : 0);
        wire_release(&reply);
    }
}

START_TEST(requests_about_regions_in_any_pieces)
{
    static const size_t most[] = {1, 7, 100, 100000};

    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        struct wire_region regions[2];
        struct wire_forward f;
        struct wire_bytes bytes = {0};
        int fd = wire_greet();

        wire_forward_make(&f, WIRE_SMALL, 0);
        wire_region_alloc(&regions[0], fd, 1 << 15);
        wire_region_alloc(&regions[1], fd, 1000);
        append_everything(&bytes, &f, regions);
        wire_send_pieces(fd, bytes.data, bytes.size, most[i], 4711);
        expect_everything(fd);
        wire_serves(fd);
        wire_free(&bytes);
        wire_forward_free(&f);
        wire_region_free(&regions[0]);
        wire_region_free(&regions[1]);
        close(fd);
    }
}
END_TEST

/* --- Clients that do not read ---------------------------------------------------------------- */

/* 64 MiB twice there and twice back, all written before anything is read, over sockets that buffer
 * as little as the system lets them. */
START_TEST(client_that_writes_all_before_it_reads)
{
    int fd = wire_greet(), least = 1;
    struct wire_region region;

    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
    wire_region_alloc(&region, fd, 64 * MIB);
    memset(region.memory, 0x5a, region.size);
    wire_region_push(&region, fd);
    for (uint64_t round = 0; round < 2; round++) {
        struct wire_bytes bytes = {0};

        wire_append_read(&bytes, 10 + round, region.id, 0, region.size / 2);
        wire_append_write(&bytes, 20 + round, region.id, region.size / 2, region.memory,
                          region.size / 2);
        wire_send_bytes(fd, &bytes);
    }
    for (int i = 0; i < 4; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        if (reply.frame.id < 20)
            ck_assert(memcmp(reply.payload, region.memory, region.size / 2) == 0);
        wire_release(&reply);
    }
    wire_region_release(&region, fd);
    wire_serves(fd);
    close(fd);
}
END_TEST

/* How many requests that need shared memory closed another connection is served while large copies
 * of this one are made. */
static int served_beside_copies(int fd, int other, const struct wire_region *region)
{
    struct wire_bytes bytes = {0};
    struct wire_forward f;
    uint64_t ids = 0;
    int served = 0;

    wire_forward_make(&f, WIRE_SMALL, INPUTS | OUTPUTS);
    wire_forward_grow(&f, MIB);
    for (uint64_t id = 10; id < 12; id++)
        wire_append_read(&bytes, id, region->id, 0, region->size);
    wire_send_bytes(fd, &bytes);
    for (; !wire_has_news(fd); served++)
        wire_forward_run(other, &f, 5);
    for (int i = 0; i < 2; i++) { /* of two alike either is the first */
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        ids |= UINT64_C(1) << reply.frame.id;
        wire_release(&reply);
    }
    ck_assert_uint_eq(ids, UINT64_C(3) << 10);
    wire_forward_free(&f);
    return served;
}

/* In turns, not one client after the other: then it would never be more than two or so. */
START_TEST(large_copies_let_a_neighbour_pass)
{
    long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;
    int fd = wire_greet(), other = wire_greet();
    struct wire_region region;

    /* Copies take some milliseconds: a GPU's engines make them ten times as fast. */
    wire_region_alloc(&region, fd, test_on_cuda() ? 256 * MIB : 32 * MIB);
    while (served_beside_copies(fd, other, &region) < 5)
        ck_assert_msg(test_now_ms() < deadline, "a neighbour waits for large copies");
    wire_region_release(&region, fd);
    close(other);
    close(fd);
}
END_TEST

static void setup_impatient(void)
{
    wire_setup_with((const char *const[]){"--stall-seconds", "1", NULL});
}

/* Closed by the daemon, with its regions; the one that only waits is not. */
START_TEST(client_that_stalls_loses_its_regions)
{
    int idle = wire_greet(), inside = wire_greet(), deaf = wire_greet(), least = 1;
    static const uint8_t data[5000];
    struct wire_region regions[3];
    struct wire_bytes bytes = {0};

    ck_assert_int_eq(setsockopt(deaf, SOL_SOCKET, SO_RCVBUF, &least, sizeof least), 0);
    wire_region_register(&regions[0], idle, 4 * MIB, false);
    wire_region_register(&regions[1], inside, 4 * MIB, true);
    wire_region_register(&regions[2], deaf, 4 * MIB, true);
    wire_append_write(&bytes, 10, regions[1].id, 0, data, sizeof data);
    wire_send(inside, bytes.data, bytes.size - 1);
    wire_free(&bytes);
    for (uint64_t id = 10; id < 14; id++)
        wire_append_read(&bytes, id, regions[2].id, 0, regions[2].size);
    wire_send_bytes(deaf, &bytes);
    wire_expect_end(inside);
    while (wire_daemon_mappings() > 1) /* as long as a test may take */
        test_sleep_ms(10);
    ck_assert(!wire_has_news(idle));
    wire_read(idle, regions[0].id, 0, regions[0].memory, 100);
    for (int i = 0; i < 3; i++)
        wire_region_free(&regions[i]);
    close(deaf);
    close(idle);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        eight_registrations_with_their_descriptors_at_once,
        descriptor_glued_to_the_frame_before,
        one_descriptor_too_many_or_too_few,
        flood_of_registrations_is_bounded,
        requests_about_regions_in_any_pieces,
        client_that_writes_all_before_it_reads,
        large_copies_let_a_neighbour_pass,
    };
    Suite *suite = wire_suite("wire_region_flow", tests, sizeof tests / sizeof tests[0]);
    TCase *impatient = tcase_create("impatient");

    tcase_set_timeout(impatient, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(impatient, setup_impatient, wire_teardown);
    tcase_add_test(impatient, client_that_stalls_loses_its_regions);
    suite_add_tcase(suite, impatient);
    return suite;
}
