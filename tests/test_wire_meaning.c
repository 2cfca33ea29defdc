/* test_wire_meaning.c: what attention means, once each from end to end: masks, rows without keys,
 * grouped heads, scales, masked NaN, odd places, very many heads, and the same bits. */
#include "tests/helpers/wire_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALL_SHARED 0x1fu

static float *payload_at(const struct wire_forward *f, enum fad_tensor tensor)
{
    return (float *)(void *)(f->payload.data + f->inlined[tensor].offset);
}

static void set_mask(struct wire_forward *f, enum fa_mask mask)
{
    f->message.has_mask = true;
    f->message.mask = (Fad__Mask)mask;
}

/* Sends f, awaits a success and returns the reply's o and lse, unchecked, packed; free() it. */
static float *raw_result(int fd, const struct wire_forward *f)
{
    struct wire_reply reply;
    float *values;

    ck_assert(wire_forward_send(fd, f, 5));
    wire_receive(fd, &reply);
    ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
    values = (float *)(void *)reply.payload;
    reply.payload = NULL;
    wire_release(&reply);
    return values;
}

/* The same, after the result was checked once. */
static float *result(int fd, const struct wire_forward *f)
{
    wire_forward_run(fd, f, 4);
    return raw_result(fd, f);
}

/* --- Masks and empty rows -------------------------------------------------------------------- */

START_TEST(causal_masks_of_unequal_lengths)
{
    static const uint32_t lengths[][2] = {{2, 5}, {5, 2}, {1, 7}, {7, 1}, {40, 70}, {70, 40}};
    int fd = wire_greet();

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int mask = FA_MASK_NONE; mask <= FA_MASK_CAUSAL_TOP_LEFT; mask++) {
            struct wire_forward f;

            wire_forward_make(&f, (struct wire_shape){1, 2, 2, lengths[i][0], lengths[i][1], 8}, 0);
            set_mask(&f, (enum fa_mask)mask);
            wire_forward_run(fd, &f, 5);
            wire_forward_free(&f);
        }
    }
    close(fd);
}
END_TEST

START_TEST(rows_that_see_no_key_are_zero_with_lse_minus_infinity)
{
    struct wire_forward f;
    float *o;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 5, 2, 16}, 0); /* o: 320 bytes, then lse */
    set_mask(&f, FA_MASK_CAUSAL_BOTTOM_RIGHT);
    o = result(fd, &f);
    for (int i = 0; i < 3 * 16; i++)
        ck_assert(o[i] == 0);
    for (int row = 0; row < 5; row++)
        ck_assert(row < 3 ? o[80 + row] == -INFINITY : isfinite(o[80 + row]));
    free(o);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(no_keys_at_all)
{
    int fd = wire_greet();

    for (unsigned shared = 0; shared <= ALL_SHARED; shared += ALL_SHARED) {
        struct wire_forward f;

        wire_forward_make(&f, (struct wire_shape){1, 2, 1, 3, 0, 16}, shared);
        wire_forward_run(fd, &f, 5); /* the reference: 0 and -inf */
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

START_TEST(no_rows_no_heads_or_no_batch_is_an_empty_success)
{
    static const struct wire_shape shapes[] = {
        {1, 2, 1, 0, 5, 8}, {0, 2, 1, 3, 5, 8}, {1, 0, 0, 3, 5, 8}, {0, 0, 0, 0, 0, 8}};
    int fd = wire_greet();

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (unsigned shared = 0; shared <= ALL_SHARED; shared += ALL_SHARED) {
            struct wire_forward f;
            struct wire_reply reply;

            wire_forward_make(&f, shapes[i], shared);
            ck_assert(wire_forward_send(fd, &f, 5));
            wire_receive(fd, &reply);
            wire_forward_check(&f, &reply);
            ck_assert_uint_eq(reply.frame.payload_length, 0);
            wire_release(&reply);
            wire_forward_free(&f);
        }
    }
    close(fd);
}
END_TEST

/* --- Values ---------------------------------------------------------------------------------- */

START_TEST(masked_keys_have_no_influence_whatever_they_hold)
{
    static const float poison[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    struct wire_forward f;
    float *clean;
    int fd = wire_greet();

    /* The last 8 keys are seen by no row; key 31 by the last row alone. */
    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 32, 40, 16}, 0);
    set_mask(&f, FA_MASK_CAUSAL_TOP_LEFT);
    clean = result(fd, &f);
    for (size_t p = 0; p < sizeof poison / sizeof poison[0]; p++) {
        float *o;

        for (size_t i = 31 * 16; i < 40 * 16; i++)
            payload_at(&f, FAD_K)[i] = payload_at(&f, FAD_V)[i] = poison[p];
        o = raw_result(fd, &f); /* not comparable with doubles: the last row overflows */
        ck_assert_mem_eq(o, clean, 31 * 16 * sizeof(float));
        ck_assert_mem_eq(o + 32 * 16, clean + 32 * 16, 31 * sizeof(float));
        free(o);
    }
    free(clean);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(very_negative_logits)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 3, 70, 16}, 0);
    f.message.has_scale = true;
    f.message.scale = 1.0;
    for (int i = 0; i < 3 * 16; i++)
        payload_at(&f, FAD_Q)[i] = -100.0f;
    for (int i = 0; i < 70 * 16; i++)
        payload_at(&f, FAD_K)[i] = 64.0f + (float)(i / 16 % 2); /* logits of -102400 and -104000 */
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(scale_absent_zero_and_negative)
{
    static const double scales[] = {0.0, -0.0, -1.0, 2.0, 1e-30};
    int fd = wire_greet();
    struct wire_forward f;

    wire_forward_make(&f, (struct wire_shape){1, 2, 2, 9, 33, 63}, 0);
    wire_forward_run(fd, &f, 5); /* 1 / sqrt(63) */
    f.message.has_scale = true;
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        f.message.scale = scales[i];
        wire_forward_run(fd, &f, 5);
    }
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(grouped_heads_and_kv_heads_left_out)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){2, 8, 2, 5, 9, 16}, 0);
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    wire_forward_make(&f, (struct wire_shape){2, 3, 3, 5, 9, 16}, 0);
    f.message.has_kv_heads = false; /* then as many as heads */
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* --- Places and sizes ------------------------------------------------------------------------ */

START_TEST(any_head_dim_at_offsets_of_4)
{
    static const uint32_t dims[] = {1, 5, 63, 64, 65, 255, 256};
    int fd = wire_greet();

    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        struct wire_forward f;

        wire_forward_make(&f, (struct wire_shape){1, 2, 1, 7, 33, dims[i]}, ALL_SHARED);
        wire_forward_grow(&f, 64);
        memmove(f.memory + 4, f.memory, f.memory_size - 4);
        for (int t = 0; t < FAD_TENSORS; t++)
            f.shared[t].offset += 4;
        wire_forward_run(fd, &f, 5);
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

START_TEST(strides_of_zero_repeat_an_input)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){3, 4, 4, 5, 33, 16}, 0);
    wire_forward_set_strides(&f, FAD_K, 0, 0, 16);
    wire_forward_set_strides(&f, FAD_V, 0, 0, 0);
    wire_forward_set_strides(&f, FAD_Q, 0, 80, 16);
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(more_than_65535_heads)
{
    static const struct wire_shape shapes[] = {{1, 65535, 65535, 1, 2, 4},
                                               {65536, 1, 1, 1, 2, 4},
                                               {400, 200, 100, 1, 2, 4},
                                               {2, 40000, 1, 1, 2, 4}};
    int fd = wire_greet();

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct wire_forward f;

        wire_forward_make(&f, shapes[i], i % 2 ? ALL_SHARED : 0);
        wire_forward_run(fd, &f, 5);
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

/* A sparse memfd of more than 7 GiB, near the most that a connection may map: byte offsets go past
 * 2^32, element offsets almost to 2^31. */
START_TEST(offsets_of_gigabytes_by_strides)
{
    const int64_t row = 1 << 28, head = 6LL << 28, far = head + row + 64;
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 2, 2, 2, 2, 16}, ALL_SHARED);
    wire_forward_grow_sparse(&f, (uint64_t)far * 4 + (1 << 20));
    for (int t = 0; t < FAD_TENSORS; t++) {
        wire_forward_set_strides(&f, (enum fad_tensor)t, 0, head, row);
        f.shared[t].offset = (uint64_t)t * 65536;
    }
    f.tensors[FAD_O].memfd = f.tensors[FAD_LSE].memfd = NULL; /* spans would overlap the inputs' */
    f.tensors[FAD_O].inline_bytes = &f.inlined[FAD_O];
    f.tensors[FAD_LSE].inline_bytes = &f.inlined[FAD_LSE];
    f.tensors[FAD_O].has_stride_batch = f.tensors[FAD_LSE].has_stride_batch = false;
    f.tensors[FAD_O].has_stride_head = f.tensors[FAD_LSE].has_stride_head = false;
    f.tensors[FAD_O].has_stride_row = f.tensors[FAD_LSE].has_stride_row = false;
    for (int t = 0; t <= FAD_V; t++)
        for (int64_t i = 0; i < 4; i++)
            for (int d = 0; d < 16; d++)
                wire_forward_at(&f, (enum fad_tensor)t)[i / 2 * head + i % 2 * row + d] =
                    (float)((t + 1) * (d - 7) + 5 * i) / 16;
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* --- The same bits --------------------------------------------------------------------------- */

START_TEST(sequence_alone_and_in_a_batch_gives_the_same_bits)
{
    const size_t sequence = 2 * 40 * 64;
    struct wire_forward batch, alone;
    float *together;
    int fd = wire_greet();

    wire_forward_make(&batch, (struct wire_shape){32, 2, 2, 40, 40, 64}, 0);
    wire_forward_make(&alone, (struct wire_shape){1, 2, 2, 40, 40, 64}, 0);
    together = result(fd, &batch);
    for (size_t b = 0; b < 32; b += 31) {
        float *o;

        for (int t = 0; t <= FAD_V; t++)
            memcpy(payload_at(&alone, (enum fad_tensor)t),
                   payload_at(&batch, (enum fad_tensor)t) + b * sequence, sequence * sizeof(float));
        for (int run = 0; run < 15; run++) {
            o = raw_result(fd, &alone);
            ck_assert_mem_eq(o, together + b * sequence, sequence * sizeof(float));
            free(o);
        }
    }
    free(together);
    wire_forward_free(&batch);
    wire_forward_free(&alone);
    close(fd);
}
END_TEST

/* A request of a kilobyte, by strides of 0: so many query rows leave no units but whole tiles over
 * all keys. Not on CUDA, where such a request wants more scratch or state than any limit allows. */
START_TEST(work_in_pieces_too_long_for_the_others_is_refused)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 1, 1, 1, 1, 8}, 0);
    for (int t = 0; t <= FAD_V; t++)
        wire_forward_set_strides(&f, (enum fad_tensor)t, 0, 0, 0);
    f.message.q_len = 19200;
    f.message.kv_len = 1 << 28;
    wire_refused(fd, &f, FA_UNIMPLEMENTED, "kv_len");
    f.message.q_len = 64; /* here the keys are cut, too: it is at work until we go */
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_ping(fd, 6);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *tests[16] = {
        causal_masks_of_unequal_lengths,
        rows_that_see_no_key_are_zero_with_lse_minus_infinity,
        no_keys_at_all,
        no_rows_no_heads_or_no_batch_is_an_empty_success,
        masked_keys_have_no_influence_whatever_they_hold,
        very_negative_logits,
        scale_absent_zero_and_negative,
        grouped_heads_and_kv_heads_left_out,
        any_head_dim_at_offsets_of_4,
        strides_of_zero_repeat_an_input,
        more_than_65535_heads,
        sequence_alone_and_in_a_batch_gives_the_same_bits,
    };
    size_t count = 12;
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

    if (!test_on_cuda())
        tests[count++] = work_in_pieces_too_long_for_the_others_is_refused;
    if (memory >= (uint64_t)16 << 30)
        tests[count++] = offsets_of_gigabytes_by_strides;
    else
        test_skip("offsets_of_gigabytes_by_strides", "the daemon maps at most half of the memory");
    return wire_suite("wire_meaning", tests, count);
}
