/* test_chaos.c: hundreds of clients that send sound requests of every kind, stop at any byte and
 * hang up or die, while two honest clients keep working: every answer of theirs is right, and
 * afterwards nothing is left of the others. The numbers are random and the same in every run. */
#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL 0x1fu

/* Every request about a region has a place of its own there, since requests run in any order. */
enum { REQUESTS = 12, PLACE = 8192, REGION = REQUESTS * PLACE };

/* --- Clients that come to no good ------------------------------------------------------------ */

struct request {
    struct wire_bytes bytes;
    int memfd; /* -1: none */
};

struct script {
    struct request requests[REQUESTS];
    size_t size;      /* of all */
    uint64_t regions; /* how many it may have by now; their ids begin with 1 */
};

static uint64_t below(uint64_t *seed, uint64_t limit)
{
    return wire_random(seed) % limit;
}

/* A forward of any kind: inline, shared, lodged at the place, or one of many ranges. */
static void write_forward(struct request *request, uint64_t id, uint64_t region, uint64_t place,
                          uint64_t *seed)
{
    static uint8_t memory[PLACE];
    const struct wire_region lodging = {.id = region, .memory = memory, .size = PLACE};
    struct wire_forward f;
    unsigned lodged = region ? (unsigned)below(seed, ALL + 1) : 0;

    if (below(seed, 8) == 0) {
        wire_forward_make_long(&f);
        f.message.kv_len = 1 << 20;
        lodged = 0;
    } else {
        wire_forward_make(&f, WIRE_SMALL, (unsigned)below(seed, ALL + 1) & ~lodged);
    }
    wire_forward_use_regions(&f, lodged, &lodging);
    for (int t = 0; t < FAD_TENSORS; t++)
        f.lodged[t].offset += place;
    f.message.has_priority = true;
    f.message.priority = (Fad__Priority)(1 + below(seed, 3));
    f.message.has_deadline_us = below(seed, 4) == 0;
    f.message.deadline_us = 1 + below(seed, 10000);
    wire_forward_append(&f, id, &request->bytes);
    if (f.memfd >= 0)
        request->memfd = fcntl(f.memfd, F_DUPFD_CLOEXEC, 0);
    wire_forward_free(&f);
}

static void write_request(struct script *script, uint64_t index, uint64_t *seed)
{
    static const uint8_t data[PLACE] = {1, 2, 3};
    struct request *request = &script->requests[index];
    struct wire_bytes *bytes = &request->bytes;
    const uint64_t id = 100 + index, place = index * PLACE, offset = place + below(seed, PLACE);
    const uint64_t region = below(seed, script->regions + 1);
    const uint64_t length = 1 + below(seed, place + PLACE - offset);
    struct wire_frame ping = wire_ping_frame(id);
    Fad__Stats stats = FAD__STATS__INIT;

    *request = (struct request){.memfd = -1};
    switch (below(seed, 11)) {
    case 0:
        wire_append_alloc(bytes, id, REGION);
        script->regions++;
        break;
    case 1:
        wire_append_register(bytes, id, below(seed, 2));
        request->memfd = wire_memfd(REGION, F_SEAL_SHRINK);
        script->regions++;
        break;
    case 2:
        wire_append_write(bytes, id, region, offset, data, length);
        break;
    case 3:
        wire_append_read(bytes, id, region, offset, length);
        break;
    case 4:
        wire_append_release(bytes, id, region);
        break;
    case 5:
        wire_append_cancel(bytes, id, 100 + below(seed, REQUESTS));
        break;
    case 6:
        wire_append_message(bytes, FA_FRAME_STATS, id, &stats.base, NULL, 0);
        break;
    case 7:
        wire_append_frame(bytes, &ping);
        break;
    default:
        write_forward(request, id, region, place, seed);
    }
    script->size += bytes->size;
}

static void script_write(struct script *script, uint64_t regions, uint64_t *seed)
{
    *script = (struct script){.regions = regions};
    for (uint64_t i = 0; i < REQUESTS; i++)
        write_request(script, i, seed);
}

static void script_free(struct script *script)
{
    for (int i = 0; i < REQUESTS; i++) {
        wire_free(&script->requests[i].bytes);
        if (script->requests[i].memfd >= 0)
            close(script->requests[i].memfd);
    }
}

/* Sends the script's bytes from the one offset up to the other. */
static void script_send(int fd, const struct script *script, size_t from, size_t to)
{
    size_t start = 0;

    for (int i = 0; i < REQUESTS && start < to; i++) {
        const struct request *request = &script->requests[i];
        size_t first = from > start ? from - start : 0, end = to - start;

        if (end > request->bytes.size)
            end = request->bytes.size;
        if (first == 0 && request->memfd >= 0)
            wire_try_send_fds(fd, request->bytes.data, end, 1, &request->memfd, 1);
        else if (first < end)
            wire_try_send(fd, request->bytes.data + first, end - first);
        start += request->bytes.size;
    }
}

/* A greeted connection, some with regions already. */
static int begin(uint64_t *regions, uint64_t *seed)
{
    int fd = wire_greet(), memfd;
    struct wire_region region;

    *regions = below(seed, 2) * 2;
    if (*regions) {
        wire_region_alloc(&region, fd, REGION);
        wire_region_free(&region);
        memfd = wire_memfd(REGION, F_SEAL_SHRINK);
        wire_register(fd, memfd, true);
        close(memfd);
    }
    return fd;
}

static void hang_up_somehow(int fd, uint64_t *seed)
{
    char reply[100];

    switch (below(seed, 4)) {
    case 0:
        shutdown(fd, SHUT_WR);
        break;
    case 1:
        shutdown(fd, SHUT_RDWR);
        break;
    case 2: /* in the midst of a reply, if there is one */
        (void)!recv(fd, reply, sizeof reply, MSG_DONTWAIT);
        break;
    }
}

/* So many clients, some at a time. */
static void misbehave(int clients, uint64_t *seed)
{
    enum { AT_ONCE = 20 };
    int fds[AT_ONCE];

    for (int done = 0; done < clients; done += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++) {
            struct script script;
            uint64_t regions;

            fds[i] = begin(&regions, seed);
            script_write(&script, regions, seed);
            script_send(fds[i], &script, 0, below(seed, script.size + 1));
            script_free(&script);
            if (below(seed, 2))
                hang_up_somehow(fds[i], seed);
        }
        for (int i = 0; i < AT_ONCE; i++)
            close(fds[i]);
    }
}

/* --- Clients that die ------------------------------------------------------------------------ */

static void die_in_time(int ready, uint64_t seed)
{
    struct script script;
    uint64_t regions;
    size_t cut;
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody */
    fd = begin(&regions, &seed);
    script_write(&script, regions, &seed);
    cut = below(&seed, script.size);
    script_send(fd, &script, 0, cut);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    script_send(fd, &script, cut, script.size);
    for (;;)
        pause();
}

static void kill_clients(int count, uint64_t *seed)
{
    for (int i = 0; i < count; i++) {
        int ready[2];
        char byte;
        pid_t pid;

        ck_assert_int_eq(pipe2(ready, O_CLOEXEC), 0);
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            die_in_time(ready[1], wire_random(seed));
        close(ready[1]);
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(kill(pid, SIGKILL), 0);
        ck_assert(WIFSIGNALED(test_wait(pid, WIRE_SECONDS)));
        wire_random(seed);
        close(ready[0]);
    }
}

/* --- Honest clients -------------------------------------------------------------------------- */

struct honest {
    pid_t pid;
    int stop; /* closed: it is to end */
};

static void work_honestly(int fd)
{
    struct wire_forward f;
    struct wire_region region;
    struct wire_reply reply;

    for (int lodged = 0; lodged < 2; lodged++) {
        wire_forward_make(&f, (struct wire_shape){1, 3, 1, 9, 40, 24}, lodged ? 0 : ALL);
        if (lodged) {
            wire_region_register(&region, fd, 1 << 15, true);
            wire_forward_use_regions(&f, ALL, &region);
        }
        wire_forward_run(fd, &f, 5);
        wire_forward_free(&f);
        if (lodged)
            wire_region_release(&region, fd);
    }
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_run(fd, &f, 6);
    wire_region_alloc(&region, fd, 1 << 14);
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

static void be_honest(int stop)
{
    struct pollfd stopped = {stop, POLLIN, 0};
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = wire_greet();
    do {
        work_honestly(fd);
    } while (poll(&stopped, 1, 0) == 0);
    close(fd);
    _exit(0);
}

static void honest_begin(struct honest *honest)
{
    int stop[2];

    ck_assert_int_eq(pipe2(stop, O_CLOEXEC), 0);
    honest->pid = fork();
    ck_assert_int_ge(honest->pid, 0);
    if (honest->pid == 0) {
        close(stop[1]);
        be_honest(stop[0]);
    }
    close(stop[0]);
    honest->stop = stop[1];
}

/* All that it was answered was right, or it has failed and said so. */
static void honest_end(struct honest *honest)
{
    close(honest->stop);
    ck_assert_int_eq(test_wait(honest->pid, WIRE_SECONDS), 0);
}

/* --- Together -------------------------------------------------------------------------------- */

static void expect_nothing_left(void)
{
    int fd = wire_greet();

    wire_expect_idle(fd);
    close(fd);
    wire_expect_rest();
}

START_TEST(honest_clients_are_served_among_hundreds_that_are_not)
{
    uint64_t seed = 20240607;
    struct honest honest[2];

    for (int i = 0; i < 2; i++)
        honest_begin(&honest[i]);
    for (int i = 0; i < 5; i++) {
        misbehave(100, &seed);
        kill_clients(8, &seed);
    }
    /* The later one holds a copy of the earlier one's pipe. */
    honest_end(&honest[1]);
    honest_end(&honest[0]);
    expect_nothing_left();
}
END_TEST

START_TEST(memory_does_not_grow_with_the_dead)
{
    uint64_t seed = 4711;
    long before;

    misbehave(100, &seed);
    expect_nothing_left();
    before = wire_daemon_resident();
    misbehave(200, &seed);
    expect_nothing_left();
    ck_assert_int_lt(wire_daemon_resident(), before + 32 * 1024);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        honest_clients_are_served_among_hundreds_that_are_not,
        memory_does_not_grow_with_the_dead, /* the last: it may be left out */
    };
    size_t count = sizeof tests / sizeof tests[0];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    test_skip("memory_does_not_grow_with_the_dead", "sanitizers keep memory of their own");
    count--;
#endif
    return wire_suite("chaos", tests, count);
}
