/* fa_frame.h: the frame that carries every message, and its codec. proto/README.md tells the whole
 * protocol; fad.proto specifies the messages.
 *
 *     32-byte header | message (protobuf, at most 64 KiB) | payload (raw tensor bytes)
 *
 * Header, little-endian, no padding:
 *     offset 0  u32 magic            "FAD1"
 *            4  u16 type             enum fa_frame_type
 *            6  u8  nfds             descriptors that travel with the frame: 0 or 1
 *            7  u8  flags            0
 *            8  u64 id               chosen by the client; a reply repeats its request's
 *           16  u32 message_length
 *           20  u32 reserved         0
 *           24  u64 payload_length */
#ifndef FA_FRAME_H
#define FA_FRAME_H

#include "proto/fa_status.h"

#include <stdint.h>

#define FA_FRAME_HEADER_SIZE 32u
#define FA_FRAME_MAGIC       0x31444146u /* the bytes F A D 1 */
#define FA_FRAME_MESSAGE_MAX (64u * 1024u)
#define FA_FRAME_FDS_MAX     1u

/* The protocol's version, exchanged in Hello. A major step breaks old peers, a minor one adds. */
#define FA_PROTOCOL_MAJOR 1u
#define FA_PROTOCOL_MINOR 1u

/* Alignment of payload buffers, and of the lse that follows an inline o in a reply's payload. */
#define FA_PAYLOAD_ALIGN 64u

enum fa_frame_type {
    FA_FRAME_HELLO = 1,
    FA_FRAME_FORWARD = 2,
    FA_FRAME_PING = 3,
    FA_FRAME_REGISTER_REGION = 4,
    FA_FRAME_ALLOC_REGION = 5,
    FA_FRAME_WRITE_REGION = 6,
    FA_FRAME_READ_REGION = 7,
    FA_FRAME_RELEASE_REGION = 8,
    FA_FRAME_STATS = 9,
    FA_FRAME_CANCEL = 10,

    FA_FRAME_REPLY = 0x8000 /* a reply's type is this bit over its request's type; alone, it is the
                               daemon's last word on a connection */
};

struct fa_frame {
    uint16_t type;
    uint8_t nfds;
    uint64_t id;
    uint32_t message_length;
    uint64_t payload_length;
};

/* Writes the header. The frame must satisfy the limits above. */
void fa_frame_encode(const struct fa_frame *frame, uint8_t out[FA_FRAME_HEADER_SIZE]);

/* Reads a header. payload_max bounds payload_length. Any return but FA_OK is PROTOCOL_ERROR with
 * the header's field named in *error: the stream cannot be followed any further. frame->id is set
 * in every case in which the magic is right, so that the last reply can carry it (else it is 0). */
enum fa_status fa_frame_decode(const uint8_t in[FA_FRAME_HEADER_SIZE], uint64_t payload_max,
                               struct fa_frame *frame, struct fa_error *error);

/* Bytes of an inline output payload: o packed, then, if lse_bytes > 0, lse at the next multiple of
 * FA_PAYLOAD_ALIGN. Either may be 0 (not inline). *lse_offset is where lse starts. Saturates. */
uint64_t fa_output_layout(uint64_t o_bytes, uint64_t lse_bytes, uint64_t *lse_offset);

#endif
