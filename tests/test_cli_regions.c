/* fa-cli run and load with tensors in regions, on a daemon of the test's own that keeps regions and
 * computes with the float64 reference what lies in them. */
#include "kernels/fa_attention.h"
#include "tests/helpers/cli.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/fake_region.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGIONS_MAX 4

struct memory {
    uint8_t *bytes; /* NULL: released, or never made */
    uint64_t size;
};

struct keeper {
    unsigned
        forgets_from; /* the forward, counted from 1, from which on it leaves what is in regions
                              as it was; 0: none */
    bool refuses;     /* to make a region */
    struct memory regions[REGIONS_MAX];
    /* What was asked for: */
    unsigned made, releases, forwards;
    uint64_t written, read; /* bytes */
    uint64_t last;          /* the largest offset of an o */
};

static struct memory *find(struct keeper *keeper, uint64_t id, uint64_t offset, uint64_t size)
{
    struct memory *memory = &keeper->regions[id - 1];

    ck_assert(id >= 1 && id <= REGIONS_MAX && memory->bytes);
    ck_assert(offset <= memory->size && size <= memory->size - offset);
    return memory;
}

/* --- Requests on regions --------------------------------------------------------------------- */

static void make(struct keeper *keeper, int fd, const struct fake_frame *frame)
{
    Fad__AllocRegion *asked =
        fad__alloc_region__unpack(NULL, frame->frame.message_length, frame->message);

    if (keeper->refuses) {
        fake_refuse(fd, frame, FA_RESOURCE_EXHAUSTED, "size", "no room");
        fad__alloc_region__free_unpacked(asked, NULL);
        return;
    }
    ck_assert(asked && asked->has_size && asked->size > 0 && keeper->made < REGIONS_MAX);
    keeper->regions[keeper->made].bytes = calloc(1, asked->size);
    keeper->regions[keeper->made].size = asked->size;
    ck_assert_ptr_nonnull(keeper->regions[keeper->made].bytes);
    fake_region_answer(fd, frame, ++keeper->made, asked->size);
    fad__alloc_region__free_unpacked(asked, NULL);
}

static void write_bytes(struct keeper *keeper, int fd, const struct fake_frame *frame)
{
    Fad__WriteRegion *asked =
        fad__write_region__unpack(NULL, frame->frame.message_length, frame->message);
    uint64_t size = frame->frame.payload_length;

    ck_assert_ptr_nonnull(asked);
    memcpy(find(keeper, asked->region, asked->offset, size)->bytes + asked->offset, frame->payload,
           size);
    keeper->written += size;
    fake_answer(fd, frame, NULL, 0);
    fad__write_region__free_unpacked(asked, NULL);
}

static void read_bytes(struct keeper *keeper, int fd, const struct fake_frame *frame)
{
    Fad__ReadRegion *asked =
        fad__read_region__unpack(NULL, frame->frame.message_length, frame->message);

    ck_assert_ptr_nonnull(asked);
    keeper->read += asked->length;
    fake_answer(fd, frame,
                find(keeper, asked->region, asked->offset, asked->length)->bytes + asked->offset,
                asked->length);
    fad__read_region__free_unpacked(asked, NULL);
}

static void release(struct keeper *keeper, int fd, const struct fake_frame *frame)
{
    Fad__ReleaseRegion *asked =
        fad__release_region__unpack(NULL, frame->frame.message_length, frame->message);
    struct memory *memory;

    ck_assert_ptr_nonnull(asked);
    memory = find(keeper, asked->region, 0, 0);
    free(memory->bytes);
    memory->bytes = NULL;
    keeper->releases++;
    fake_answer(fd, frame, NULL, 0);
    fad__release_region__free_unpacked(asked, NULL);
}

/* --- Forward --------------------------------------------------------------------------------- */

/* Where the tensor's count floats lie: in a region, or for an inline input in the payload, for an
 * inline output in reply. */
static float *place(struct keeper *keeper, const Fad__Tensor *tensor, uint64_t count,
                    const struct fake_frame *frame, float *reply)
{
    const uint64_t bytes = count * sizeof(float);

    if (tensor->region)
        return (float *)(void *)(find(keeper, tensor->region->region, tensor->region->offset, bytes)
                                     ->bytes +
                                 tensor->region->offset);
    ck_assert_ptr_nonnull(tensor->inline_bytes);
    return reply ? reply : (float *)(void *)(frame->payload + tensor->inline_bytes->offset);
}

static void put(float *to, const double *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = (float)from[i];
}

static void forward(struct keeper *keeper, int fd, const struct fake_frame *frame)
{
    Fad__Forward *m = fake_unpack_forward(frame);
    struct fa_problem problem = {.batch = m->batch,
                                 .heads = m->heads,
                                 .kv_heads = m->kv_heads,
                                 .q_len = m->q_len,
                                 .kv_len = m->kv_len,
                                 .head_dim = m->head_dim,
                                 .dtype = FA_DTYPE_FLOAT32,
                                 .mask = (enum fa_mask)m->mask,
                                 .scale = fa_default_scale(m->head_dim)};
    const uint64_t rows = (uint64_t)m->batch * m->heads * m->q_len, count = rows * m->head_dim;
    const uint64_t kv_count = (uint64_t)m->batch * m->kv_heads * m->kv_len * m->head_dim;
    double *o = calloc(count, sizeof *o), *lse = calloc(rows, sizeof *lse);
    uint64_t lse_offset, size = 0;
    float *reply;
    struct fa_tensors tensors = {0};
    bool forgets;

    keeper->forwards++;
    forgets = keeper->forgets_from && keeper->forwards >= keeper->forgets_from;

    fa_set_packed(&problem);
    tensors.q = place(keeper, m->q, count, frame, NULL);
    tensors.k = place(keeper, m->k, kv_count, frame, NULL);
    tensors.v = place(keeper, m->v, kv_count, frame, NULL);
    ck_assert(fa_reference(&problem, &tensors, (struct fa_range){0, rows}, o, lse));
    size = fa_output_layout(m->o->region ? 0 : count * sizeof(float),
                            m->lse && !m->lse->region ? rows * sizeof(float) : 0, &lse_offset);
    reply = calloc(1, size + 1);
    ck_assert_ptr_nonnull(reply);
    if (!forgets || !m->o->region)
        put(place(keeper, m->o, count, frame, reply), o, count);
    if (m->lse && (!forgets || !m->lse->region))
        put(place(keeper, m->lse, rows, frame, reply + lse_offset / sizeof(float)), lse, rows);
    if (m->o->region && m->o->region->offset > keeper->last)
        keeper->last = m->o->region->offset;
    fake_answer(fd, frame, reply, size);
    free(reply);
    free(o);
    free(lse);
    fad__forward__free_unpacked(m, NULL);
}

static void serve(struct fake_daemon *fake, int fd, int round)
{
    struct keeper *keeper = fake->data;
    struct fake_frame frame;

    ck_assert_int_eq(round, 0);
    fake_hello(fd);
    while (fake_read(fd, &frame)) {
        switch (frame.frame.type) {
        case FA_FRAME_ALLOC_REGION:
            make(keeper, fd, &frame);
            break;
        case FA_FRAME_WRITE_REGION:
            write_bytes(keeper, fd, &frame);
            break;
        case FA_FRAME_READ_REGION:
            read_bytes(keeper, fd, &frame);
            break;
        case FA_FRAME_RELEASE_REGION:
            release(keeper, fd, &frame);
            break;
        default:
            ck_assert_int_eq(frame.frame.type, FA_FRAME_FORWARD);
            forward(keeper, fd, &frame);
        }
        fake_frame_release(&frame);
    }
    for (int i = 0; i < REGIONS_MAX; i++)
        free(keeper->regions[i].bytes);
}

#define SHAPE     "--shape", "2,4,5,8", "--kv-heads", "2", "--kv-len", "7"
#define Q_BYTES   1280u /* and o's */
#define K_BYTES   896u  /* and v's */
#define LSE_BYTES 160u

#define RUN_ON(keeper, command, ...)                                                               \
    cli_run_on(                                                                                    \
        serve, keeper,                                                                             \
        (const char *const[]){test_program("fa-cli"), command, SHAPE, "--transport", __VA_ARGS__}, \
        sizeof((const char *[]){"", "", SHAPE, "", __VA_ARGS__}) / sizeof(const char *))

/* --- run ------------------------------------------------------------------------------------- */

static const char *const ways[] = {"region", "q=region", "o=region", "region,k=inline,lse=inline",
                                   "lse=region"};

START_TEST(run_computes_in_regions)
{
    struct keeper keeper = {0};
    struct test_output output = RUN_ON(&keeper, "run", ways[_i], "--check", "--json");

    ck_assert_uint_eq(keeper.made, 1);
    ck_assert_uint_eq(keeper.forwards, 1);
    cli_expect_output(&output, "\"passed\":true");
}
END_TEST

START_TEST(run_says_how_tensors_travel)
{
    struct keeper keeper = {0};
    struct test_output output = RUN_ON(&keeper, "run", "region");

    cli_expect_output(&output, ", sent region\n");
}
END_TEST

/* Inputs are written once; nobody looks at the outputs. */
START_TEST(only_the_pass_repeats)
{
    struct keeper keeper = {0};
    struct test_output output = RUN_ON(&keeper, "run", "region", "--repeat", "5");

    cli_expect_output(&output, "latency   of 5, in us");
    ck_assert_uint_eq(keeper.forwards, 5);
    ck_assert_uint_eq(keeper.written, Q_BYTES + 2 * K_BYTES);
    ck_assert_uint_eq(keeper.read, 0);
}
END_TEST

/* Only what is saved or checked is read: the last pass's o and lse, or every pass's. */
START_TEST(outputs_are_read_when_wanted)
{
    struct keeper keeper = {0};
    char path[96];
    struct test_output output;

    snprintf(path, sizeof path, "%s/o.npy", cli_directory);
    output = RUN_ON(&keeper, "run", "region", "--repeat", "5", "--out", path);
    cli_expect_output(&output, "latency   of 5, in us");
    ck_assert_uint_eq(keeper.read, Q_BYTES);
    keeper = (struct keeper){0};
    output = RUN_ON(&keeper, "run", "region", "--repeat", "5", "--check");
    cli_expect_output(&output, "PASS");
    ck_assert_uint_eq(keeper.read, 5 * (Q_BYTES + LSE_BYTES));
}
END_TEST

/* What the daemon did not write is poison, also in a region and at a repeat. */
START_TEST(what_is_not_written_shows)
{
    struct keeper keeper = {.forgets_from = 2};
    struct test_output output = RUN_ON(&keeper, "run", ways[_i], "--check", "--repeat", "2");

    if (strstr(ways[_i], "q="))
        cli_expect_output(&output, "PASS");
    else
        cli_expect_error(&output, 4, "--check: ");
}
END_TEST

/* As a pass that is refused is: --json has an object. */
START_TEST(a_refused_region_is_told)
{
    struct keeper keeper = {.refuses = true};
    struct test_output output = RUN_ON(&keeper, "run", "region", "--json");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(object != NULL, "exit code %d: %s", output.code, output.err);
    ck_assert_str_eq(cli_text(object, "status"), "RESOURCE_EXHAUSTED");
    ck_assert_str_eq(cli_text(object, "field"), "size");
    ck_assert_str_eq(cli_text(object, "text"), "no room");
    cJSON_Delete(object);
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: size: no room");
    output = RUN_ON(&keeper, "run", "region");
    ck_assert_str_eq(output.out, "");
    cli_expect_error(&output, 1, "RESOURCE_EXHAUSTED: size: no room");
}
END_TEST

/* --- load ------------------------------------------------------------------------------------ */

START_TEST(load_computes_in_regions)
{
    struct keeper keeper = {0};
    struct test_output output = RUN_ON(&keeper, "load", ways[_i], "--inflight", "3", "--warmup",
                                       "0", "--duration", "0.3", "--json");
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(output.code == 0 && object, "exit code %d: %s", output.code, output.err);
    ck_assert(cli_number(object, "requests") == keeper.forwards - 1);
    ck_assert(cli_number(object, "compared") == 1);
    ck_assert(cli_number(object, "different") == 0);
    /* The reference's is given back, that of the load ends with the connection. */
    ck_assert_uint_eq(keeper.made, strstr(ways[_i], "lse=region") ? 0 : 2);
    ck_assert_uint_eq(keeper.releases, keeper.made / 2);
    /* Each of the three in flight has a part of its own. */
    if (strstr("region o=region", ways[_i]))
        ck_assert_uint_ge(keeper.last, keeper.regions[1].size * 2 / 3);
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* By the pass before the load, or by the last ones after it. */
START_TEST(load_sees_what_is_not_written)
{
    struct keeper keeper = {.forgets_from = 1};
    struct test_output output = RUN_ON(&keeper, "load", "region");

    cli_expect_error(&output, 4, "a pass alone, before the load, is not what it should be");
    keeper = (struct keeper){.forgets_from = 2};
    output = RUN_ON(&keeper, "load", "region", "--warmup", "0", "--duration", "0.3");
    cli_expect_error(&output, 4, "1 of 1 client got a result that differs");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-regions");
    TCase *tcase = tcase_create("cli-regions");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_loop_test(tcase, run_computes_in_regions, 0, 5);
    tcase_add_test(tcase, run_says_how_tensors_travel);
    tcase_add_test(tcase, only_the_pass_repeats);
    tcase_add_test(tcase, outputs_are_read_when_wanted);
    tcase_add_loop_test(tcase, what_is_not_written_shows, 0, 5);
    tcase_add_test(tcase, a_refused_region_is_told);
    tcase_add_loop_test(tcase, load_computes_in_regions, 0, 5);
    tcase_add_test(tcase, load_sees_what_is_not_written);
    suite_add_tcase(suite, tcase);
    return suite;
}
