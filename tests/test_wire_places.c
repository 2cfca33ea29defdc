/* test_wire_places.c: where a request says its tensors lie: locations, offsets, lengths, strides
 * and overlaps, refused by the field's name, with nothing read or written past any end. */
#include "tests/helpers/wire_forward.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define ALL_SHARED 0x1fu

/* A test: a sound request f with the tensors of the mask in a memfd, spoiled by the statements, is
 * refused with status and field, and the connection then serves. */
#define REFUSES_IN(name, mask, status, field, ...) \
    START_TEST(name)                               \
    {                                              \
        struct wire_forward f;                     \
        int fd = wire_greet();                     \
                                                   \
        wire_forward_make(&f, WIRE_SMALL, mask);   \
        __VA_ARGS__;                               \
        wire_refused(fd, &f, status, field);       \
        wire_forward_free(&f);                     \
        close(fd);                                 \
    }                                              \
    END_TEST
#define REFUSES(name, field, ...) REFUSES_IN(name, 0, FA_INVALID_ARGUMENT, field, __VA_ARGS__)
#define REFUSES_SHARED(name, field, ...) \
    REFUSES_IN(name, ALL_SHARED, FA_INVALID_ARGUMENT, field, __VA_ARGS__)
#define REFUSES_IPC(name, status, field, ...) \
    REFUSES_IN(name, 0, status, field, wire_forward_use_ipc(&f, FAD_K); __VA_ARGS__)

/* --- Inline ---------------------------------------------------------------------------------- */

REFUSES(inline_offset_missing, "q.inline_bytes.offset", f.inlined[FAD_Q].has_offset = false)
REFUSES(inline_length_missing, "k.inline_bytes.length", f.inlined[FAD_K].has_length = false)
REFUSES(inline_offset_not_a_multiple_of_4, "q.inline_bytes.offset", f.inlined[FAD_Q].offset += 2)
REFUSES(inline_offset_just_below_2_64, "q.inline_bytes.offset",
        f.inlined[FAD_Q].offset = UINT64_MAX - 3)
REFUSES(inline_offset_8_below_2_64, "q.inline_bytes.offset",
        f.inlined[FAD_Q].offset = UINT64_MAX - 7;
        f.inlined[FAD_Q].length = 8)
REFUSES(inline_length_of_all_ones, "k.inline_bytes.offset", f.inlined[FAD_K].length = UINT64_MAX)
REFUSES(inline_length_4_short_of_the_span, "v.inline_bytes.length", f.inlined[FAD_V].length -= 4)
REFUSES(inline_length_zero, "q.inline_bytes.length", f.inlined[FAD_Q].length = 0)
REFUSES(inline_tensor_4_past_the_payload, "v.inline_bytes.offset",
        f.inlined[FAD_V].offset = f.payload.size - f.inlined[FAD_V].length + 4)
REFUSES(inline_tensors_without_a_payload, "q.inline_bytes.offset", f.payload.size = 0)
REFUSES(k_longer_than_its_bytes, "k.inline_bytes.length", f.message.kv_len = 6;
        f.inlined[FAD_V].length = 6 * 2 * 2 * 8 * 4; f.inlined[FAD_V].offset = 0)
REFUSES(v_shorter_than_k, "v.inline_bytes.length", f.inlined[FAD_V].length -= 8 * 4)
REFUSES(inline_output_with_an_offset, "o.inline_bytes", f.inlined[FAD_O].has_offset = true)
REFUSES(inline_output_with_a_length, "lse.inline_bytes", f.inlined[FAD_LSE].has_length = true)
REFUSES(inline_output_with_strides, "o.stride_batch",
        wire_forward_set_strides(&f, FAD_O, 4 * 3 * 8, 3 * 8, 8))

/* --- Strides --------------------------------------------------------------------------------- */

REFUSES(stride_batch_alone, "q.stride_head", f.tensors[FAD_Q].has_stride_batch = true)
REFUSES(stride_row_alone, "k.stride_batch", f.tensors[FAD_K].has_stride_row = true)
REFUSES(stride_row_left_out, "v.stride_row", wire_forward_set_strides(&f, FAD_V, 0, 0, 0);
        f.tensors[FAD_V].has_stride_row = false)
REFUSES(stride_negative, "q.stride_row", wire_forward_set_strides(&f, FAD_Q, 96, 24, -8))
REFUSES(stride_most_negative, "q.stride_batch",
        wire_forward_set_strides(&f, FAD_Q, INT64_MIN, 24, 8))
REFUSES(stride_that_reaches_past_the_payload, "k.inline_bytes.length",
        wire_forward_set_strides(&f, FAD_K, 80, 40, 9))
REFUSES(stride_beyond_any_memory, "v", wire_forward_set_strides(&f, FAD_V, INT64_MAX, 40, 8))
REFUSES(strides_whose_sum_overflows, "v",
        wire_forward_set_strides(&f, FAD_V, INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 4))
REFUSES(stride_whose_bytes_overflow, "q", wire_forward_set_strides(&f, FAD_Q, 1LL << 62, 24, 8))
REFUSES_SHARED(output_strides_of_zero, "o", wire_forward_set_strides(&f, FAD_O, 0, 24, 8))
REFUSES_SHARED(output_rows_that_overlap, "o", wire_forward_set_strides(&f, FAD_O, 96, 24, 7))
REFUSES_SHARED(output_heads_that_overlap, "o", wire_forward_set_strides(&f, FAD_O, 96, 23, 8))
REFUSES_SHARED(output_strides_that_do_not_nest, "o", wire_forward_set_strides(&f, FAD_O, 48, 24, 8))
REFUSES_SHARED(lse_strides_of_zero, "lse", wire_forward_set_strides(&f, FAD_LSE, 12, 3, 0))

/* --- Overlaps -------------------------------------------------------------------------------- */

REFUSES_SHARED(o_over_q, "o", f.shared[FAD_O].offset = f.shared[FAD_Q].offset)
REFUSES_SHARED(o_over_the_last_element_of_k, "o",
               f.shared[FAD_O].offset = f.shared[FAD_K].offset + 2 * 2 * 5 * 8 * 4 - 4;
               f.shared[FAD_V].offset = 0)
REFUSES_SHARED(lse_over_o, "o",
               f.shared[FAD_LSE].offset = f.shared[FAD_O].offset + 2 * 4 * 3 * 8 * 4 - 4)
REFUSES_SHARED(lse_over_q, "lse", f.shared[FAD_LSE].offset = f.shared[FAD_Q].offset)

/* --- Which location -------------------------------------------------------------------------- */

REFUSES(no_location, "k", f.tensors[FAD_K].inline_bytes = NULL)
REFUSES(two_locations, "q", f.tensors[FAD_Q].memfd = &f.shared[FAD_Q];
        f.shared[FAD_Q].has_offset = true)
REFUSES(two_locations_of_an_output, "o", f.tensors[FAD_O].cuda_ipc = &f.ipc[FAD_O])
REFUSES(memfd_location_without_a_descriptor, "lse.memfd", f.tensors[FAD_LSE].inline_bytes = NULL;
        f.tensors[FAD_LSE].memfd = &f.shared[FAD_LSE]; f.shared[FAD_LSE].has_offset = true)
REFUSES(descriptor_without_a_memfd_location, "header.nfds",
        f.memfd = wire_memfd(4096, F_SEAL_SHRINK))
REFUSES_SHARED(memfd_offset_missing, "v.memfd.offset", f.shared[FAD_V].has_offset = false)
REFUSES_SHARED(memfd_offset_not_a_multiple_of_4, "v.memfd.offset", f.shared[FAD_V].offset += 1)
REFUSES_SHARED(memfd_offset_just_below_2_64, "q.memfd.offset",
               f.shared[FAD_Q].offset = UINT64_MAX - 3)
REFUSES_SHARED(memfd_offset_8_below_2_64, "o.memfd.offset", f.shared[FAD_O].offset = UINT64_MAX - 7)
REFUSES_SHARED(memfd_offset_past_the_end, "k.memfd.offset",
               f.shared[FAD_K].offset = f.memory_size + 4096)
REFUSES_SHARED(memfd_output_4_past_the_end, "lse.memfd.offset",
               f.shared[FAD_LSE].offset = f.memory_size - 2 * 4 * 3 * 4 + 4)
REFUSES_SHARED(memfd_strides_past_the_end, "k.memfd.offset",
               wire_forward_set_strides(&f, FAD_K, 80, 40, 1 << 20))

/* --- CUDA IPC -------------------------------------------------------------------------------- */

/* The device that wire_forward_use_ipc names is nobody's, and the CPU backend opens none at all. */
#define UNSERVED       (test_on_cuda() ? FA_NOT_FOUND : FA_UNIMPLEMENTED)
#define UNSERVED_FIELD (test_on_cuda() ? "k.cuda_ipc.device_uuid" : "k.cuda_ipc")

REFUSES_IPC(ipc_of_no_device_here, UNSERVED, UNSERVED_FIELD, (void)0)
REFUSES_IPC(ipc_output_of_no_device_here, UNSERVED, UNSERVED_FIELD, wire_forward_use_ipc(&f, FAD_O);
            f.ipc[FAD_O].offset = 4096)
REFUSES_IPC(ipc_handle_of_63_bytes, FA_INVALID_ARGUMENT, "k.cuda_ipc.handle",
            f.ipc[FAD_K].handle.len = 63)
REFUSES_IPC(ipc_handle_missing, FA_INVALID_ARGUMENT, "k.cuda_ipc.handle",
            f.ipc[FAD_K].has_handle = false)
REFUSES_IPC(ipc_uuid_missing, FA_INVALID_ARGUMENT, "k.cuda_ipc.device_uuid",
            f.ipc[FAD_K].has_device_uuid = false)
REFUSES_IPC(ipc_buffer_id_missing, FA_INVALID_ARGUMENT, "k.cuda_ipc.buffer_id",
            f.ipc[FAD_K].has_buffer_id = false)
REFUSES_IPC(ipc_offset_missing, FA_INVALID_ARGUMENT, "k.cuda_ipc.offset",
            f.ipc[FAD_K].has_offset = false)
REFUSES_IPC(ipc_offset_not_a_multiple_of_4, FA_INVALID_ARGUMENT, "k.cuda_ipc.offset",
            f.ipc[FAD_K].offset = 6)
REFUSES_IPC(ipc_event_of_63_bytes, FA_INVALID_ARGUMENT, "k.cuda_ipc.event",
            f.ipc[FAD_K].has_event = true;
            f.ipc[FAD_K].event = f.ipc[FAD_K].handle; f.ipc[FAD_K].event.len = 63)
REFUSES_IPC(ipc_event_of_no_device_here, UNSERVED, UNSERVED_FIELD, f.ipc[FAD_K].has_event = true;
            f.ipc[FAD_K].event = f.ipc[FAD_K].handle)

/* --- What is allowed ------------------------------------------------------------------------- */

START_TEST(inputs_may_overlap_each_other)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, ALL_SHARED);
    f.shared[FAD_V].offset = f.shared[FAD_K].offset + 4; /* and off by 4 bytes */
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    f.inlined[FAD_K].offset = f.inlined[FAD_V].offset = 4;
    wire_forward_run(fd, &f, 6);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(batch_sequence_head_order_is_just_strides)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, ALL_SHARED);
    wire_forward_set_strides(&f, FAD_Q, 3 * 4 * 8, 8, 4 * 8);
    wire_forward_set_strides(&f, FAD_K, 5 * 2 * 8, 8, 2 * 8);
    wire_forward_set_strides(&f, FAD_V, 5 * 2 * 8, 8, 2 * 8);
    wire_forward_set_strides(&f, FAD_O, 3 * 4 * 8, 8, 4 * 8);
    wire_forward_set_strides(&f, FAD_LSE, 3 * 4, 1, 4);
    wire_forward_run(fd, &f, 5);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Outputs with gaps: what lies in the gaps stays as it was. */
START_TEST(gaps_between_output_rows_are_not_written)
{
    struct wire_forward f;
    const float *o;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 2, 2, 3, 5, 8}, 0x1f & ~(1u << FAD_O));
    f.tensors[FAD_O].inline_bytes = NULL;
    f.tensors[FAD_O].memfd = &f.shared[FAD_O];
    f.shared[FAD_O].has_offset = true;
    f.shared[FAD_O].offset = f.memory_size;
    wire_forward_set_strides(&f, FAD_O, 60, 30, 10);
    wire_forward_grow(&f, 60 * 4);
    o = wire_forward_at(&f, FAD_O);
    wire_forward_run(fd, &f, 5);
    for (int row = 0; row < 6; row++)
        ck_assert(o[row * 10 + 8] != o[row * 10 + 8] && o[row * 10 + 9] != o[row * 10 + 9]);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Memory of the daemon's is used again and again: nothing of what other requests left there may
 * show between the outputs of a reply. */
START_TEST(gap_between_inline_outputs_is_zero)
{
    static const uint8_t zero[FA_PAYLOAD_ALIGN];
    int fd = wire_greet();

    for (uint64_t id = 10; id < 60; id++) {
        struct wire_forward f;
        struct wire_reply reply;

        wire_forward_make(&f, (struct wire_shape){1, 1, 1, 1, 1, 1}, 0);
        for (int t = 0; t <= FAD_V; t++)
            f.inlined[t].offset = 0;
        f.payload.size = 128; /* about as much as the reply's */
        memset(f.payload.data, 'A', f.payload.size);
        ck_assert(wire_forward_send(fd, &f, id));
        wire_receive(fd, &reply);
        wire_forward_check(&f, &reply);
        ck_assert(memcmp(reply.payload + 4, zero, FA_PAYLOAD_ALIGN - 4) == 0);
        wire_release(&reply);
        wire_forward_free(&f);
    }
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        inline_offset_missing,
        inline_length_missing,
        inline_offset_not_a_multiple_of_4,
        inline_offset_just_below_2_64,
        inline_offset_8_below_2_64,
        inline_length_of_all_ones,
        inline_length_4_short_of_the_span,
        inline_length_zero,
        inline_tensor_4_past_the_payload,
        inline_tensors_without_a_payload,
        k_longer_than_its_bytes,
        v_shorter_than_k,
        inline_output_with_an_offset,
        inline_output_with_a_length,
        inline_output_with_strides,
        stride_batch_alone,
        stride_row_alone,
        stride_row_left_out,
        stride_negative,
        stride_most_negative,
        stride_that_reaches_past_the_payload,
        stride_beyond_any_memory,
        strides_whose_sum_overflows,
        stride_whose_bytes_overflow,
        output_strides_of_zero,
        output_rows_that_overlap,
        output_heads_that_overlap,
        output_strides_that_do_not_nest,
        lse_strides_of_zero,
        o_over_q,
        o_over_the_last_element_of_k,
        lse_over_o,
        lse_over_q,
        no_location,
        two_locations,
        two_locations_of_an_output,
        memfd_location_without_a_descriptor,
        descriptor_without_a_memfd_location,
        memfd_offset_missing,
        memfd_offset_not_a_multiple_of_4,
        memfd_offset_just_below_2_64,
        memfd_offset_8_below_2_64,
        memfd_offset_past_the_end,
        memfd_output_4_past_the_end,
        memfd_strides_past_the_end,
        ipc_of_no_device_here,
        ipc_output_of_no_device_here,
        ipc_handle_of_63_bytes,
        ipc_handle_missing,
        ipc_uuid_missing,
        ipc_buffer_id_missing,
        ipc_offset_missing,
        ipc_offset_not_a_multiple_of_4,
        ipc_event_of_63_bytes,
        ipc_event_of_no_device_here,
        inputs_may_overlap_each_other,
        batch_sequence_head_order_is_just_strides,
        gaps_between_output_rows_are_not_written,
        gap_between_inline_outputs_is_zero,
    };
    return wire_suite("wire_places", tests, sizeof tests / sizeof tests[0]);
}
