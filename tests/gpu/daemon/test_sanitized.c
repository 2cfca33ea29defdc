/* test_sanitized.c: each version by each way, once, in ragged shapes: what tests/check-gpu runs
 * with the daemon under compute-sanitizer ($FA_TEST_UNDER), whose findings are in its exit code.
 * With $FA_TEST_QUICK in one shape. Run with CK_FORK=no. */
#include "tests/gpu/daemon/peer.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL 0x1fu

static const char *const versions[] = {"v0", "v1", "v2", "v3", "v4"};

/* One that needs no mask and one that does; the last keys' tile and the last rows' are ragged. */
static const struct wire_shape shapes[] = {{1, 2, 1, 130, 150, 64}, {1, 2, 1, 130, 150, 40}};

static void make(struct wire_forward *f, size_t shape, const char *version, unsigned shared)
{
    wire_forward_make(f, shapes[shape], shared);
    wire_forward_set_version(f, version);
    f->message.has_mask = true;
    f->message.mask = shape > 0 ? FAD__MASK__CAUSAL_BOTTOM_RIGHT : FAD__MASK__NONE;
}

/* Inline, memfd, registered memfd, and a region of the daemon's. */
static void run_from_the_host(int fd, size_t shape, const char *version)
{
    struct wire_forward f;
    struct wire_region region;
    struct wire_reply reply;

    for (unsigned shared = 0; shared <= ALL; shared += ALL) {
        make(&f, shape, version, shared);
        wire_forward_run(fd, &f, 5);
        wire_forward_free(&f);
    }
    make(&f, shape, version, 0);
    wire_region_register(&region, fd, peer_bytes(&f, ALL), true);
    wire_forward_use_regions(&f, ALL, &region);
    wire_forward_run(fd, &f, 6);
    wire_region_release(&region, fd);
    wire_forward_free(&f);
    make(&f, shape, version, 0);
    wire_region_alloc(&region, fd, peer_bytes(&f, ALL));
    wire_forward_use_regions(&f, ALL, &region);
    wire_region_push(&region, fd);
    ck_assert(wire_forward_send(fd, &f, 7));
    wire_receive(fd, &reply);
    wire_region_pull(&region, fd);
    wire_forward_check(&f, &reply);
    wire_release(&reply);
    wire_region_release(&region, fd);
    wire_forward_free(&f);
}

/* By handle, with an event, and as a region. */
static void run_from_the_gpu(int fd, size_t shape, const char *version, struct peer *peer)
{
    struct peer_memory memory;
    struct wire_forward f;
    uint8_t event[64];

    make(&f, shape, version, 0);
    peer_alloc(peer, &memory, peer_bytes(&f, ALL));
    peer_event(peer, 0, event);
    peer_use_all(&f, ALL, &memory);
    peer_await(&f, FAD_Q, event);
    peer_push(&memory, 5);
    peer_tell(peer, "record 0");
    peer_run(fd, &f, 8, &memory);
    peer_register(&memory, fd, true);
    wire_forward_use_regions(&f, ALL, &memory.region);
    peer_push(&memory, 0);
    peer_run(fd, &f, 9, &memory);
    wire_release_region(fd, memory.region.id);
    wire_forward_free(&f);
    peer_free(&memory);
}

/* Whether the daemon opens a sound handle. Under a sanitizer it may not be able to; without one
 * that is a failure. */
static bool opens(int fd, struct peer *peer)
{
    struct peer_memory memory;
    struct wire_forward f;
    struct wire_reply reply;
    bool opened;

    peer_forward_make(&f, peer, &memory, WIRE_SMALL);
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_receive(fd, &reply);
    opened = reply.message->status == FAD__STATUS__OK;
    ck_assert_msg(
        opened || (reply.message->status == FAD__STATUS__IPC_REFUSED && getenv("FA_TEST_UNDER")),
        "%s: %s", fa_status_name((enum fa_status)reply.message->status), reply.message->text);
    if (!opened)
        test_skip("CUDA IPC under the sanitizer", reply.message->text);
    wire_release(&reply);
    wire_forward_free(&f);
    peer_free(&memory);
    return opened;
}

/* The daemon's pid: its own, or that of the sanitizer's child. */
static pid_t find_daemon(void)
{
    const char *socket = wire_daemon()->socket;
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    pid_t found = 0;

    ck_assert_ptr_nonnull(proc);
    while (!found && (entry = readdir(proc))) {
        char path[300], exe[PATH_MAX], line[4096];
        ssize_t length;
        int fd;

        snprintf(path, sizeof path, "/proc/%s/exe", entry->d_name);
        length = readlink(path, exe, sizeof exe);
        if (length < 4 || memcmp(exe + length - 4, "/fad", 4) != 0)
            continue;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        length = fd < 0 ? -1 : read(fd, line, sizeof line);
        close(fd);
        if (length > 0 && memmem(line, (size_t)length, socket, strlen(socket)))
            found = (pid_t)strtol(entry->d_name, NULL, 10);
    }
    closedir(proc);
    return found;
}

/* The code is the sanitizer's, where there is one. */
static void stop(void)
{
    struct test_daemon *daemon = wire_daemon();
    const pid_t pid = find_daemon();
    int status;
    char *log;

    ck_assert_msg(pid > 0, "no daemon below process %d", (int)daemon->pid);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    status = test_wait(daemon->pid, TEST_PROGRAM_SECONDS);
    log = test_daemon_log(daemon);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "ended with 0x%x: %s", status,
                  log);
    printf("%s", log);
    free(log);
    test_remove_directory(daemon->directory);
}

START_TEST(each_version_by_each_way)
{
    const bool quick = getenv("FA_TEST_QUICK") != NULL;
    struct peer peer;
    bool ipc;
    int fd;

    test_daemon_start(wire_daemon(), NULL);
    fd = wire_greet();
    peer_start(&peer, 0);
    ipc = opens(fd, &peer);
    for (size_t shape = 0; shape < (quick ? 1 : 2); shape++) {
        for (size_t v = 0; v < sizeof versions / sizeof versions[0]; v++) {
            run_from_the_host(fd, shape, versions[v]);
            if (ipc)
                run_from_the_gpu(fd, shape, versions[v], &peer);
        }
    }
    peer_stop(&peer);
    close(fd);
    stop();
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("sanitized");
    TCase *tcase = tcase_create("sanitized");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_test(tcase, each_version_by_each_way);
    suite_add_tcase(suite, tcase);
    return suite;
}
