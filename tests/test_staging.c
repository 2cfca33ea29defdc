/* Requests with tensors in host memory, on a backend whose kernels reach the device's only (the
 * scripted one sees to it): the bits are those of the same request where the kernel reads and
 * writes them in place, and no other byte of the client's memory changes. */
#include "tests/helpers/loopback_forward.h"

#include <stdlib.h>
#include <string.h>

#define ALL    0x1fu
#define BIT(t) (1u << FAD_##t)

#define SHAPE ((struct wire_shape){2, 4, 2, 3, 5, 10})

struct setting {
    struct wire_forward f;
    struct wire_region region; /* memory NULL: there is none */
    struct wire_region owned;  /* likewise */
};

static void use_region(struct setting *s, unsigned tensors)
{
    loopback_region(&s->region, 0, 1 << 16, true);
    memset(s->region.memory, 0xee, s->region.size);
    wire_forward_use_regions(&s->f, tensors, &s->region);
}

/* o ends 24 bytes before lse begins. */
static void inlined(struct setting *s)
{
    wire_forward_make(&s->f, (struct wire_shape){1, 2, 1, 3, 5, 7}, 0);
}

static void shared(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
}

static void lodged(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, 0);
    use_region(s, ALL);
}

static void mixed(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, BIT(K) | BIT(LSE));
    use_region(s, BIT(V));
}

static void mixed_otherwise(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, BIT(Q) | BIT(O));
    use_region(s, BIT(K) | BIT(LSE));
}

static void lse_inline_alone(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL & ~BIT(LSE));
}

/* Spans as long as the elements, in another order. */
static void rows_before_heads(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    loopback_spread(&s->f, FAD_Q, 120, 10, 40);
    loopback_spread(&s->f, FAD_K, 100, 10, 20);
    loopback_spread(&s->f, FAD_V, 100, 10, 20);
    loopback_spread(&s->f, FAD_O, 120, 10, 40);
    loopback_spread(&s->f, FAD_LSE, 12, 1, 4);
}

static void gaps_between_rows(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    loopback_spread(&s->f, FAD_Q, 160, 39, 13);
    loopback_spread(&s->f, FAD_K, 200, 57, 11);
    loopback_spread(&s->f, FAD_V, 120, 60, 12);
    loopback_spread(&s->f, FAD_O, 160, 39, 13);
    loopback_spread(&s->f, FAD_LSE, 100, 11, 3);
}

static void gaps_between_heads(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    loopback_spread(&s->f, FAD_K, 200, 51, 10);
    loopback_spread(&s->f, FAD_O, 300, 31, 10);
    loopback_spread(&s->f, FAD_LSE, 40, 5, 1);
}

static void gaps_in_a_region(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    loopback_spread(&s->f, FAD_Q, 160, 39, 13);
    loopback_spread(&s->f, FAD_O, 160, 10, 40);
    use_region(s, BIT(Q) | BIT(V));
}

/* All heads read the same keys, whose rows have gaps or none. */
static void repeated(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    wire_forward_set_strides(&s->f, FAD_V, 0, 0, 10);
    wire_forward_set_strides(&s->f, FAD_K, 0, 0, 10);
    wire_forward_set_strides(&s->f, FAD_Q, 0, 0, 0);
}

static void repeated_with_gaps(struct setting *s)
{
    uint64_t end;

    wire_forward_make(&s->f, SHAPE, ALL);
    end = s->f.memory_size;
    wire_forward_grow(&s->f, 4096);
    for (uint64_t i = end; i < s->f.memory_size; i += sizeof(float)) {
        float value = (float)(i * 31 % 101) / 50 - 1;
        memcpy(s->f.memory + i, &value, sizeof value);
    }
    s->f.shared[FAD_K].offset = end;
    s->f.shared[FAD_V].offset = end + 64;
    wire_forward_set_strides(&s->f, FAD_K, 400, 0, 10);
    wire_forward_set_strides(&s->f, FAD_V, 0, 400, 17);
}

static void repeated_inline(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, 0);
    wire_forward_set_strides(&s->f, FAD_K, 0, 0, 10);
    s->f.inlined[FAD_V].offset = 4; /* over q, and 4 bytes off */
}

static void inputs_in_one_place(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, ALL);
    s->f.shared[FAD_V].offset = s->f.shared[FAD_K].offset + 4;
}

static void without_lse(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, BIT(K));
    s->f.message.lse = NULL;
}

static void no_key(struct setting *s)
{
    wire_forward_make(&s->f, (struct wire_shape){2, 4, 2, 3, 0, 10}, BIT(V) | BIT(O));
}

static void no_row(struct setting *s)
{
    wire_forward_make(&s->f, (struct wire_shape){2, 4, 2, 0, 5, 10}, BIT(V) | BIT(O));
}

static void an_input_on_the_device(struct setting *s)
{
    wire_forward_make(&s->f, SHAPE, BIT(O));
    s->owned = (struct wire_region){.memory = calloc(1, 1 << 14), .size = 1 << 14, .memfd = -1};
    ck_assert_ptr_nonnull(s->owned.memory);
    s->owned.id = loopback_alloc(0, s->owned.size, 2);
    memset(s->f.payload.data, 0, s->f.payload.size); /* as a region of the daemon's is */
    wire_forward_use_region(&s->f, FAD_K, &s->owned, 64);
}

static const struct {
    void (*make)(struct setting *setting);
    unsigned copies; /* on a separate device: payload, other inputs, outputs */
} cases[] = {
    {inlined, 3},
    {shared, 5},
    {lodged, 5},
    {mixed, 5},
    {mixed_otherwise, 5},
    {lse_inline_alone, 5},
    {rows_before_heads, 5},
    {gaps_between_rows, 5},
    {gaps_between_heads, 5},
    {gaps_in_a_region, 5},
    {repeated, 5},
    {repeated_with_gaps, 5},
    {repeated_inline, 3},
    {inputs_in_one_place, 5},
    {without_lse, 3},
    {no_key, 3},
    {no_row, 0},
    {an_input_on_the_device, 3},
};

/* All bytes that the client can see. */
struct seen {
    struct wire_bytes memory, region, payload;
};

static void see(const struct setting *s, const struct wire_reply *reply, struct seen *seen)
{
    memset(seen, 0, sizeof *seen);
    wire_append(&seen->memory, s->f.memory, s->f.memory_size);
    wire_append(&seen->region, s->region.memory, s->region.size);
    if (reply)
        wire_append(&seen->payload, reply->payload, reply->frame.payload_length);
}

static void forget(struct seen *seen)
{
    wire_free(&seen->memory);
    wire_free(&seen->region);
    wire_free(&seen->payload);
}

static void run(const struct setting *s, bool separate, struct seen *seen)
{
    struct wire_reply reply;

    scripted.base.separate = separate;
    scripted.calls[SCRIPTED_COPY] = 0;
    loopback_send_forward(0, &s->f, 5);
    loopback_receive_reply(0, &reply);
    if (s->f.message.kv_len > 0 && s->f.message.q_len > 0)
        wire_forward_check(&s->f, &reply);
    ck_assert_int_eq((int)reply.message->status, FA_OK);
    see(s, &reply, seen);
    wire_release(&reply);
}

static void expect_same(const struct wire_bytes *a, const struct wire_bytes *b)
{
    ck_assert_uint_eq(a->size, b->size);
    ck_assert(memcmp(a->data, b->data, a->size) == 0);
}

START_TEST(the_bits_are_those_of_the_same_request_in_place)
{
    struct setting s = {.region = {.memfd = -1}, .owned = {.memfd = -1}};
    struct seen before, in_place, staged;

    loopback_hello(0);
    cases[_i].make(&s);
    see(&s, NULL, &before);
    run(&s, false, &in_place);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 0);
    if (s.f.memory)
        memcpy(s.f.memory, before.memory.data, s.f.memory_size);
    if (s.region.memory)
        memcpy(s.region.memory, before.region.data, s.region.size);
    run(&s, true, &staged);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], cases[_i].copies);
    expect_same(&in_place.memory, &staged.memory);
    expect_same(&in_place.region, &staged.region);
    expect_same(&in_place.payload, &staged.payload);
    forget(&before);
    forget(&in_place);
    forget(&staged);
    wire_forward_free(&s.f);
    if (s.region.memory)
        wire_region_free(&s.region);
    if (s.owned.memory)
        wire_region_free(&s.owned);
}
END_TEST

/* --- Places ---------------------------------------------------------------------------------- */

START_TEST(tensors_are_aligned_in_the_image)
{
    struct wire_forward f;
    struct wire_reply reply;
    const struct fa_tensors *tensors;

    loopback_hello(0);
    scripted.base.separate = true;
    scripted.hold[SCRIPTED_LAUNCH] = true;
    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 3, 5, 7}, BIT(K) | BIT(V) | BIT(LSE));
    f.shared[FAD_K].offset = f.shared[FAD_V].offset + 4;
    loopback_send_forward(0, &f, 5);
    loopback_turn();
    ck_assert_uint_eq(loopback_held(SCRIPTED_LAUNCH), 1);
    tensors = scripted.held[0].range->launch.tensors;
    ck_assert_uint_eq((uintptr_t)tensors->q % 64, 0);
    ck_assert_uint_eq((uintptr_t)tensors->k % 64, 0);
    ck_assert_uint_eq((uintptr_t)tensors->v % 64, 0);
    ck_assert_uint_eq((uintptr_t)tensors->o % 64, 0);
    ck_assert_uint_eq((uintptr_t)tensors->lse % 64, 0);
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_receive_reply(0, &reply);
    wire_forward_check(&f, &reply);
    wire_release(&reply);
    wire_forward_free(&f);
}
END_TEST

/* What is mapped into the daemon can be copied to any of its devices. */
START_TEST(a_registered_memfd_fixes_no_device)
{
    struct setting s = {.region = {.memfd = -1}};
    struct wire_reply reply;
    struct wire_region owned = {.memfd = -1};

    loopback_hello(0);
    lodged(&s);
    owned = (struct wire_region){.memory = calloc(1, 1 << 14), .size = 1 << 14, .memfd = -1};
    owned.id = loopback_alloc(0, owned.size, 2);
    wire_forward_use_region(&s.f, FAD_O, &owned, 0);
    loopback_send_forward(0, &s.f, 5);
    loopback_expect(0, 5, FA_INVALID_ARGUMENT, "o.region");
    scripted.base.separate = true;
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_send_forward(0, &s.f, 6);
    loopback_turn();
    ck_assert_uint_eq(loopback_held(SCRIPTED_LAUNCH), 1);
    ck_assert_uint_eq(scripted.held[0].range->device, 1);
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_receive_reply(0, &reply);
    ck_assert_int_eq((int)reply.message->status, FA_OK);
    wire_release(&reply);
    wire_region_free(&owned);
    wire_region_free(&s.region);
    wire_forward_free(&s.f);
}
END_TEST

/* --- Limits ---------------------------------------------------------------------------------- */

START_TEST(the_image_is_charged_as_staged)
{
    struct wire_forward f;
    uint64_t in_place;

    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    wire_forward_make(&f, SHAPE, ALL);
    loopback_send_forward(0, &f, 5);
    loopback_turn();
    in_place = loopback.account.used.of[FAD_STAGED];
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_expect(0, 5, FA_OK, NULL);
    ck_assert_uint_eq(loopback.account.used.of[FAD_STAGED], 0);
    scripted.base.separate = true;
    loopback_send_forward(0, &f, 6);
    loopback_turn();
    ck_assert_uint_eq(loopback.account.used.of[FAD_STAGED] - in_place,
                      f.shared[FAD_LSE].offset + 2 * 4 * 3 * 4);
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_expect(0, 6, FA_OK, NULL);
    loopback.account.limit.of[FAD_STAGED] = in_place + 1000;
    loopback_send_forward(0, &f, 7);
    loopback_expect(0, 7, FA_RESOURCE_EXHAUSTED, "");
    ck_assert_uint_eq(loopback.account.used.of[FAD_STAGED], 0);
    wire_forward_free(&f);
}
END_TEST

/* Strides of 0 describe more elements than any memory has: the span is what is copied. */
START_TEST(an_endless_input_takes_its_span)
{
    struct wire_forward f;

    loopback_hello(0);
    scripted.base.separate = scripted.hold[SCRIPTED_LAUNCH] = true;
    wire_forward_make_long(&f);
    loopback_send_forward(0, &f, 5);
    loopback_turn();
    ck_assert_uint_gt(loopback_held(SCRIPTED_LAUNCH), 0);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 1);
    scripted.fail[SCRIPTED_LAUNCH] = FA_INTERNAL; /* rather than run for minutes */
    while (loopback_held(SCRIPTED_LAUNCH) > 0)
        loopback_finish(SCRIPTED_LAUNCH);
    loopback_expect(0, 5, FA_INTERNAL, "");
    wire_forward_free(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("staging");
    TCase *tests = tcase_create("scripted");

    tcase_add_checked_fixture(tests, loopback_setup, loopback_teardown);
    tcase_add_loop_test(tests, the_bits_are_those_of_the_same_request_in_place, 0,
                        sizeof cases / sizeof cases[0]);
    tcase_add_test(tests, tensors_are_aligned_in_the_image);
    tcase_add_test(tests, a_registered_memfd_fixes_no_device);
    tcase_add_test(tests, the_image_is_charged_as_staged);
    tcase_add_test(tests, an_endless_input_takes_its_span);
    suite_add_tcase(suite, tests);
    return suite;
}
