/* Clients that share the daemon: whatever runs beside a request, in whatever turns, its bits are
 * those of the same request alone. */
#include "client/fa.h"
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

static struct test_daemon daemon_process;

static void setup(void)
{
    test_daemon_start(&daemon_process, NULL);
}

static void teardown(void)
{
    test_daemon_stop(&daemon_process);
}

/* A request with memory of its own, and what it gave when nothing else ran. */
struct request {
    struct fa_forward_args args;
    float *memory, *alone;
    size_t outputs; /* elements of o and lse, at the end of the memory */
    struct fa_request *in_flight;
};

/* lengths: [H, M, N, D], one batch. */
static void request_init(struct request *r, const uint32_t lengths[4], enum fa_priority priority)
{
    const size_t h = lengths[0], m = lengths[1], n = lengths[2], d = lengths[3];
    const size_t inputs = h * (m + 2 * n) * d;
    uint32_t state = 12345;

    r->outputs = h * m * (d + 1);
    r->memory = malloc((inputs + r->outputs) * sizeof(float));
    r->alone = malloc(r->outputs * sizeof(float));
    ck_assert(r->memory && r->alone);
    for (size_t i = 0; i < inputs; i++) {
        state = state * 1664525u + 1013904223u;
        r->memory[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
    }
    r->in_flight = NULL;
    r->args = (struct fa_forward_args){.batch = 1,
                                       .heads = lengths[0],
                                       .q_len = lengths[1],
                                       .kv_len = lengths[2],
                                       .head_dim = lengths[3],
                                       .mask = FA_MASK_CAUSAL_BOTTOM_RIGHT,
                                       .priority = priority};
    r->args.q.data = r->memory;
    r->args.k.data = r->memory + h * m * d;
    r->args.v.data = r->memory + h * (m + n) * d;
    r->args.o.data = r->memory + inputs;
    r->args.lse.data = r->memory + inputs + h * m * d;
}

static void poison(const struct request *r)
{
    memset(r->args.o.data, 0xff, r->outputs * sizeof(float));
}

static void run_alone(struct fa_client *client, const struct request *r)
{
    poison(r);
    ck_assert_int_eq(fa_forward(client, &r->args, NULL), FA_OK);
    memcpy(r->alone, r->args.o.data, r->outputs * sizeof(float));
}

static void submit(struct fa_client *client, struct request *r)
{
    poison(r);
    ck_assert_int_eq(fa_forward_submit(client, &r->args, &r->in_flight), FA_OK);
}

static void take(struct fa_client *client, struct request *r)
{
    ck_assert_msg(fa_wait(client, r->in_flight, NULL) == FA_OK, "%s", fa_last_error(client));
    ck_assert_mem_eq(r->args.o.data, r->alone, r->outputs * sizeof(float));
}

static void request_release(struct request *r)
{
    free(r->memory);
    free(r->alone);
}

/* Some are one unit, some have their keys cut into spans whose partial results are merged. */
static const uint32_t shapes[][4] = {{4, 700, 700, 64},  {2, 3, 20000, 64}, {3, 128, 128, 128},
                                     {1, 65, 9000, 80},  {8, 1, 300, 16},   {2, 512, 512, 64},
                                     {1, 64, 15361, 32}, {5, 33, 1, 8}};
#define SHAPES (sizeof shapes / sizeof shapes[0])

START_TEST(bits_do_not_change_beside_others)
{
    static const enum fa_priority priorities[] = {FA_PRIORITY_LOW, FA_PRIORITY_NORMAL,
                                                  FA_PRIORITY_HIGH};
    struct fa_client *clients[3], *flood;
    struct request requests[3][SHAPES], noise[SHAPES];

    ck_assert_int_eq(fa_client_open(&flood, daemon_process.socket), FA_OK);
    for (size_t s = 0; s < SHAPES; s++)
        request_init(&noise[s], shapes[s], FA_PRIORITY_NORMAL);
    for (size_t c = 0; c < 3; c++) {
        ck_assert_int_eq(fa_client_open(&clients[c], daemon_process.socket), FA_OK);
        for (size_t s = 0; s < SHAPES; s++) {
            request_init(&requests[c][s], shapes[s], priorities[c]);
            run_alone(clients[c], &requests[c][s]);
        }
    }
    for (int round = 0; round < 4; round++) {
        for (size_t s = 0; s < SHAPES; s++) {
            submit(flood, &noise[s]);
            for (size_t c = 0; c < 3; c++)
                submit(clients[c], &requests[c][(s + c + (size_t)round) % SHAPES]);
            if (s % 2) /* its ranges stop half-way; their partial results are nobody's */
                (void)fa_cancel(flood, noise[s - 1].in_flight);
        }
        for (size_t s = 0; s < SHAPES; s++) {
            for (size_t c = 0; c < 3; c++)
                take(clients[c], &requests[c][s]);
            (void)fa_wait(flood, noise[s].in_flight, NULL);
        }
    }
    for (size_t s = 0; s < SHAPES; s++)
        request_release(&noise[s]);
    for (size_t c = 0; c < 3; c++) {
        for (size_t s = 0; s < SHAPES; s++)
            request_release(&requests[c][s]);
        fa_client_close(clients[c]);
    }
    fa_client_close(flood);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("sharing");
    TCase *tests = tcase_create("sharing");

    tcase_set_timeout(tests, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, bits_do_not_change_beside_others);
    suite_add_tcase(suite, tests);
    return suite;
}
