/* libfa's tensors in regions: how they are named on the wire, and what is refused before. */
#include "tests/helpers/fake_region.h"
#include "tests/helpers/test.h"

/* The regions of the test: one of the daemon's, and one that is registered read-only. */
enum { WRITABLE = 5, FIXED = 6, SIZE = 1024 };

/* Answers the two calls that make them. */
static void make_regions(int fd)
{
    struct fake_frame frame;

    fake_region_serve_alloc(fd, WRITABLE);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.frame.type, FA_FRAME_REGISTER_REGION);
    fake_region_answer(fd, &frame, FIXED, SIZE);
    fake_frame_release(&frame);
}

static void check_place(const Fad__Tensor *tensor, uint64_t id, uint64_t offset)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert(!tensor->inline_bytes && !tensor->cuda_ipc && !tensor->memfd);
    ck_assert_ptr_nonnull(tensor->region);
    ck_assert(tensor->region->has_region && tensor->region->has_offset);
    ck_assert_uint_eq(tensor->region->region, id);
    ck_assert_uint_eq(tensor->region->offset, offset);
}

/* The first forward has q inline and k shared beside regions, the second all in one region. */
static void places_script(struct fake_daemon *fake, int fd, int round)
{
    const float lse[12] = {[3] = 8};
    struct fake_frame frame;
    Fad__Forward *forward;
    (void)fake, (void)round;

    fake_hello(fd);
    make_regions(fd);
    ck_assert(fake_read(fd, &frame));
    ck_assert_int_ge(frame.fd, 0);
    ck_assert_uint_eq(frame.frame.payload_length, 144);
    forward = fake_unpack_forward(&frame);
    fake_check_input(forward->q, 0, 144);
    ck_assert(forward->k->memfd && !forward->k->region);
    check_place(forward->v, FIXED, SIZE - 120);
    ck_assert(!forward->v->has_stride_row);
    check_place(forward->o, WRITABLE, 4);
    ck_assert(forward->o->has_stride_row && forward->o->stride_row == 6);
    ck_assert(forward->o->stride_batch == 18 && forward->o->stride_head == 3);
    fake_check_output(forward->lse);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer(fd, &frame, lse, sizeof lse);
    fake_frame_release(&frame);

    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.fd, -1);
    ck_assert_uint_eq(frame.frame.payload_length, 0);
    forward = fake_unpack_forward(&frame);
    check_place(forward->q, WRITABLE, 0);
    check_place(forward->k, WRITABLE, 144);
    check_place(forward->v, WRITABLE, 264);
    check_place(forward->o, WRITABLE, 384);
    check_place(forward->lse, WRITABLE, SIZE - 48);
    fad__forward__free_unpacked(forward, NULL);
    fake_answer(fd, &frame, NULL, 0);
    fake_frame_release(&frame);
}

START_TEST(places)
{
    const struct fa_strides bmhd = {18, 3, 6};
    struct fake_daemon fake;
    struct fake_problem problem;
    struct fa_forward_args *args = &problem.args;
    struct fa_client *client;
    struct fa_region *writable, *fixed;
    struct fa_shared shared;

    fake_problem_init(&problem);
    fake_start(&fake, places_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&shared, SIZE), FA_OK);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_alloc(client, &writable, SIZE, NULL), FA_OK);
    ck_assert_int_eq(fa_region_register(client, &fixed, &shared, false), FA_OK);
    args->k = (struct fa_tensor){.data = shared.data, .shared = &shared};
    args->v = (struct fa_tensor){.region = fixed, .region_offset = SIZE - 120};
    args->o = (struct fa_tensor){.region = writable, .region_offset = 4, .strides = &bmhd};
    ck_assert_int_eq(fa_forward(client, args, NULL), FA_OK);
    ck_assert(problem.lse[3] == 8);

    args->q = (struct fa_tensor){.region = writable};
    args->k = (struct fa_tensor){.region = writable, .region_offset = 144};
    args->v = (struct fa_tensor){.region = writable, .region_offset = 264};
    args->o = (struct fa_tensor){.region = writable, .region_offset = 384};
    args->lse = (struct fa_tensor){.region = writable, .region_offset = SIZE - 48};
    ck_assert_int_eq(fa_forward(client, args, NULL), FA_OK);
    fa_client_close(client);
    fa_shared_destroy(&shared);
    fake_stop(&fake);
}
END_TEST

/* --- Refused --------------------------------------------------------------------------------- */

struct place_case {
    struct fake_problem problem;
    struct fa_region *writable, *fixed;
    struct fa_shared shared;
    struct fa_strides strides;
};

static void with_data(struct place_case *c)
{
    c->problem.args.q.region = c->writable;
}

static void with_shared(struct place_case *c)
{
    c->problem.args.k = (struct fa_tensor){.region = c->writable, .shared = &c->shared};
}

static void unaligned(struct place_case *c)
{
    c->problem.args.v = (struct fa_tensor){.region = c->fixed, .region_offset = 6};
}

static void past_end(struct place_case *c)
{
    c->problem.args.q = (struct fa_tensor){.region = c->fixed, .region_offset = SIZE - 140};
}

static void wrapping(struct place_case *c)
{
    c->problem.args.q = (struct fa_tensor){.region = c->fixed, .region_offset = UINT64_MAX - 7};
}

static void far_strides(struct place_case *c)
{
    c->strides = (struct fa_strides){(int64_t)1 << 59, 9, 3};
    c->problem.args.q = (struct fa_tensor){.region = c->fixed, .strides = &c->strides};
}

static void read_only_o(struct place_case *c)
{
    c->problem.args.o = (struct fa_tensor){.region = c->fixed};
}

static void read_only_lse(struct place_case *c)
{
    c->problem.args.lse = (struct fa_tensor){.region = c->fixed};
}

static const struct {
    void (*spoil)(struct place_case *c);
    const char *field;
} wrong[] = {
    {with_data, "q.data"},         {with_shared, "k.shared"},     {unaligned, "v.region.offset"},
    {past_end, "q.region.offset"}, {wrapping, "q.region.offset"}, {far_strides, "q.region.offset"},
    {read_only_o, "o.region"},     {read_only_lse, "lse.region"},
};

static void nothing_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    make_regions(fd);
    ck_assert(!fake_read(fd, &frame)); /* nothing that is wrong is sent */
}

START_TEST(wrong_places)
{
    struct place_case c;
    struct fake_daemon fake;
    struct fa_client *client, *other;

    ck_assert_int_eq(fa_client_open(&other, ""), FA_INVALID_ARGUMENT);
    fake_start(&fake, nothing_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&c.shared, SIZE), FA_OK);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_alloc(client, &c.writable, SIZE, NULL), FA_OK);
    ck_assert_int_eq(fa_region_register(client, &c.fixed, &c.shared, false), FA_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fa_request *request;

        fake_problem_init(&c.problem);
        wrong[i].spoil(&c);
        ck_assert_int_eq(fa_forward_submit(client, &c.problem.args, &request), FA_INVALID_ARGUMENT);
        ck_assert_ptr_null(request);
        ck_assert_str_eq(fa_last_error_record(client)->field, wrong[i].field);
    }
    fake_problem_init(&c.problem);
    c.problem.args.v = (struct fa_tensor){.region = c.writable};
    ck_assert_int_eq(fa_forward(other, &c.problem.args, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(other)->field, "v.region"); /* it is its client's */
    fa_client_close(client);
    fa_client_close(other);
    fa_shared_destroy(&c.shared);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_places");
    TCase *tcase = tcase_create("client_places");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, places);
    tcase_add_test(tcase, wrong_places);
    suite_add_tcase(suite, tcase);
    return suite;
}
