/* test_wire_region_forward.c: forwards whose tensors lie in regions, beside inline and shared ones:
 * right in every mix, and refused by the field's name where they do not fit. */
#include "tests/helpers/wire_region.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUTS  (1u << FAD_Q | 1u << FAD_K | 1u << FAD_V)
#define OUTPUTS (1u << FAD_O | 1u << FAD_LSE)
#define ALL     (INPUTS | OUTPUTS)

/* Runs a request of which tensors lie in an allocated region. */
static void run_with(int fd, struct wire_forward *f, const struct wire_region *region)
{
    struct wire_reply reply;

    wire_region_push(region, fd);
    ck_assert(wire_forward_send(fd, f, 5));
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, 5);
    wire_region_pull(region, fd);
    wire_forward_check(f, &reply);
    wire_release(&reply);
}

/* --- Mixes ----------------------------------------------------------------------------------- */

START_TEST(every_mix_of_inline_shared_and_lodged_tensors)
{
    enum { MIXES = 3 * 3 * 3 * 3 * 3 };
    struct wire_region allocated, registered;
    int fd = wire_greet();

    wire_region_alloc(&allocated, fd, 1 << 14);
    wire_region_register(&registered, fd, 1 << 14, true);
    for (int mix = 0; mix < MIXES; mix++) {
        const struct wire_region *region = mix % 2 ? &allocated : &registered;
        unsigned shared = 0, lodged = 0;
        struct wire_forward f;

        for (int t = 0, rest = mix; t < FAD_TENSORS; t++, rest /= 3) {
            shared |= (unsigned)(rest % 3 == 1) << t;
            lodged |= (unsigned)(rest % 3 == 2) << t;
        }
        wire_forward_make(&f, WIRE_SMALL, shared);
        wire_forward_use_regions(&f, lodged, region);
        if (region == &allocated)
            run_with(fd, &f, region);
        else
            wire_forward_run(fd, &f, 5);
        wire_forward_free(&f);
    }
    wire_region_release(&allocated, fd);
    wire_region_release(&registered, fd);
    close(fd);
}
END_TEST

START_TEST(each_tensor_in_a_region_of_its_own)
{
    struct wire_region regions[FAD_TENSORS];
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 3, 1, 17, 70, 63}, 0);
    for (int t = 0; t < FAD_TENSORS; t++) {
        wire_region_register(&regions[t], fd, wire_forward_span(&f, (enum fad_tensor)t) + 4,
                             t > FAD_V);
        wire_forward_use_region(&f, (enum fad_tensor)t, &regions[t], 4); /* to the last byte */
    }
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    for (int t = 0; t < FAD_TENSORS; t++)
        wire_region_release(&regions[t], fd);
    close(fd);
}
END_TEST

START_TEST(two_regions_of_the_same_memory)
{
    struct wire_region whole, again;
    struct wire_forward f;
    int fd = wire_greet();

    wire_region_register(&whole, fd, 1 << 14, false);
    again = whole;
    again.id = wire_register(fd, whole.memfd, true);
    ck_assert_uint_ne(again.id, whole.id);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, ALL, &again);
    for (int t = 0; t <= FAD_V; t++)
        f.lodged[t].region = whole.id; /* the inputs through the other */
    wire_forward_run(fd, &f, 5);
    wire_release_region(fd, whole.id);
    for (int t = 0; t <= FAD_V; t++)
        f.lodged[t].region = again.id; /* which the first one's end leaves alone */
    wire_forward_run(fd, &f, 6);
    wire_forward_free(&f);
    wire_region_release(&again, fd);
    close(fd);
}
END_TEST

/* As a client that keeps its tensors in rows of another order would have them. */
START_TEST(strided_tensors_leave_the_gaps_alone)
{
    struct wire_region region;
    struct wire_forward f;
    const float *o;
    int fd = wire_greet(), kept = 0;

    wire_region_alloc(&region, fd, 1 << 15);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_set_strides(&f, FAD_K, 0, 40, 8); /* both of the batch share it */
    f.tensors[FAD_O].inline_bytes = NULL;
    wire_forward_set_strides(&f, FAD_O, 3 * 4 * 10, 10, 4 * 10);
    f.tensors[FAD_LSE].inline_bytes = NULL;
    wire_forward_set_strides(&f, FAD_LSE, 3 * 4, 1, 4);
    wire_forward_use_regions(&f, ALL, &region);
    run_with(fd, &f, &region);
    o = (const float *)(const void *)wire_forward_bytes(&f, FAD_O);
    for (int row = 0; row < 2 * 3 * 4 - 1; row++)
        kept += o[row * 10 + 8] != o[row * 10 + 8] && o[row * 10 + 9] != o[row * 10 + 9];
    ck_assert_int_eq(kept, 2 * 3 * 4 - 1); /* still NaN */
    wire_forward_free(&f);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

/* One layer's output is the next one's query, and never leaves the daemon. */
START_TEST(output_of_one_request_is_the_input_of_the_next)
{
    const struct wire_shape shape = {1, 2, 2, 4, 6, 8};
    struct wire_region region;
    struct wire_forward first, second;
    uint64_t between;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 1 << 14);
    wire_forward_make(&first, shape, 0);
    between = wire_forward_span(&first, FAD_Q);
    wire_forward_use_region(&first, FAD_O, &region, 1024);
    run_with(fd, &first, &region);
    wire_forward_make(&second, shape, 0);
    memcpy(second.payload.data, wire_forward_bytes(&first, FAD_O), between); /* for the check */
    wire_forward_use_region(&second, FAD_Q, &region, 1024);
    wire_forward_run(fd, &second, 6);
    wire_forward_free(&first);
    wire_forward_free(&second);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

START_TEST(empty_and_keyless_problems_in_regions)
{
    struct wire_region region;
    struct wire_forward f;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 1 << 14);
    for (int which = 0; which < 3; which++) {
        wire_forward_make(&f, (struct wire_shape){which != 0, 4, 2, which == 1 ? 0 : 3, 0, 8}, 0);
        wire_forward_use_regions(&f, ALL, &region);
        run_with(fd, &f, &region);
        f.lodged[FAD_K].offset = region.size; /* nothing of it is there to be read */
        run_with(fd, &f, &region);
        f.lodged[FAD_K].offset += 4;
        wire_refused(fd, &f, FA_INVALID_ARGUMENT, "k.region.offset");
        wire_forward_free(&f);
    }
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

/* --- Refused --------------------------------------------------------------------------------- */

/* A test: a sound request with its tensors in a region, spoiled by the statements, is refused, the
 * field named, and the region is as it was. */
#define REFUSES(name, field, ...)                         \
    START_TEST(name)                                      \
    {                                                     \
        struct wire_region region;                        \
        struct wire_forward f;                            \
        int fd = wire_greet();                            \
                                                          \
        wire_region_alloc(&region, fd, 1 << 14);          \
        wire_forward_make(&f, WIRE_SMALL, 0);             \
        wire_forward_use_regions(&f, ALL, &region);       \
        wire_region_push(&region, fd);                    \
        __VA_ARGS__;                                      \
        wire_refused(fd, &f, FA_INVALID_ARGUMENT, field); \
        expect_unchanged(fd, &region);                    \
        wire_forward_free(&f);                            \
        wire_region_release(&region, fd);                 \
        close(fd);                                        \
    }                                                     \
    END_TEST

static void expect_unchanged(int fd, const struct wire_region *region)
{
    uint8_t *now = malloc(region->size);

    ck_assert_ptr_nonnull(now);
    wire_read(fd, region->id, 0, now, region->size);
    ck_assert(memcmp(now, region->memory, region->size) == 0);
    free(now);
}

static uint64_t last_offset(const struct wire_forward *f, enum fad_tensor tensor, uint64_t size)
{
    return size - wire_forward_span(f, tensor);
}

REFUSES(lodged_region_missing, "q.region.region", f.lodged[FAD_Q].has_region = false)
REFUSES(lodged_offset_missing, "lse.region.offset", f.lodged[FAD_LSE].has_offset = false)
REFUSES(lodged_offset_not_a_multiple_of_4, "v.region.offset", f.lodged[FAD_V].offset += 2)
REFUSES(lodged_input_4_past_the_end, "q.region.offset",
        f.lodged[FAD_Q].offset = last_offset(&f, FAD_Q, region.size) + 4)
REFUSES(lodged_output_4_past_the_end, "o.region.offset",
        f.lodged[FAD_O].offset = last_offset(&f, FAD_O, region.size) + 4)
REFUSES(lodged_lse_at_the_end, "lse.region.offset", f.lodged[FAD_LSE].offset = region.size)
REFUSES(lodged_offset_far_past_the_end, "k.region.offset",
        f.lodged[FAD_K].offset = (uint64_t)1 << 40)
REFUSES(lodged_offset_4_below_2_64, "k.region.offset", f.lodged[FAD_K].offset = UINT64_MAX - 3)
REFUSES(lodged_offset_and_span_of_2_64, "o.region.offset",
        f.lodged[FAD_O].offset = 0 - wire_forward_span(&f, FAD_O))
REFUSES(lodged_strides_past_the_end, "k.region.offset",
        wire_forward_set_strides(&f, FAD_K, 80, 40, 1 << 20))
REFUSES(lodged_and_inline, "q", f.tensors[FAD_Q].inline_bytes = &f.inlined[FAD_Q])
REFUSES(lodged_and_shared, "o", f.tensors[FAD_O].memfd = &f.shared[FAD_O];
        f.shared[FAD_O].has_offset = true)
REFUSES(lodged_o_over_q, "o", f.lodged[FAD_O].offset = f.lodged[FAD_Q].offset)
REFUSES(lodged_o_over_the_last_of_v, "o",
        f.lodged[FAD_O].offset = f.lodged[FAD_V].offset + wire_forward_span(&f, FAD_V) - 4)
REFUSES(lodged_lse_over_the_last_of_o, "o",
        f.lodged[FAD_LSE].offset = f.lodged[FAD_O].offset + wire_forward_span(&f, FAD_O) - 4)
REFUSES(lodged_lse_over_k, "lse", f.lodged[FAD_LSE].offset = f.lodged[FAD_K].offset)
REFUSES(lodged_output_strides_of_zero, "o", wire_forward_set_strides(&f, FAD_O, 0, 24, 8))

START_TEST(output_in_memory_registered_read_only)
{
    struct wire_region region;
    struct wire_forward f;
    int fd = wire_greet();

    wire_region_register(&region, fd, 1 << 14, false);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, INPUTS | 1u << FAD_O, &region);
    wire_refused(fd, &f, FA_INVALID_ARGUMENT, "o.region");
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, INPUTS | 1u << FAD_LSE, &region);
    wire_refused(fd, &f, FA_INVALID_ARGUMENT, "lse.region");
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_use_regions(&f, INPUTS, &region);
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        every_mix_of_inline_shared_and_lodged_tensors,
        each_tensor_in_a_region_of_its_own,
        two_regions_of_the_same_memory,
        strided_tensors_leave_the_gaps_alone,
        output_of_one_request_is_the_input_of_the_next,
        empty_and_keyless_problems_in_regions,
        lodged_region_missing,
        lodged_offset_missing,
        lodged_offset_not_a_multiple_of_4,
        lodged_input_4_past_the_end,
        lodged_output_4_past_the_end,
        lodged_lse_at_the_end,
        lodged_offset_far_past_the_end,
        lodged_offset_4_below_2_64,
        lodged_offset_and_span_of_2_64,
        lodged_strides_past_the_end,
        lodged_and_inline,
        lodged_and_shared,
        lodged_o_over_q,
        lodged_o_over_the_last_of_v,
        lodged_lse_over_the_last_of_o,
        lodged_lse_over_k,
        lodged_output_strides_of_zero,
        output_in_memory_registered_read_only,
    };
    return wire_suite("wire_region_forward", tests, sizeof tests / sizeof tests[0]);
}
