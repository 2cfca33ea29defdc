#include "proto/fa_frame.h"

#include <inttypes.h>
#include <string.h>

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

void fa_frame_encode(const struct fa_frame *frame, uint8_t out[FA_FRAME_HEADER_SIZE])
{
    put(out, FA_FRAME_MAGIC, 4);
    put(out + 4, frame->type, 2);
    put(out + 6, frame->nfds, 1);
    put(out + 7, 0, 1);
    put(out + 8, frame->id, 8);
    put(out + 16, frame->message_length, 4);
    put(out + 20, 0, 4);
    put(out + 24, frame->payload_length, 8);
}

enum fa_status fa_frame_decode(const uint8_t in[FA_FRAME_HEADER_SIZE], uint64_t payload_max,
                               struct fa_frame *frame, struct fa_error *error)
{
    memset(frame, 0, sizeof *frame);
    if (get(in, 4) != FA_FRAME_MAGIC)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.magic",
                            "the bytes at a frame's start are not FAD1");
    frame->type = (uint16_t)get(in + 4, 2);
    frame->nfds = (uint8_t)get(in + 6, 1);
    frame->id = get(in + 8, 8);
    frame->message_length = (uint32_t)get(in + 16, 4);
    frame->payload_length = get(in + 24, 8);
    if (frame->nfds > FA_FRAME_FDS_MAX)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.nfds",
                            "%u descriptors announced; a frame carries at most %u", frame->nfds,
                            FA_FRAME_FDS_MAX);
    if (in[7] != 0)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.flags", "0x%02x; must be 0", in[7]);
    if (get(in + 20, 4) != 0)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.reserved", "must be 0");
    if (frame->message_length > FA_FRAME_MESSAGE_MAX)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.message_length",
                            "%" PRIu32 " bytes; a message has at most %u", frame->message_length,
                            FA_FRAME_MESSAGE_MAX);
    if (frame->payload_length > payload_max)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.payload_length",
                            "%" PRIu64 " bytes; a payload has at most %" PRIu64,
                            frame->payload_length, payload_max);
    return FA_OK;
}

uint64_t fa_output_layout(uint64_t o_bytes, uint64_t lse_bytes, uint64_t *lse_offset)
{
    uint64_t offset = o_bytes, total;
    if (lse_bytes > 0 && __builtin_add_overflow(o_bytes, FA_PAYLOAD_ALIGN - 1, &offset))
        return UINT64_MAX;
    if (lse_bytes > 0)
        offset -= offset % FA_PAYLOAD_ALIGN;
    *lse_offset = offset;
    return __builtin_add_overflow(offset, lse_bytes, &total) ? UINT64_MAX : total;
}
