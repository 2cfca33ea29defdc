/* libfa's inline tensors with strides: sent as they lie or packed, and scattered when received. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

/* q in (B, M, H, D) order: as it lies. k with gaps: packed. v of one row for all keys: that row. */
static void strided_script(struct fake_daemon *fake, int fd, int round)
{
    const struct fake_problem *sent = fake->data;
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    forward = fake_unpack_forward(&frame);
    ck_assert_uint_eq(forward->q->inline_bytes->length, 144);
    ck_assert_int_eq(forward->q->stride_batch, 18);
    ck_assert_int_eq(forward->q->stride_head, 3);
    ck_assert(forward->q->has_stride_row && forward->q->stride_row == 6);
    ck_assert_mem_eq(frame.payload, sent->q, 144);
    fake_check_input(forward->k, 192, 120);
    for (int i = 0; i < 30; i++) { /* see strided_inputs */
        int place = 1000 * (i / 15) + 10 * (i / 3 % 5) + i % 3;
        ck_assert_mem_eq(frame.payload + 192 + 4 * i, &(float){(float)place}, 4);
    }
    ck_assert_uint_eq(forward->v->inline_bytes->offset, 320);
    ck_assert_uint_eq(forward->v->inline_bytes->length, 12);
    ck_assert(forward->v->has_stride_batch && forward->v->stride_batch == 0);
    ck_assert(forward->v->has_stride_row && forward->v->stride_row == 0);
    ck_assert_uint_eq(frame.frame.payload_length, 332);
    fake_check_output(forward->o);
    fake_check_output(forward->lse);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

START_TEST(strided_inputs)
{
    static float k[2020];
    const struct fa_strides bmhd = {18, 3, 6}, gaps = {1000, 0, 10}, one = {0, 0, 0};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    for (int i = 0; i < 2020; i++)
        k[i] = (float)i;
    fake_problem_init(&problem);
    problem.args.q.strides = &bmhd;
    problem.args.k.strides = &gaps;
    problem.args.k.data = k;
    problem.args.v.strides = &one;
    fake_start(&fake, strided_script, &problem, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    fake_problem_check(&problem);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* Outputs are asked for without strides and come back packed. */
static void packed_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)fake, (void)round;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    forward = fake_unpack_forward(&frame);
    fake_check_output(forward->o);
    fake_check_output(forward->lse);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer_problem(fd, &frame);
    fake_frame_release(&frame);
}

/* o goes out in (B, M, H, D) order with a gap after each row, lse to every second place. */
START_TEST(strided_outputs)
{
    const struct fa_strides bmhd = {24, 4, 8}, second = {12, 6, 2};
    float o[48], lse[24];
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_client *client;

    for (int i = 0; i < 48; i++)
        o[i] = -5;
    for (int i = 0; i < 24; i++)
        lse[i] = -5;
    fake_problem_init(&problem);
    problem.args.o = (struct fa_tensor){.data = o, .strides = &bmhd};
    problem.args.lse = (struct fa_tensor){.data = lse, .strides = &second};
    fake_start(&fake, packed_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_OK);
    for (int i = 0; i < 48; i++) {
        int b = i / 24, m = i / 8 % 3, h = i / 4 % 2, d = i % 4;
        ck_assert(o[i] == (d == 3 ? -5 : (float)(1000 + ((b * 2 + h) * 3 + m) * 3 + d)));
    }
    for (int i = 0; i < 12; i++)
        ck_assert(lse[2 * i] == (float)(2000 + i) && lse[2 * i + 1] == -5);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_strides");
    TCase *tcase = tcase_create("client_strides");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, strided_inputs);
    tcase_add_test(tcase, strided_outputs);
    suite_add_tcase(suite, tcase);
    return suite;
}
