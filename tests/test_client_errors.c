/* libfa's refusals of wrong calls, and the daemon's as they come through. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <string.h>

/* Says hello, answers pings, and takes a forward for a failure. */
static void ping_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    while (fake_read(fd, &frame)) {
        ck_assert_int_eq(frame.frame.type, FA_FRAME_PING);
        fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

/* --- Arguments ------------------------------------------------------------------------------- */

struct argument_case {
    struct fake_problem problem;
    struct fa_shared shared, other;
    struct fa_strides strides;
};

static void no_q(struct argument_case *c)
{
    c->problem.args.q.data = NULL;
}

static void no_k(struct argument_case *c)
{
    c->problem.args.k.data = NULL;
}

static void no_v(struct argument_case *c)
{
    c->problem.args.v.data = NULL;
}

static void no_o(struct argument_case *c)
{
    c->problem.args.o.data = NULL;
}

static void unknown_dtype(struct argument_case *c)
{
    c->problem.args.dtype = (enum fa_dtype)99;
}

static void negative_batch(struct argument_case *c)
{
    c->strides = (struct fa_strides){-1, 9, 3};
    c->problem.args.q.strides = &c->strides;
}

static void negative_head(struct argument_case *c)
{
    c->strides = (struct fa_strides){18, -1, 3};
    c->problem.args.k.strides = &c->strides;
}

static void negative_row(struct argument_case *c)
{
    c->strides = (struct fa_strides){18, 9, -1};
    c->problem.args.o.strides = &c->strides;
}

static void overflowing_strides(struct argument_case *c)
{
    c->strides = (struct fa_strides){INT64_MAX, INT64_MAX, INT64_MAX};
    c->problem.args.v.strides = &c->strides;
}

static void overflowing_shape(struct argument_case *c)
{
    c->problem.args.batch = c->problem.args.heads = c->problem.args.head_dim = UINT32_MAX;
}

static void overlapping_output(struct argument_case *c)
{
    c->strides = (struct fa_strides){18, 9, 2};
    c->problem.args.o.strides = &c->strides;
}

static void overlapping_lse(struct argument_case *c)
{
    c->strides = (struct fa_strides){6, 0, 1};
    c->problem.args.lse.strides = &c->strides;
}

static void two_shared(struct argument_case *c)
{
    c->problem.args.q = (struct fa_tensor){.data = c->shared.data, .shared = &c->shared};
    c->problem.args.v = (struct fa_tensor){.data = c->other.data, .shared = &c->other};
}

static void before_shared(struct argument_case *c)
{
    c->problem.args.k =
        (struct fa_tensor){.data = (char *)c->shared.data - 4, .shared = &c->shared};
}

static void past_shared(struct argument_case *c)
{
    void *data = (char *)c->shared.data + c->shared.size - 140;
    c->problem.args.o = (struct fa_tensor){.data = data, .shared = &c->shared};
}

static void far_past_shared(struct argument_case *c)
{
    c->strides = (struct fa_strides){(int64_t)1 << 59, 9, 3};
    c->problem.args.q =
        (struct fa_tensor){.data = c->shared.data, .shared = &c->shared, .strides = &c->strides};
}

static void outside_shared(struct argument_case *c)
{
    c->problem.args.q = (struct fa_tensor){.data = c->problem.q, .shared = &c->shared};
}

static void unaligned_shared(struct argument_case *c)
{
    c->problem.args.q =
        (struct fa_tensor){.data = (char *)c->shared.data + 2, .shared = &c->shared};
}

static void destroyed_shared(struct argument_case *c)
{
    c->problem.args.q.shared = &c->shared;
    fa_shared_destroy(&c->shared);
}

static void long_version(struct argument_case *c)
{
    static char name[100000];
    memset(name, 'v', sizeof name - 1);
    c->problem.args.version = name;
}

static const struct {
    void (*spoil)(struct argument_case *c);
    const char *field;
} arguments[] = {
    {no_q, "q"},
    {no_k, "k"},
    {no_v, "v"},
    {no_o, "o"},
    {unknown_dtype, "dtype"},
    {negative_batch, "q.stride_batch"},
    {negative_head, "k.stride_head"},
    {negative_row, "o.stride_row"},
    {overflowing_strides, "v"},
    {overflowing_shape, "q"},
    {overlapping_output, "o"},
    {overlapping_lse, "lse"},
    {two_shared, "v.shared"},
    {before_shared, "k.shared"},
    {past_shared, "o.shared"},
    {far_past_shared, "q.shared"},
    {outside_shared, "q.shared"},
    {unaligned_shared, "q.memfd.offset"},
    {destroyed_shared, "q.shared"},
    {long_version, "version"},
};
#define ARGUMENTS (int)(sizeof arguments / sizeof arguments[0])

/* Refused before a byte is sent, by name, and the connection lives. */
START_TEST(wrong_arguments)
{
    struct argument_case c;
    struct fake_daemon fake;
    struct fa_client *client;
    const struct fa_error *error;
    struct fa_forward_result result;

    fake_start(&fake, ping_script, NULL, 1);
    client = fake_open(&fake);
    fake_problem_init(&c.problem);
    ck_assert_int_eq(fa_shared_create(&c.shared, 4096), FA_OK);
    ck_assert_int_eq(fa_shared_create(&c.other, 4096), FA_OK);
    arguments[_i].spoil(&c);
    memset(&result, 1, sizeof result);
    ck_assert_int_eq(fa_forward(client, &c.problem.args, &result), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(result.kernel, "");
    error = fa_last_error_record(client);
    ck_assert_int_eq(error->status, FA_INVALID_ARGUMENT);
    ck_assert_str_eq(error->field, arguments[_i].field);
    ck_assert_ptr_eq(strstr(fa_last_error(client), "INVALID_ARGUMENT: "), fa_last_error(client));
    ck_assert_ptr_nonnull(strstr(fa_last_error(client), error->text));
    ck_assert_int_eq(fa_ping(client), FA_OK);
    ck_assert_int_eq(fa_last_error_record(client)->status, FA_INVALID_ARGUMENT);
    ck_assert(c.problem.o[0] == -1);
    fa_client_close(client);
    fa_shared_destroy(&c.shared);
    fa_shared_destroy(&c.other);
    fake_stop(&fake);
}
END_TEST

static void no_lse_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    forward = fake_unpack_forward(&frame);
    ck_assert_ptr_null(forward->lse);
    fad__forward__free_unpacked(forward, NULL);
    fake_refuse(fd, &frame, FA_INTERNAL, NULL, NULL);
    fake_frame_release(&frame);
}

/* Without data an lse is absent, whatever else it has. */
START_TEST(lse_without_data)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    struct fa_strides strides = {-1, -1, -1};
    struct fa_shared shared = {0};

    fake_start(&fake, no_lse_script, NULL, 1);
    client = fake_open(&fake);
    fake_problem_init(&problem);
    problem.args.lse = (struct fa_tensor){.shared = &shared, .strides = &strides};
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_INTERNAL);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* More than the daemon takes in a frame would cost the connection. */
START_TEST(payload_limit)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_start(&fake, ping_script, NULL, 1);
    client = fake_open(&fake);
    fake_problem_init(&problem);
    problem.args.kv_len = (uint32_t)(FAKE_PAYLOAD_LIMIT / 48); /* half each, and q */
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(fa_last_error_record(client)->field, "payload");
    ck_assert_ptr_null(strstr(fa_last_error(client), "fa_")); /* no program's own words */
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

START_TEST(null_arguments)
{
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    fake_problem_init(&problem);
    ck_assert_int_eq(fa_client_open(NULL, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_ping(NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_forward(NULL, &problem.args, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error(NULL), "RESOURCE_EXHAUSTED: no memory for a client");
    ck_assert_int_eq(fa_last_error_record(NULL)->status, FA_RESOURCE_EXHAUSTED);
    ck_assert_ptr_null(fa_client_info(NULL));
    fa_client_set_timeout(NULL, 1);
    fa_client_close(NULL);

    fake_start(&fake, ping_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, NULL, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "args");
    ck_assert_int_eq(fa_ping(client), FA_OK);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- The daemon's refusals ------------------------------------------------------------------- */

#define A_TEXT "say it in other words"

static void refuse_script(struct fake_daemon *fake, int fd, int round)
{
    const int *status = fake->data;
    struct fake_frame frame;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    fake_refuse(fd, &frame, *status, round == 0 ? "k.inline_bytes.length" : NULL,
                round == 0 ? A_TEXT : NULL);
    fake_frame_release(&frame);
    while (fake_read(fd, &frame)) {
        fake_answer(fd, &frame, NULL, 0);
        fake_frame_release(&frame);
    }
}

/* Status, field and text unchanged, for every status that travels; a text where there is none. */
START_TEST(refusals)
{
    bool closes = _i == FA_PROTOCOL_ERROR || _i == FA_PROTOCOL_MISMATCH;
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;
    char line[400];

    fake_problem_init(&problem);
    fake_start(&fake, refuse_script, &_i, 2);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), _i);
    snprintf(line, sizeof line, "%s: k.inline_bytes.length: " A_TEXT,
             fa_status_name((enum fa_status)_i));
    ck_assert_str_eq(fa_last_error(client), line);
    ck_assert_int_eq(fa_ping(client), closes ? FA_DISCONNECTED : FA_OK);
    fa_client_close(client);

    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), _i);
    ck_assert_str_eq(fa_last_error_record(client)->field, "");
    ck_assert_str_eq(fa_last_error_record(client)->text, fa_status_text((enum fa_status)_i));
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_errors");
    TCase *tcase = tcase_create("client_errors");

    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, wrong_arguments, 0, ARGUMENTS);
    tcase_add_test(tcase, lse_without_data);
    tcase_add_test(tcase, payload_limit);
    tcase_add_test(tcase, null_arguments);
    tcase_add_loop_test(tcase, refusals, FA_INVALID_ARGUMENT, FA_INTERNAL + 1);
    suite_add_tcase(suite, tcase);
    return suite;
}
