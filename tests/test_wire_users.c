/* test_wire_users.c: clients of several uids: what one of them takes or does is no affair of the
 * others'. */
#include "tests/helpers/wire_region.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

enum { NOBODY = 65534, SOMEBODY = 65533 };

/* A daemon that everybody may connect to. */
static void begin_with(const char *option, const char *value)
{
    wire_setup_with((const char *const[]){option, value, NULL});
    ck_assert_int_eq(chmod(wire_daemon()->directory, 0755), 0);
    ck_assert_int_eq(chmod(wire_daemon()->socket, 0666), 0);
}

/* The system notes a client's effective uid when it connects. */
static int connect_as(uid_t uid)
{
    int fd;

    ck_assert_msg(seteuid(uid) == 0, "seteuid: %s", strerror(errno));
    fd = wire_connect();
    ck_assert_int_eq(seteuid(0), 0);
    return fd;
}

static int greet_as(uid_t uid)
{
    int fd = connect_as(uid);

    wire_hello(fd);
    return fd;
}

static void expect_over(int fd, uint64_t id, const char *words)
{
    wire_expect_text(fd, id, FA_RESOURCE_EXHAUSTED, "", words);
}

/* --- Limits ---------------------------------------------------------------------------------- */

START_TEST(connections_of_a_uid)
{
    int own[3], others[3], fd;
    struct wire_reply reply;

    begin_with("--connections", "3,100");
    for (int i = 0; i < 3; i++)
        others[i] = greet_as(NOBODY);
    for (int i = 0; i < 5; i++) {
        fd = connect_as(NOBODY);
        wire_receive(fd, &reply);
        ck_assert_uint_eq(reply.frame.type, FA_FRAME_REPLY);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__RESOURCE_EXHAUSTED);
        ck_assert_ptr_nonnull(strstr(reply.message->text, "uid 65534's limit of 3 connections"));
        wire_release(&reply);
        wire_expect_end(fd);
    }
    for (int i = 0; i < 3; i++) {
        own[i] = wire_greet();
        wire_serves(own[i]);
        wire_serves(others[i]);
    }
    fd = connect_as(SOMEBODY);
    wire_hello(fd);
    wire_serves(fd);
    close(fd);
    for (int i = 0; i < 3; i++) {
        close(own[i]);
        close(others[i]);
    }
    wire_expect_rest();
    wire_teardown();
}
END_TEST

START_TEST(connections_of_all)
{
    int fds[3], fd;
    struct wire_reply reply;

    begin_with("--connections", "2,3");
    fds[0] = greet_as(NOBODY);
    fds[1] = greet_as(NOBODY);
    fds[2] = greet_as(SOMEBODY);
    fd = wire_connect();
    wire_receive(fd, &reply);
    ck_assert_int_eq(reply.message->status, FAD__STATUS__RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(reply.message->text, "the daemon's limit of 3 connections"));
    wire_release(&reply);
    wire_expect_end(fd);
    for (int i = 0; i < 3; i++) {
        wire_serves(fds[i]);
        close(fds[i]);
    }
    wire_expect_rest();
    wire_teardown();
}
END_TEST

/* Takes of regions all that a new connection of the uid gets: so many. */
static int take_regions(uid_t uid, unsigned most, uint64_t size)
{
    int fd = greet_as(uid);
    struct wire_region region;
    struct wire_bytes bytes = {0};

    for (unsigned i = 0; i < most; i++) {
        wire_region_alloc(&region, fd, size);
        wire_region_free(&region);
    }
    wire_append_alloc(&bytes, 5, size);
    wire_send_bytes(fd, &bytes);
    expect_over(fd, 5, "(half of what others leave of its uid's)");
    return fd;
}

START_TEST(regions_and_mapped_bytes_of_a_uid)
{
    for (int mapped = 0; mapped < 2; mapped++) {
        int fds[5];

        begin_with(mapped ? "--mapped" : "--regions", mapped ? "8M,8M,64M" : "8,8,64");
        fds[0] = take_regions(NOBODY, 4, MIB);
        fds[1] = take_regions(NOBODY, 2, MIB);
        fds[2] = take_regions(NOBODY, 1, MIB);
        fds[3] = take_regions(SOMEBODY, 4, MIB); /* of which nothing is missing */
        fds[4] = take_regions(0, 4, MIB);
        for (int i = 0; i < 5; i++) {
            wire_serves(fds[i]);
            close(fds[i]);
        }
        wire_teardown();
    }
}
END_TEST

START_TEST(jobs_of_a_uid)
{
    struct wire_forward slow;
    int flood, fd;

    begin_with("--jobs", "8,8,64");
    flood = greet_as(NOBODY);
    wire_forward_make_long(&slow);
    for (uint64_t id = 10; id < 60; id++) {
        ck_assert(wire_forward_send(flood, &slow, id));
        if (id >= 14)
            expect_over(flood, id, "(half of what others leave of its uid's)");
    }
    fd = greet_as(SOMEBODY);
    for (uint64_t id = 10; id < 15; id++) {
        ck_assert(wire_forward_send(fd, &slow, id));
        if (id == 14)
            expect_over(fd, id, "(half of what others leave of its uid's)");
    }
    for (uint64_t id = 10; id < 14; id++) {
        ck_assert(wire_cancel(fd, id));
        wire_expect(fd, id, FA_CANCELLED, "");
    }
    wire_serves(fd); /* beside the flood's */
    wire_forward_free(&slow);
    close(flood);
    close(fd);
    wire_teardown();
}
END_TEST

/* --- What is whose --------------------------------------------------------------------------- */

START_TEST(regions_of_another_uid_cannot_be_named)
{
    struct wire_region region;
    struct wire_bytes bytes = {0};
    struct wire_forward f;
    int owner, other;

    begin_with("--jobs", "8,8,64");
    owner = greet_as(NOBODY);
    other = wire_greet(); /* root is nobody special here */
    wire_region_alloc(&region, owner, 1 << 14);
    wire_region_push(&region, owner);
    wire_append_read(&bytes, 5, region.id, 0, 4);
    wire_bytes_refused(other, &bytes, FA_NOT_FOUND, "region", "");
    wire_append_release(&bytes, 5, region.id);
    wire_bytes_refused(other, &bytes, FA_NOT_FOUND, "region", "");
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_region(&f, FAD_K, &region, 0);
    wire_refused(other, &f, FA_NOT_FOUND, "k.region.region");
    wire_region_push(&region, owner);
    wire_forward_run(owner, &f, 5);
    wire_forward_free(&f);
    wire_region_release(&region, owner);
    close(owner);
    close(other);
    wire_teardown();
}
END_TEST

/* More uids, one after the other, than are remembered. */
START_TEST(hundred_uids_come_and_go)
{
    int fd;

    begin_with("--connections", "3,10");
    for (uid_t uid = 70000; uid < 70100; uid++) {
        fd = greet_as(uid);
        wire_serves(fd);
        close(fd);
    }
    fd = wire_greet();
    wire_expect_idle(fd);
    close(fd);
    wire_teardown();
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        connections_of_a_uid,
        connections_of_all,
        regions_and_mapped_bytes_of_a_uid,
        jobs_of_a_uid,
        regions_of_another_uid_cannot_be_named,
        hundred_uids_come_and_go,
    };
    Suite *suite = suite_create("wire_users");
    TCase *tcase = tcase_create("wire_users"); /* each test starts a daemon with its limits */

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (geteuid() == 0)
            tcase_add_test(tcase, tests[i]);
        else
            test_skip(tests[i]->name, "only root can connect as several uids");
    }
    suite_add_tcase(suite, tcase);
    return suite;
}
