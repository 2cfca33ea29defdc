/* test_wire_messages.c: Forward messages that are wrong in one field each. Every one is refused
 * with that field's name, and the same connection then serves. */
#include "tests/helpers/wire_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A test: a sound request f, spoiled by the statements, is refused with status and field. */
#define REFUSES(name, status, field, ...)     \
    START_TEST(name)                          \
    {                                         \
        struct wire_forward f;                \
        int fd = wire_greet();                \
                                              \
        wire_forward_make(&f, WIRE_SMALL, 0); \
        __VA_ARGS__;                          \
        wire_refused(fd, &f, status, field);  \
        wire_forward_free(&f);                \
        close(fd);                            \
    }                                         \
    END_TEST

/* --- Presence -------------------------------------------------------------------------------- */

REFUSES(batch_missing, FA_INVALID_ARGUMENT, "batch", f.message.has_batch = false)
REFUSES(heads_missing, FA_INVALID_ARGUMENT, "heads", f.message.has_heads = false)
REFUSES(q_len_missing, FA_INVALID_ARGUMENT, "q_len", f.message.has_q_len = false)
REFUSES(kv_len_missing, FA_INVALID_ARGUMENT, "kv_len", f.message.has_kv_len = false)
REFUSES(head_dim_missing, FA_INVALID_ARGUMENT, "head_dim", f.message.has_head_dim = false)
REFUSES(dtype_missing, FA_INVALID_ARGUMENT, "dtype", f.message.has_dtype = false)
REFUSES(q_missing, FA_INVALID_ARGUMENT, "q", f.message.q = NULL)
REFUSES(k_missing, FA_INVALID_ARGUMENT, "k", f.message.k = NULL)
REFUSES(v_missing, FA_INVALID_ARGUMENT, "v", f.message.v = NULL)
REFUSES(o_missing, FA_INVALID_ARGUMENT, "o", f.message.o = NULL)

/* --- Shape and numbers ----------------------------------------------------------------------- */

REFUSES(kv_heads_that_do_not_divide_heads, FA_INVALID_ARGUMENT, "kv_heads", f.message.heads = 3;
        f.message.kv_heads = 2)
REFUSES(kv_heads_zero, FA_INVALID_ARGUMENT, "kv_heads", f.message.kv_heads = 0)
REFUSES(kv_heads_more_than_heads, FA_INVALID_ARGUMENT, "kv_heads", f.message.kv_heads = 8)
REFUSES(head_dim_zero, FA_INVALID_ARGUMENT, "head_dim", f.message.head_dim = 0)
REFUSES(head_dim_257, FA_INVALID_ARGUMENT, "head_dim", f.message.head_dim = 257)
REFUSES(head_dim_of_all_ones, FA_INVALID_ARGUMENT, "head_dim", f.message.head_dim = UINT32_MAX)
REFUSES(batch_beyond_31_bits, FA_INVALID_ARGUMENT, "batch", f.message.batch = UINT32_MAX)
REFUSES(q_len_beyond_31_bits, FA_INVALID_ARGUMENT, "q_len", f.message.q_len = 1u << 31)
REFUSES(kv_len_beyond_31_bits, FA_INVALID_ARGUMENT, "kv_len", f.message.kv_len = 1u << 31)
REFUSES(heads_beyond_31_bits, FA_INVALID_ARGUMENT, "heads", f.message.heads = 1u << 31;
        f.message.kv_heads = 1u << 31)
REFUSES(mask_out_of_range, FA_INVALID_ARGUMENT, "mask", f.message.has_mask = true;
        f.message.mask = (Fad__Mask)3)
REFUSES(mask_negative, FA_INVALID_ARGUMENT, "mask", f.message.has_mask = true;
        f.message.mask = (Fad__Mask)-1)
REFUSES(dtype_zero, FA_INVALID_ARGUMENT, "dtype", f.message.dtype = (Fad__DType)0)
REFUSES(dtype_out_of_range, FA_INVALID_ARGUMENT, "dtype", f.message.dtype = (Fad__DType)4)
REFUSES(dtype_float16_is_unimplemented, FA_UNIMPLEMENTED, "dtype",
        f.message.dtype = FAD__DTYPE__FLOAT16)
REFUSES(dtype_bfloat16_is_unimplemented, FA_UNIMPLEMENTED, "dtype",
        f.message.dtype = FAD__DTYPE__BFLOAT16)
REFUSES(scale_nan, FA_INVALID_ARGUMENT, "scale", f.message.has_scale = true; f.message.scale = NAN)
REFUSES(scale_infinite, FA_INVALID_ARGUMENT, "scale", f.message.has_scale = true;
        f.message.scale = -INFINITY)
REFUSES(scale_that_no_float_holds, FA_INVALID_ARGUMENT, "scale", f.message.has_scale = true;
        f.message.scale = 1e300)

/* --- Version --------------------------------------------------------------------------------- */

static void set_version(struct wire_forward *f, const char *bytes, size_t size)
{
    f->message.has_version = true;
    f->message.version = (ProtobufCBinaryData){size, (uint8_t *)(uintptr_t)bytes};
}

REFUSES(version_with_a_nul, FA_INVALID_ARGUMENT, "version", set_version(&f, "v4\0", 3))
REFUSES(version_that_is_only_a_nul, FA_INVALID_ARGUMENT, "version", set_version(&f, "", 1))
REFUSES(version_empty, FA_INVALID_ARGUMENT, "version", set_version(&f, "", 0))
REFUSES(version_of_bad_utf8, FA_INVALID_ARGUMENT, "version", set_version(&f, "v\xc3\x28", 3))
REFUSES(version_very_long, FA_INVALID_ARGUMENT, "version", static const char name[40000] = {'v'};
        set_version(&f, name, sizeof name))

START_TEST(version_unknown_lists_those_known)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0);
    set_version(&f, "v9", 2);
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_expect_text(fd, 5, FA_INVALID_ARGUMENT, "version", "v0 to v4");
    wire_serves(fd);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(each_version_serves_and_is_named)
{
    static const char *const names[] = {"v0", "v1", "v2", "v3", "v4", "auto"};
    int fd = wire_greet();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct wire_forward f;
        struct wire_reply reply;

        wire_forward_make(&f, (struct wire_shape){1, 2, 1, 20, 70, 64}, 0);
        set_version(&f, names[i], strlen(names[i]));
        ck_assert(wire_forward_send(fd, &f, 5));
        wire_receive(fd, &reply);
        wire_forward_check(&f, &reply);
        if (names[i][0] == 'v') /* what ran, or why another did */
            ck_assert(
                strcmp(reply.message->forward->version, names[i]) == 0 ||
                (reply.message->forward->redirected && reply.message->forward->redirect_reason));
        wire_release(&reply);
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

/* --- Messages that are no Forward ------------------------------------------------------------ */

/* Refused as a message, whatever it does to the decoder, and the payload behind it is skipped. */
static void expect_no_message(const void *message, size_t size)
{
    static const uint8_t payload[5000] = {0};
    struct wire_frame frame =
        wire_make(FA_FRAME_FORWARD, 5, message, size, payload, sizeof payload);
    int fd = wire_greet();

    wire_send_frame(fd, &frame);
    wire_expect(fd, 5, FA_INVALID_ARGUMENT, "message");
    wire_serves(fd);
    close(fd);
}

START_TEST(message_of_garbage)
{
    uint8_t garbage[1000];
    uint64_t seed = 5;

    memset(garbage, 0xff, sizeof garbage);
    expect_no_message(garbage, sizeof garbage);
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (uint8_t)wire_random(&seed);
    garbage[0] = 0x0f; /* wire type 7: there is none */
    expect_no_message(garbage, sizeof garbage);
}
END_TEST

START_TEST(message_that_ends_inside_a_field)
{
    expect_no_message("\x08", 1);
    expect_no_message("\x51\0\0\0", 4);     /* scale with 3 of 8 bytes */
    expect_no_message("\x5a\x7f\x0a\0", 4); /* q of 127 bytes with 2 */
}
END_TEST

START_TEST(message_with_a_nested_length_past_its_end)
{
    expect_no_message("\x5a\x04\x0a\x50\x08\0", 6);                        /* inside q */
    expect_no_message("\x5a\xff\xff\xff\xff\x0f", 6);                      /* 2^32 - 1 */
    expect_no_message("\x5a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\0", 11);   /* 2^63 - 1 */
    expect_no_message("\x5a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11); /* 2^63 */
}
END_TEST

/* 64 KiB of a piece over and over. */
static void expect_no_message_repeating(const uint8_t piece[4])
{
    uint8_t *message = malloc(FA_FRAME_MESSAGE_MAX);

    ck_assert_ptr_nonnull(message);
    for (size_t i = 0; i < FA_FRAME_MESSAGE_MAX; i++)
        message[i] = piece[i % 4];
    expect_no_message(message, FA_FRAME_MESSAGE_MAX);
    free(message);
}

START_TEST(message_of_64_kib_of_unknown_fields)
{
    expect_no_message_repeating((const uint8_t[]){0xc0, 0x3e, 0x80, 0x00}); /* field 1000: 0 */
}
END_TEST

START_TEST(message_of_one_unknown_field_of_64_kib)
{
    static const uint8_t start[] = {0xc2, 0x3e, 0xfb, 0xff, 0x03}; /* field 1000, 65531 bytes */
    uint8_t *message = calloc(1, FA_FRAME_MESSAGE_MAX);

    ck_assert_ptr_nonnull(message);
    memcpy(message, start, sizeof start);
    expect_no_message(message, FA_FRAME_MESSAGE_MAX);
    free(message);
}
END_TEST

START_TEST(message_of_thousands_of_repeated_submessages)
{
    expect_no_message_repeating((const uint8_t[]){0x5a, 0x02, 0x0a, 0x00}); /* q, inline_bytes */
}
END_TEST

START_TEST(message_empty_lacks_its_fields)
{
    struct wire_frame frame = wire_make(FA_FRAME_FORWARD, 5, NULL, 0, NULL, 0);
    int fd = wire_greet();

    wire_send_frame(fd, &frame);
    wire_expect(fd, 5, FA_INVALID_ARGUMENT, "batch");
    wire_serves(fd);
    close(fd);
}
END_TEST

/* A later minor version's fields are passed over. */
START_TEST(message_with_a_few_unknown_fields_is_served)
{
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    uint8_t *grown;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_free(&f.payload);
    wire_forward_append(&f, 5, &bytes); /* header and message alone */
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_append(&bytes, "\xc2\x3e\x03new\xc8\x3e\x07", 9);
    grown = bytes.data + 16;
    grown[0] = (uint8_t)(bytes.size - FA_FRAME_HEADER_SIZE); /* message_length; it is below 256 */
    ck_assert_uint_lt(bytes.size - FA_FRAME_HEADER_SIZE, 256);
    bytes.data[24] = (uint8_t)f.payload.size;
    bytes.data[25] = (uint8_t)(f.payload.size >> 8);
    wire_append(&bytes, f.payload.data, f.payload.size);
    wire_send(fd, bytes.data, bytes.size);
    wire_receive(fd, &reply);
    wire_forward_check(&f, &reply);
    wire_release(&reply);
    wire_free(&bytes);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        batch_missing,
        heads_missing,
        q_len_missing,
        kv_len_missing,
        head_dim_missing,
        dtype_missing,
        q_missing,
        k_missing,
        v_missing,
        o_missing,
        kv_heads_that_do_not_divide_heads,
        kv_heads_zero,
        kv_heads_more_than_heads,
        head_dim_zero,
        head_dim_257,
        head_dim_of_all_ones,
        batch_beyond_31_bits,
        q_len_beyond_31_bits,
        kv_len_beyond_31_bits,
        heads_beyond_31_bits,
        mask_out_of_range,
        mask_negative,
        dtype_zero,
        dtype_out_of_range,
        dtype_float16_is_unimplemented,
        dtype_bfloat16_is_unimplemented,
        scale_nan,
        scale_infinite,
        scale_that_no_float_holds,
        version_with_a_nul,
        version_that_is_only_a_nul,
        version_empty,
        version_of_bad_utf8,
        version_very_long,
        version_unknown_lists_those_known,
        each_version_serves_and_is_named,
        message_of_garbage,
        message_that_ends_inside_a_field,
        message_with_a_nested_length_past_its_end,
        message_of_64_kib_of_unknown_fields,
        message_of_one_unknown_field_of_64_kib,
        message_of_thousands_of_repeated_submessages,
        message_empty_lacks_its_fields,
        message_with_a_few_unknown_fields_is_served,
    };
    return wire_suite("wire_messages", tests, sizeof tests / sizeof tests[0]);
}
