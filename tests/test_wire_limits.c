/* test_wire_limits.c: limits, at each of their levels: over one a request is refused at once, the
 * limit named, and the connection goes on; when what was held is given back the same request is
 * served. */
#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void begin_with(const char *option, const char *value)
{
    wire_setup_with((const char *const[]){option, value, NULL});
}

/* The next reply must be a refusal for the limit that the words name. */
static void expect_over(int fd, uint64_t id, const char *words)
{
    wire_expect_text(fd, id, FA_RESOURCE_EXHAUSTED, "", words);
}

/* --- Requests in flight ---------------------------------------------------------------------- */

/* Sends count long requests from the id on. The first ones are admitted, as many as may be, the
 * others refused for the words. */
static void send_long(int fd, uint64_t id, unsigned count, unsigned admitted, const char *words)
{
    struct wire_forward slow;

    wire_forward_make_long(&slow);
    for (uint64_t i = 0; i < count; i++) {
        ck_assert(wire_forward_send(fd, &slow, id + i));
        if (i >= admitted)
            expect_over(fd, id + i, words);
    }
    wire_ping(fd, 1); /* and nothing else was answered */
    wire_forward_free(&slow);
}

static void cancel(int fd, uint64_t id)
{
    ck_assert(wire_cancel(fd, id));
    wire_expect(fd, id, FA_CANCELLED, "");
}

START_TEST(jobs_of_a_connection)
{
    int fd;

    begin_with("--jobs", "2,100,100");
    fd = wire_greet();
    for (uint64_t round = 0; round < 3; round++) {
        send_long(fd, 10, 5, 2, "the connection's limit of 2 requests in flight: 1 more asked");
        cancel(fd, 10);
        send_long(fd, 20, 2, 1, "the connection's limit of 2 requests in flight");
        cancel(fd, 11);
        cancel(fd, 20);
    }
    wire_serves(fd);
    close(fd);
    wire_teardown();
}
END_TEST

START_TEST(jobs_of_the_daemon)
{
    int fds[3];

    begin_with("--jobs", "10,20,3");
    for (int i = 0; i < 3; i++)
        fds[i] = wire_greet();
    send_long(fds[0], 10, 2, 2, "");
    send_long(fds[1], 10, 2, 1, "the daemon's limit of 3 requests in flight");
    send_long(fds[2], 10, 2, 0, "the daemon's limit of 3 requests in flight");
    cancel(fds[0], 11);
    send_long(fds[2], 10, 2, 1, "the daemon's limit of 3 requests in flight");
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    wire_teardown();
}
END_TEST

/* A connection that takes all it can leaves half to the others of its uid, and so on. */
START_TEST(flood_of_one_connection_leaves_its_neighbours_theirs)
{
    int fds[4], fd;

    begin_with("--jobs", "100,8,100");
    for (int i = 0; i < 4; i++)
        fds[i] = wire_greet();
    send_long(fds[0], 10, 100, 4, "(half of what others leave of its uid's)");
    send_long(fds[1], 10, 100, 2, "(half of what others leave of its uid's)");
    send_long(fds[2], 10, 100, 1, "(half of what others leave of its uid's)");
    send_long(fds[3], 10, 100, 1, "(half of what others leave of its uid's)");
    fd = wire_greet();
    send_long(fd, 10, 3, 0, "(half of what others leave of its uid's)");
    close(fds[0]);
    wire_ping(fd, 1); /* the daemon has seen it; its requests end when their ranges do */
    cancel(fds[3], 10);
    wire_serves(fds[3]);
    for (int i = 1; i < 4; i++)
        close(fds[i]);
    wire_expect_idle(fd);
    send_long(fd, 10, 6, 4, "(half of what others leave of its uid's)");
    close(fd);
    wire_teardown();
}
END_TEST

/* --- Staged bytes ---------------------------------------------------------------------------- */

static void write_over(int fd, uint64_t region, size_t size, const char *words)
{
    struct wire_bytes bytes = {0};
    void *data = calloc(1, size);

    ck_assert_ptr_nonnull(data);
    wire_append_write(&bytes, 5, region, 0, data, size);
    wire_bytes_refused(fd, &bytes, FA_RESOURCE_EXHAUSTED, "", words);
    free(data);
}

static void await_staged(int fd, uint64_t staged)
{
    uint64_t now;

    do {
        struct wire_reply reply;

        wire_stats(fd, &reply);
        now = reply.message->stats->daemon->staged_bytes;
        wire_release(&reply);
    } while (now != staged);
}

START_TEST(staged_bytes_at_each_level)
{
    static const char connection[] = "the connection's limit of 33554432 bytes of staged memory";
    struct wire_region regions[2];
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    int fds[2];

    begin_with("--staged", "32M,64M,128M");
    for (int i = 0; i < 2; i++) {
        fds[i] = wire_greet();
        wire_region_alloc(&regions[i], fds[i], 40 * MIB);
    }
    write_over(fds[0], regions[0].id, 32 * MIB + 1, connection);
    wire_append_read(&bytes, 5, regions[0].id, 0, 32 * MIB + 1);
    wire_bytes_refused(fds[0], &bytes, FA_RESOURCE_EXHAUSTED, "", connection);
    for (uint64_t id = 10; id < 13; id++)
        wire_append_read(&bytes, id, regions[0].id, 0, 10 * MIB);
    wire_send_bytes(fds[0], &bytes); /* and it does not read them yet */
    await_staged(fds[1], 30 * MIB);
    write_over(fds[1], regions[1].id, 17 * MIB + 1, "(half of what others leave of its uid's)");
    wire_write(fds[1], regions[1].id, 0, regions[1].memory, 17 * MIB);
    for (uint64_t id = 10; id < 13; id++) {
        wire_receive(fds[0], &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        wire_release(&reply);
    }
    wire_write(fds[1], regions[1].id, 0, regions[1].memory, 32 * MIB);
    for (int i = 0; i < 2; i++) {
        wire_region_free(&regions[i]);
        close(fds[i]);
    }
    wire_teardown();
}
END_TEST

START_TEST(staged_bytes_of_the_daemon)
{
    struct wire_region region;
    int fd;

    begin_with("--staged", "32M,64M,4M");
    fd = wire_greet();
    wire_region_alloc(&region, fd, 8 * MIB);
    write_over(fd, region.id, 4 * MIB + 1, "the daemon's limit of 4194304 bytes of staged memory");
    wire_write(fd, region.id, 0, region.memory, 4 * MIB);
    wire_region_release(&region, fd);
    close(fd);
    wire_teardown();
}
END_TEST

/* What a client does not read counts as its own; the system's buffers hold little of it. */
START_TEST(replies_that_are_not_read_count)
{
    enum { REQUESTS = 20 };
    struct wire_region region;
    int fd, other, served = 0;

    begin_with("--staged", "8M,16M,32M");
    fd = wire_greet();
    other = wire_greet();
    wire_region_alloc(&region, fd, 2 * MIB);
    for (uint64_t id = 10; id < 10 + REQUESTS; id++) {
        struct wire_bytes bytes = {0};
        wire_append_read(&bytes, id, region.id, 0, region.size);
        wire_send_bytes(fd, &bytes);
        for (uint64_t ping = 1; ping <= 2; ping++) /* afterwards the daemon has taken it */
            wire_ping(other, ping);
    }
    for (int i = 0; i < REQUESTS; i++) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        served += reply.message->status == FAD__STATUS__OK;
        ck_assert(reply.message->status == FAD__STATUS__OK ||
                  reply.message->status == FAD__STATUS__RESOURCE_EXHAUSTED);
        wire_release(&reply);
    }
    ck_assert_int_eq(served, 4);
    wire_region_pull(&region, fd);
    wire_region_release(&region, fd);
    close(other);
    close(fd);
    wire_teardown();
}
END_TEST

/* --- Mapped bytes and regions ---------------------------------------------------------------- */

static void alloc_over(int fd, uint64_t size, const char *words)
{
    struct wire_bytes bytes = {0};

    wire_append_alloc(&bytes, 5, size);
    wire_bytes_refused(fd, &bytes, FA_RESOURCE_EXHAUSTED, "", words);
}

static void register_over(int fd, uint64_t size, const char *words)
{
    struct wire_bytes bytes = {0};
    int memfd = wire_memfd(size, F_SEAL_SHRINK);

    wire_append_register(&bytes, 5, true);
    wire_send_bytes_fds(fd, &bytes, &memfd, 1);
    expect_over(fd, 5, words);
    ck_assert_int_eq(wire_daemon_mappings(), 0);
    close(memfd);
}

START_TEST(mapped_bytes_at_each_level)
{
    static const char connection[] = "the connection's limit of 1048576 bytes of shared memory";
    struct wire_region region, half;
    struct wire_forward f;
    int fd, other;

    begin_with("--mapped", "1M,2M,5M");
    fd = wire_greet();
    other = wire_greet();
    alloc_over(fd, MIB + 1, connection);
    register_over(fd, 2 * MIB, connection);
    for (int round = 0; round < 5; round++) {
        wire_region_alloc(&region, fd, MIB);
        alloc_over(fd, 1, connection);
        register_over(fd, 1, connection);
        wire_forward_make(&f, WIRE_SMALL, 0x1f);
        ck_assert(wire_forward_send(fd, &f, 6));
        expect_over(fd, 6, connection);
        alloc_over(other, MIB / 2 + 1, "(half of what others leave of its uid's)");
        register_over(other, MIB / 2 + 1, "(half of what others leave of its uid's)");
        wire_region_register(&half, other, MIB / 2, true);
        wire_region_release(&region, fd);
        wire_forward_run(fd, &f, 6);
        wire_region_release(&half, other);
        wire_forward_free(&f);
    }
    close(fd);
    close(other);
    wire_teardown();
}
END_TEST

START_TEST(mapped_bytes_of_the_daemon)
{
    struct wire_region region;
    int fd, other;

    begin_with("--mapped", "8M,32M,8M");
    fd = wire_greet();
    other = wire_greet();
    wire_region_alloc(&region, fd, 6 * MIB);
    alloc_over(other, 3 * MIB, "the daemon's limit of 8388608 bytes of shared memory and regions");
    wire_region_release(&region, fd);
    wire_region_alloc(&region, other, 3 * MIB);
    wire_region_release(&region, other);
    close(fd);
    close(other);
    wire_teardown();
}
END_TEST

static void alloc_up_to(int fd, unsigned most, const char *words)
{
    struct wire_region region;

    for (unsigned i = 0; i < most; i++) {
        wire_region_alloc(&region, fd, 64);
        wire_region_free(&region);
    }
    alloc_over(fd, 64, words);
    register_over(fd, 64, words);
}

START_TEST(regions_at_each_level)
{
    int fd, others[2];

    begin_with("--regions", "3,7,20");
    fd = wire_greet();
    others[0] = wire_greet();
    others[1] = wire_greet();
    alloc_up_to(fd, 3, "the connection's limit of 3 regions");
    wire_release_region(fd, 2);
    alloc_up_to(fd, 1, "the connection's limit of 3 regions");
    alloc_up_to(others[0], 2, "(half of what others leave of its uid's)");
    alloc_up_to(others[1], 1, "(half of what others leave of its uid's)");
    close(others[0]);
    wire_serves(fd);
    close(others[1]);
    close(fd);
    wire_teardown();
    begin_with("--regions", "9,18,4");
    fd = wire_greet();
    alloc_up_to(fd, 4, "the daemon's limit of 4 regions");
    close(fd);
    wire_teardown();
}
END_TEST

/* A region counts until it is gone: released with requests in flight on it, too. */
START_TEST(released_region_counts_until_its_requests_end)
{
    struct wire_region region;
    struct wire_forward slow;
    struct wire_bytes bytes = {0};
    int fd;

    begin_with("--regions", "1,2,3");
    fd = wire_greet();
    wire_region_alloc(&region, fd, 1 << 14);
    wire_forward_make_long(&slow);
    slow.message.has_priority = true;
    slow.message.priority = FAD__PRIORITY__LOW;
    wire_forward_use_regions(&slow, 1u << FAD_Q, &region);
    ck_assert(wire_forward_send(fd, &slow, 10));
    wire_append_release(&bytes, 11, region.id);
    wire_send_bytes(fd, &bytes);
    alloc_over(fd, 64, "the connection's limit of 1 regions");
    cancel(fd, 10);
    wire_expect(fd, 11, FA_OK, "");
    wire_region_free(&region);
    wire_region_alloc(&region, fd, 64); /* with the reply it is free */
    wire_region_release(&region, fd);
    wire_forward_free(&slow);
    close(fd);
    wire_teardown();
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        jobs_of_a_connection,
        jobs_of_the_daemon,
        flood_of_one_connection_leaves_its_neighbours_theirs,
        staged_bytes_at_each_level,
        staged_bytes_of_the_daemon,
        replies_that_are_not_read_count,
        mapped_bytes_at_each_level,
        mapped_bytes_of_the_daemon,
        regions_at_each_level,
        released_region_counts_until_its_requests_end,
    };
    Suite *suite = suite_create("wire_limits");
    TCase *tcase = tcase_create("wire_limits"); /* each test starts a daemon with its limits */

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return suite;
}
