/* libfa with memory and descriptors that are not there: the request at fault says so, and costs the
 * others nothing unless a part of it, or of its answer, is on the wire. And with shared memory that
 * is destroyed before its descriptor was sent. */
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <fcntl.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE  4096
#define COUNT 4

/* Of k and of v, far over a socket's buffer; one page more does not fit either. */
#define LARGE_ROWS (1u << 20)
#define LATE_ROWS  (LARGE_ROWS + PAGE / 16)

static float large[LATE_ROWS * FAKE_SMALL_WIDTH];

/* What is not there. LATE_INPUT: the end of an input whose beginning is sent. */
enum { INPUT, DESCRIPTOR, OUTPUT, LATE_INPUT, FAULTS };

static bool costs_all(int fault)
{
    return fault == OUTPUT || fault == LATE_INPUT;
}

static const char *fault_field(int fault)
{
    return fault == DESCRIPTOR ? "shared" : "data";
}

struct absent {
    void *page;
    float *late;             /* LATE_ROWS, of which the last page is not there */
    struct fa_shared shared; /* whose descriptor is not open */
};

static void absent_init(struct absent *absent)
{
    const size_t late_bytes = sizeof large;

    absent->page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(absent->page, MAP_FAILED);
    absent->late =
        mmap(NULL, late_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(absent->late, MAP_FAILED);
    ck_assert_int_eq(mprotect((char *)absent->late + late_bytes - PAGE, PAGE, PROT_NONE), 0);
    absent->shared = (struct fa_shared){large, sizeof large, 1000};
    ck_assert_int_eq(fcntl(absent->shared.fd, F_GETFD), -1);
}

static void absent_release(const struct absent *absent)
{
    munmap(absent->page, PAGE);
    munmap(absent->late, sizeof large);
}

static void absent_put(const struct absent *absent, struct fa_forward_args *args, int fault)
{
    if (fault == INPUT)
        args->q.data = absent->page;
    else if (fault == OUTPUT)
        args->o.data = absent->page;
    else if (fault == DESCRIPTOR)
        args->o = (struct fa_tensor){.data = large, .shared = &absent->shared};
    if (fault != LATE_INPUT)
        return;
    args->kv_len = LATE_ROWS;
    args->k.data = absent->late;
    args->v.data = large;
}

/* Waits until all is submitted; answers what is whole. */
static void tolerant_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    char bytes[1 << 16];
    int answered = 0;

    fake_hello(fd);
    ck_assert_int_eq(sem_wait(fake->data), 0);
    while ((round != LATE_INPUT || answered < 2) && fake_read(fd, &frame)) {
        if (frame.frame.type == FA_FRAME_PING)
            fake_answer(fd, &frame, NULL, 0);
        else
            fake_small_answer(fd, &frame);
        fake_frame_release(&frame);
        answered++;
    }
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        continue;
}

/* What came to the others of those in flight. */
static void check_others(struct fa_client *client, const struct fake_small *small, int fault)
{
    ck_assert_int_eq(fa_wait(client, small[3].request, NULL),
                     costs_all(fault) ? FA_DISCONNECTED : FA_OK);
    if (costs_all(fault))
        ck_assert_ptr_nonnull(
            strstr(fa_last_error(client), "another request ended with INVALID_ARGUMENT"));
    for (int i = 0; i < 2; i++) {
        enum fa_status status = fa_wait(client, small[i].request, NULL);
        ck_assert(status == FA_OK || (fault == LATE_INPUT && status == FA_DISCONNECTED));
    }
}

static void check_connection(struct fa_client *client, int fault)
{
    if (costs_all(fault))
        fake_check_closed(client, FA_INVALID_ARGUMENT);
    else
        ck_assert_int_eq(fa_ping(client), FA_OK);
}

/* The third of four that wait to be sent together. */
START_TEST(of_one_in_flight)
{
    struct absent absent;
    struct fake_daemon fake;
    sem_t go;

    absent_init(&absent);
    sem_init(&go, 0, 0);
    fake_start(&fake, tolerant_script, &go, FAULTS);
    for (int fault = 0; fault < FAULTS; fault++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small[COUNT];

        for (int i = 0; i < COUNT; i++) {
            fake_small_init(&small[i], i);
            small[i].args.kv_len = i == 0 ? LARGE_ROWS : 1;
            small[i].args.k.data = small[i].args.v.data = large;
            if (i == 2)
                absent_put(&absent, &small[i].args, fault);
            ck_assert_int_eq(fa_forward_submit(client, &small[i].args, &small[i].request), FA_OK);
        }
        sem_post(&go);
        ck_assert_int_eq(fa_wait(client, small[2].request, NULL), FA_INVALID_ARGUMENT);
        ck_assert_str_eq(fa_last_error_record(client)->field, fault_field(fault));
        check_others(client, small, fault);
        check_connection(client, fault);
        fa_client_close(client);
    }
    fake_stop(&fake);
    sem_destroy(&go);
    absent_release(&absent);
}
END_TEST

START_TEST(of_one_alone)
{
    struct absent absent;
    struct fake_daemon fake;
    sem_t go;

    absent_init(&absent);
    sem_init(&go, 0, FAULTS);
    fake_start(&fake, tolerant_script, &go, FAULTS);
    for (int fault = 0; fault < FAULTS; fault++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small;

        for (int i = 0; i < 2 && fault == LATE_INPUT; i++) { /* which the script answers first */
            fake_small_init(&small, i);
            ck_assert_int_eq(fa_forward(client, &small.args, NULL), FA_OK);
        }
        fake_small_init(&small, 0);
        absent_put(&absent, &small.args, fault);
        ck_assert_int_eq(fa_forward(client, &small.args, NULL), FA_INVALID_ARGUMENT);
        ck_assert_str_eq(fa_last_error_record(client)->field, fault_field(fault));
        check_connection(client, fault);
        fa_client_close(client);
    }
    fake_stop(&fake);
    sem_destroy(&go);
    absent_release(&absent);
}
END_TEST

/* --- Destroyed ------------------------------------------------------------------------------- */

static off_t memory_size(int fd)
{
    struct stat about;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &about), 0);
    return about.st_size;
}

/* The second of two has memory of two pages; in round 1 it does not come. */
static void destroyed_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;

    fake_hello(fd);
    ck_assert_int_eq(sem_wait(fake->data), 0);
    ck_assert(fake_small_read(fd, &frame, 1));
    fake_small_answer(fd, &frame);
    fake_frame_release(&frame);
    if (round == 0) {
        ck_assert(fake_small_read(fd, &frame, 1));
        ck_assert_int_eq(memory_size(frame.fd), 2 * PAGE);
        fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
    ck_assert(!fake_read(fd, &frame));
}

/* Submits, behind a request that fills the socket, one whose memory is destroyed at once. In round
 * 1 the process has no descriptor left for it. */
static void submit_destroyed(struct fa_client *client, struct fake_small *small, int round)
{
    struct rlimit limit, few;
    struct fa_shared shared;

    fake_small_init(&small[0], 0);
    small[0].args.kv_len = LARGE_ROWS;
    small[0].args.k.data = small[0].args.v.data = large;
    ck_assert_int_eq(fa_forward_submit(client, &small[0].args, &small[0].request), FA_OK);
    fake_small_init(&small[1], 1);
    ck_assert_int_eq(fa_shared_create(&shared, (size_t)2 * PAGE), FA_OK);
    small[1].args.o = (struct fa_tensor){.data = shared.data, .shared = &shared};
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){0, limit.rlim_max};
    if (round == 1)
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ck_assert_int_eq(fa_forward_submit(client, &small[1].args, &small[1].request), FA_OK);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    fa_shared_destroy(&shared);
}

START_TEST(destroyed_before_it_is_sent)
{
    struct fake_daemon fake;
    sem_t go;

    sem_init(&go, 0, 0);
    fake_start(&fake, destroyed_script, &go, 2);
    for (int round = 0; round < 2; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fake_small small[2];
        struct fa_shared other;

        submit_destroyed(client, small, round);
        ck_assert_int_eq(fa_shared_create(&other, (size_t)9 * PAGE), FA_OK); /* in its number */
        sem_post(&go);
        ck_assert_int_eq(fa_wait(client, small[1].request, NULL),
                         round == 0 ? FA_OK : FA_RESOURCE_EXHAUSTED);
        if (round == 1)
            ck_assert_str_eq(fa_last_error_record(client)->field, "shared");
        ck_assert_int_eq(fa_wait(client, small[0].request, NULL), FA_OK);
        fa_client_close(client);
        fa_shared_destroy(&other);
    }
    fake_stop(&fake);
    sem_destroy(&go);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_memory");
    TCase *tcase = tcase_create("client_memory");

    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, of_one_in_flight);
    tcase_add_test(tcase, of_one_alone);
    tcase_add_test(tcase, destroyed_before_it_is_sent);
    suite_add_tcase(suite, tcase);
    return suite;
}
