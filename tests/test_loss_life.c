/* The daemon over a lost device: what stays the same, what is counted on, and when it gives up. */
#include "tests/helpers/loss.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* --- What stays ------------------------------------------------------------------------------- */

static char *proc_file(const char *name)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)wire_daemon()->pid, name);
    return test_read_file(path, NULL);
}

/* The line of /proc/PID/status. */
static void status_line(const char *name, char out[64])
{
    char *text = proc_file("status"), *line = strstr(text, name);

    ck_assert_ptr_nonnull(line);
    snprintf(out, 64, "%.*s", (int)strcspn(line, "\n"), line);
    free(text);
}

struct life {
    struct stat socket;
    char blocked[64], ignored[64], caught[64], umask[64];
    char *name, *limits, *arguments;
    int fds;
};

/* On a connection of its own, which the daemon has taken. */
static void look(struct life *life)
{
    int fd = wire_greet();

    wire_ping(fd, 2); /* by now connections that were closed before are gone */
    ck_assert_int_eq(stat(wire_daemon()->socket, &life->socket), 0);
    status_line("SigBlk:", life->blocked);
    status_line("SigIgn:", life->ignored);
    status_line("SigCgt:", life->caught);
    status_line("Umask:", life->umask);
    life->name = proc_file("comm");
    life->limits = proc_file("limits");
    life->arguments = proc_file("cmdline");
    life->fds = wire_daemon_fds();
    close(fd);
}

static void release(struct life *life)
{
    free(life->name);
    free(life->limits);
    free(life->arguments);
}

START_TEST(the_process_and_its_socket_are_the_same)
{
    struct life before, after;

    look(&before);
    ck_assert_str_eq(before.name, "fad-faulty\n");
    for (uint64_t count = 1; count <= 3; count++) {
        loss_happens(count);
        look(&after);
        ck_assert_uint_eq(after.socket.st_ino, before.socket.st_ino);
        ck_assert_uint_eq(after.socket.st_mode, before.socket.st_mode);
        ck_assert_str_eq(after.blocked, before.blocked);
        ck_assert_str_eq(after.ignored, before.ignored);
        ck_assert_str_eq(after.caught, before.caught);
        ck_assert_str_eq(after.umask, before.umask);
        ck_assert_str_eq(after.name, before.name);
        ck_assert_str_eq(after.limits, before.limits);
        ck_assert_str_eq(after.arguments, before.arguments);
        ck_assert_int_eq(after.fds, before.fds);
        release(&after);
    }
    release(&before);
}
END_TEST

/* Descriptors that a client sends, regions, and connections do not come through an exec. */
START_TEST(nothing_of_the_clients_is_kept)
{
    struct life before, after;
    struct wire_region region;
    int fds[4];

    look(&before);
    for (int i = 0; i < 4; i++) {
        fds[i] = wire_greet();
        wire_region_register(&region, fds[i], 4096, true);
        wire_region_free(&region);
    }
    loss_happens(1);
    look(&after);
    ck_assert_int_eq(after.fds, before.fds);
    ck_assert_int_eq(wire_daemon_mappings(), 0);
    for (int i = 0; i < 4; i++)
        wire_expect_end(fds[i]);
    release(&after);
    release(&before);
}
END_TEST

/* --- No gap ----------------------------------------------------------------------------------- */

/* Connects and tries for the lock without pause, as nothing else in this process does. */
struct nagger {
    pthread_t thread;
    char lock[128];
    bool stop;
    unsigned long connected, refused, locked;
    int error; /* of the first that was refused */
};

static void nag_once(struct nagger *nagger)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int lock = open(nagger->lock, O_RDWR | O_CLOEXEC);

    memcpy(address.sun_path, wire_daemon()->socket, strlen(wire_daemon()->socket));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        nagger->connected++;
    else if (nagger->refused++ == 0)
        nagger->error = errno;
    close(fd);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) == 0)
        nagger->locked++;
    close(lock);
}

static void *nag(void *argument)
{
    struct nagger *nagger = argument;

    while (!__atomic_load_n(&nagger->stop, __ATOMIC_RELAXED))
        nag_once(nagger);
    return NULL;
}

static void expect_second_is_refused(void)
{
    struct test_output output =
        test_run(test_program("tests/fad-faulty"), "--socket", wire_daemon()->socket);

    ck_assert_int_eq(output.code, 1);
    ck_assert_ptr_nonnull(strstr(output.err, "another fad serves"));
    test_output_release(&output);
}

START_TEST(no_connect_is_refused_and_the_lock_is_held)
{
    struct nagger nagger = {.stop = false};

    snprintf(nagger.lock, sizeof nagger.lock, "%s.lock", wire_daemon()->socket);
    ck_assert_int_eq(pthread_create(&nagger.thread, NULL, nag, &nagger), 0);
    for (uint64_t count = 1; count <= 5; count++) {
        loss_happens(count);
        expect_second_is_refused();
    }
    __atomic_store_n(&nagger.stop, true, __ATOMIC_RELAXED);
    ck_assert_int_eq(pthread_join(nagger.thread, NULL), 0);
    ck_assert_uint_gt(nagger.connected, 0);
    ck_assert_msg(nagger.refused == 0, "%lu of %lu: %s", nagger.refused, nagger.connected,
                  strerror(nagger.error));
    ck_assert_uint_eq(nagger.locked, 0);
}
END_TEST

/* --- Counters --------------------------------------------------------------------------------- */

/* The first version's that has requests, and the first user's. */
static void compare_stats(const struct wire_reply *before, const struct wire_reply *after)
{
    const Fad__StatsReply *b = before->message->stats, *a = after->message->stats;

    ck_assert_uint_eq(a->n_versions, b->n_versions);
    ck_assert_str_eq(a->versions[0]->version, b->versions[0]->version);
    ck_assert_uint_eq(a->versions[0]->total->count, b->versions[0]->total->count);
    ck_assert_double_eq(a->versions[0]->total->p50_us, b->versions[0]->total->p50_us);
    ck_assert_double_eq(a->versions[0]->queue->max_us, b->versions[0]->queue->max_us);
    ck_assert_uint_eq(a->versions[0]->counters->received_bytes,
                      b->versions[0]->counters->received_bytes +
                          b->versions[0]->counters->received_bytes / 10);
    ck_assert_uint_eq(a->n_users, b->n_users);
    ck_assert_uint_eq(a->users[0]->uid, b->users[0]->uid);
    ck_assert_uint_eq(a->users[0]->total->count, b->users[0]->total->count);
    ck_assert_uint_gt(a->uptime_us, b->uptime_us);
}

START_TEST(statistics_go_on)
{
    struct wire_reply before, after;
    int fd = wire_greet();

    for (int i = 0; i < 10; i++) {
        struct wire_forward f;
        wire_forward_make(&f, WIRE_SMALL, 0);
        wire_forward_run(fd, &f, 100 + (uint64_t)i);
        wire_forward_free(&f);
    }
    wire_stats(fd, &before);
    close(fd);
    loss_happens(1);
    fd = wire_greet();
    wire_stats(fd, &after);
    compare_stats(&before, &after);
    wire_release(&before);
    wire_release(&after);
    ck_assert_uint_eq(loss_counted(fd), 11);
    ck_assert_uint_eq(loss_counted_lost(fd), 1);
    close(fd);
    loss_happens(2);
    fd = wire_greet();
    ck_assert_uint_eq(loss_counted(fd), 12);
    ck_assert_uint_eq(loss_counted_lost(fd), 2);
    close(fd);
    ck_assert(loss_has_logged("fad: 1 request answered DEVICE_LOST"));
    ck_assert(!loss_has_logged("start from zero"));
}
END_TEST

START_TEST(fa_cli_shows_them)
{
    struct test_output output;

    loss_happens(1);
    output = test_run(test_program("fa-cli"), "stats", "--socket", wire_daemon()->socket);
    ck_assert_msg(output.code == 0 && strstr(output.out, "DEVICE_LOST") != NULL, "%s%s", output.out,
                  output.err);
    test_output_release(&output);
}
END_TEST

/* --- Too often -------------------------------------------------------------------------------- */

START_TEST(more_than_five_losses_in_a_minute_are_too_many)
{
    int fd;

    loss_setup();
    for (uint64_t count = 1; count <= 5; count++)
        loss_happens(count);
    fd = wire_greet();
    loss_send(fd, 5, FAULTY_SCALE_LOSE);
    wire_expect(fd, 5, FA_DEVICE_LOST, "");
    wire_expect_end(fd);
    loss_await_log("giving up: the device was lost more than 5 times within 60 s");
    loss_expect_exit(1);
}
END_TEST

/* Before any request, and before anyone has connected. */
START_TEST(losses_at_the_start_are_too_many)
{
    setenv(FAULTY_STARTS, "100", 1);
    loss_begin(NULL);
    loss_await_log("giving up: the device was lost more than 5 times within 60 s");
    loss_expect_exit(1);
}
END_TEST

START_TEST(losses_at_the_start_are_survived)
{
    int fd;

    setenv(FAULTY_STARTS, "3", 1);
    loss_begin(NULL);
    loss_await(3);
    fd = wire_greet();
    wire_serves(fd);
    close(fd);
    ck_assert(loss_has_logged("an illegal access was feigned at the start"));
    loss_teardown();
}
END_TEST

/* What auto has found is not looked for again. */
START_TEST(backend_is_what_it_was)
{
    char *log, *first;

    loss_begin((const char *const[]){"--backend", "auto", NULL});
    close(manager_connect(wire_daemon()->socket));
    loss_happens(1);
    log = test_daemon_log(wire_daemon());
    first = strstr(log, "no CUDA:");
    ck_assert_msg(!first || !strstr(first + 1, "no CUDA:"), "%s", log);
    free(log);
    loss_teardown();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("loss_life");
    TCase *lives = tcase_create("lives"), *ends = tcase_create("ends");

    tcase_set_timeout(lives, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(lives, loss_setup, loss_teardown);
    tcase_add_test(lives, the_process_and_its_socket_are_the_same);
    tcase_add_test(lives, nothing_of_the_clients_is_kept);
    tcase_add_test(lives, no_connect_is_refused_and_the_lock_is_held);
    tcase_add_test(lives, statistics_go_on);
    tcase_add_test(lives, fa_cli_shows_them);
    suite_add_tcase(suite, lives);
    tcase_set_timeout(ends, TEST_CASE_SECONDS);
    tcase_add_test(ends, more_than_five_losses_in_a_minute_are_too_many);
    tcase_add_test(ends, losses_at_the_start_are_too_many);
    tcase_add_test(ends, losses_at_the_start_are_survived);
    tcase_add_test(ends, backend_is_what_it_was);
    suite_add_tcase(suite, ends);
    return suite;
}
