/* The log: its token buckets, what a flood of refusals leaves in it, and a reader that does not
 * read. */
#include "daemon/util/log.h"
#include "tests/helpers/manager.h"
#include "tests/helpers/test.h"
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND 1000000000u

/* --- The bucket ------------------------------------------------------------------------------ */

static int take_all(struct fad_bucket *bucket, uint64_t now)
{
    int count = 0;

    for (; fad_bucket_has(bucket, now); count++)
        fad_bucket_take(bucket, now);
    return count;
}

START_TEST(bucket_gives_its_burst_then_its_rate)
{
    struct fad_bucket bucket;
    uint64_t now = 77 * (uint64_t)SECOND;

    fad_bucket_init(&bucket, 20, 4);
    ck_assert_int_eq(take_all(&bucket, now), 20);
    ck_assert_int_eq(take_all(&bucket, now + SECOND / 4 - 1), 0);
    ck_assert_int_eq(take_all(&bucket, now + SECOND / 4), 1);
    ck_assert_int_eq(take_all(&bucket, now + SECOND / 4), 0);
    ck_assert_int_eq(take_all(&bucket, now + SECOND), 3);
    ck_assert_int_eq(take_all(&bucket, now + 3 * (uint64_t)SECOND), 8);
    ck_assert_int_eq(take_all(&bucket, now + 1000 * (uint64_t)SECOND), 20); /* no more than full */
}
END_TEST

START_TEST(bucket_of_one)
{
    struct fad_bucket bucket;

    fad_bucket_init(&bucket, 1, 1);
    ck_assert_int_eq(take_all(&bucket, 0), 1);
    ck_assert_int_eq(take_all(&bucket, SECOND - 1), 0);
    ck_assert_int_eq(take_all(&bucket, SECOND), 1);
}
END_TEST

/* --- What is held back ----------------------------------------------------------------------- */

/* Standard error is a file, whose text is returned. */
static char *logged(void (*log)(void))
{
    char directory[64], path[96], *text;
    int saved = dup(STDERR_FILENO), file;

    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/log", directory);
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert(saved >= 0 && file >= 0 && dup2(file, STDERR_FILENO) >= 0);
    log();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    text = test_read_file(path, NULL);
    test_remove_directory(directory);
    return text;
}

static int count_of(const char *text, const char *words)
{
    int count = 0;

    while ((text = strstr(text, words))) {
        count++;
        text += strlen(words);
    }
    return count;
}

static void log_two_clients(void)
{
    struct fad_log_client one, two;

    fad_log_client_init(&one);
    fad_log_client_init(&two);
    for (int i = 0; i < 100; i++)
        fad_log_of_client(&one, SECOND, "one %d", i);
    fad_log_of_client(&two, SECOND, "two");
    ck_assert_uint_eq(one.held, 80);
    ck_assert_uint_eq(two.held, 0);
    ck_assert_uint_eq(fad_log_held(), 80);
    fad_log_say_held();
    fad_log_say_held();
    fad_log_of_client(&one, 2 * (uint64_t)SECOND, "one again");
}

START_TEST(one_client_does_not_use_up_anothers_lines)
{
    char *text = logged(log_two_clients);

    ck_assert_int_eq(count_of(text, "fad: one "), 21);
    ck_assert_int_eq(count_of(text, "fad: one again\n"), 1);
    ck_assert_int_eq(count_of(text, "fad: two\n"), 1);
    ck_assert_int_eq(count_of(text, "held back"), 1);
    ck_assert_int_eq(count_of(text, "fad: 80 lines held back"), 1);
    free(text);
}
END_TEST

static void log_many_clients(void)
{
    for (int i = 0; i < 1000; i++) {
        struct fad_log_client client;
        fad_log_client_init(&client);
        fad_log_of_client(i % 2 ? &client : NULL, SECOND, "client %d", i);
    }
    ck_assert_uint_eq(fad_log_held(), 800);
    fad_log(FAD_LOG_INFO, "the daemon's own");
    for (int i = 0; i < 100; i++)
        fad_log_of_client(NULL, 2 * (uint64_t)SECOND, "later %d", i);
    ck_assert_uint_eq(fad_log_held(), 850);
}

START_TEST(all_clients_together_have_a_limit)
{
    char *text = logged(log_many_clients);

    ck_assert_int_eq(count_of(text, "fad: client "), 200);
    ck_assert_int_eq(count_of(text, "fad: later "), 50);
    ck_assert_int_eq(count_of(text, "fad: the daemon's own\n"), 1);
    free(text);
}
END_TEST

static void log_quietly(void)
{
    struct fad_log_client client;

    fad_log_client_init(&client);
    fad_log_set_level(FAD_LOG_ERROR);
    for (int i = 0; i < 100; i++)
        fad_log_of_client(&client, SECOND, "client %d", i);
    fad_log(FAD_LOG_ERROR, "forged\nfad: line \x7f%c", 1);
    ck_assert_uint_eq(fad_log_held(), 0); /* nobody wants them */
    fad_log_say_held();
}

START_TEST(unwanted_lines_are_not_held_back)
{
    char *text = logged(log_quietly);

    ck_assert_str_eq(text, "fad: forged?fad: line ??\n");
    free(text);
}
END_TEST

/* --- The daemon ------------------------------------------------------------------------------ */

#define FLOOD 1000

/* A request of a type that nobody knows: refused, with a line. */
static void be_refused(int fd, uint64_t id)
{
    struct wire_frame frame = wire_ping_frame(id);

    frame.type = 999;
    wire_send_frame(fd, &frame);
    wire_expect(fd, id, FA_UNIMPLEMENTED, "header.type");
}

/* The number in front of the words, in the log's last line that has them. */
static unsigned long number_before(const char *text, const char *words)
{
    const char *at = text;

    for (const char *next = strstr(text, words); next; next = strstr(next + 1, words))
        at = next;
    ck_assert_msg(at > text, "no '%s' in: %s", words, text);
    while (at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return strtoul(at, NULL, 10);
}

START_TEST(flood_of_refusals_leaves_few_lines_and_their_number)
{
    int flooder = wire_greet(), other = wire_greet();
    int before, after;
    char *text;

    for (uint64_t id = 1; id <= FLOOD; id++)
        be_refused(flooder, id);
    text = test_daemon_log(wire_daemon());
    before = count_of(text, "refused");
    free(text);
    be_refused(other, 4242);
    text = test_daemon_log(wire_daemon());
    ck_assert_int_eq(count_of(text, "request 4242 refused"), 1);
    ck_assert_int_ge(before, 20);
    ck_assert_int_lt(before, FLOOD / 2); /* 20, and one a second */
    free(text);

    close(flooder);
    close(other);
    kill(wire_daemon()->pid, SIGTERM);
    ck_assert_int_eq(test_wait(wire_daemon()->pid, WIRE_SECONDS), 0);
    text = test_daemon_log(wire_daemon());
    after = count_of(text, "refused") - 1; /* the other's */
    ck_assert_uint_eq((unsigned)after + number_before(text, " of its lines were held back"), FLOOD);
    ck_assert_uint_gt(number_before(text, " lines held back"), 0);
    free(text);
    test_remove_directory(wire_daemon()->directory);
}
END_TEST

/* A pipe that takes nothing more, which nobody reads. */
static void make_full_pipe(int ends[2])
{
    static char bytes[65536];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    while (write(ends[1], bytes, sizeof bytes) > 0)
        ;
    while (write(ends[1], bytes, 1) > 0)
        ;
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, 0), 0); /* what the daemon writes to may block */
}

/* Reads until the text has the words. */
static void read_until(int fd, const char *words)
{
    static char text[1 << 20];
    size_t length = 0;

    while (!memmem(text, length, words, strlen(words))) {
        struct pollfd polled = {fd, POLLIN, 0};
        ssize_t got;

        ck_assert_msg(poll(&polled, 1, WIRE_SECONDS * 1000) == 1, "no '%s'", words);
        got = read(fd, text + length, sizeof text - length);
        ck_assert_int_gt(got, 0);
        length += (size_t)got;
    }
}

START_TEST(full_log_does_not_stop_the_daemon)
{
    char directory[64], path[96];
    const char *argv[] = {test_program("fad"), "--socket", path, "--backend", "cpu", NULL};
    struct test_process process;
    int ends[2], fd;

    make_full_pipe(ends);
    test_make_directory(directory);
    snprintf(path, sizeof path, "%s/fad.sock", directory);
    manager_begin(&process, argv, NULL, 0, ends[1]);
    fd = manager_connect(path);
    wire_hello(fd);
    for (uint64_t id = 1; id <= 10; id++)
        be_refused(fd, id);
    wire_serves(fd);
    /* When somebody reads again, it is told what is missing: "serving", and the 10. */
    read_until(ends[0], "fad: 11 lines held back");
    be_refused(fd, 11);
    read_until(ends[0], "request 11 refused");
    close(fd);
    kill(process.pid, SIGTERM);
    ck_assert_int_eq(test_wait(process.pid, WIRE_SECONDS), 0);
    test_remove_directory(directory);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("log");
    TCase *pure = tcase_create("pure"), *whole = tcase_create("daemon"),
          *full = tcase_create("full");

    tcase_add_test(pure, bucket_gives_its_burst_then_its_rate);
    tcase_add_test(pure, bucket_of_one);
    tcase_add_test(pure, one_client_does_not_use_up_anothers_lines);
    tcase_add_test(pure, all_clients_together_have_a_limit);
    tcase_add_test(pure, unwanted_lines_are_not_held_back);
    tcase_set_timeout(whole, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(whole, wire_setup, NULL); /* the test ends the daemon */
    tcase_add_test(whole, flood_of_refusals_leaves_few_lines_and_their_number);
    tcase_set_timeout(full, TEST_CASE_SECONDS);
    tcase_add_test(full, full_log_does_not_stop_the_daemon);
    suite_add_tcase(suite, pure);
    suite_add_tcase(suite, whole);
    suite_add_tcase(suite, full);
    return suite;
}
