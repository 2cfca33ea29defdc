/* request.h: a Forward as the daemon works on it: decoded from its message, then checked once
 * against its payload, shared memory and regions. Nothing later checks again. */
#ifndef FAD_REQUEST_H
#define FAD_REQUEST_H

#include "kernels/fa_attention.h"
#include "proto/fa_arena.h"

#include <stdbool.h>
#include <stdint.h>

struct fad_client_region;

enum fad_tensor { FAD_Q, FAD_K, FAD_V, FAD_O, FAD_LSE, FAD_TENSORS };

enum fad_place {
    FAD_NOWHERE, /* lse that is not wanted */
    FAD_INLINE,  /* in the request's payload, or for outputs in the reply's */
    FAD_MEMFD,   /* in the shared memory that came with the frame */
    FAD_REGION,  /* in a region of the connection's */
    FAD_IPC,     /* on the client's GPU */
};

/* Memory of a client's on a GPU. */
struct fad_ipc {
    uint8_t handle[64]; /* cudaIpcMemHandle_t */
    uint64_t buffer_id;
    uint8_t device_uuid[16];
};

struct fad_location {
    enum fad_place place;
    uint64_t offset; /* bytes; for an inline output from the reply payload's start */
    uint64_t length; /* INLINE inputs: bytes */
    uint64_t span;   /* bytes from first to last element; set by fad_request_check */
    uint64_t region_id;
    struct fad_client_region *region; /* REGION: set by the caller before fad_request_check */
    struct fad_ipc ipc;
    bool has_event;    /* REGION, IPC */
    uint8_t event[64]; /* cudaIpcEventHandle_t: the job waits for it */
};

struct fad_request {
    struct fa_problem problem; /* scale and absent strides already have their defaults */
    char version[16];
    enum fa_priority priority;
    uint64_t deadline_us; /* from the complete frame on; 0: none */
    struct fad_location at[FAD_TENSORS];
    uint64_t output_size; /* bytes of the reply's payload; set by fad_request_check */
};

/* Is [offset, offset + span) inside size bytes? No sum that could overflow. */
static inline bool fad_inside(uint64_t offset, uint64_t span, uint64_t size)
{
    return offset <= size && span <= size - offset;
}

/* "q", "k", "v", "o", "lse". */
const char *fad_tensor_name(enum fad_tensor tensor);

/* The strides of a tensor of the problem, its extents, and the bytes of its elements. */
struct fa_strides *fad_tensor_strides(struct fa_problem *problem, enum fad_tensor tensor);
struct fa_extents fad_tensor_extents(const struct fa_problem *problem, enum fad_tensor tensor);
uint64_t fad_tensor_element(const struct fa_problem *problem, enum fad_tensor tensor);

static inline bool fad_tensor_is_output(enum fad_tensor tensor)
{
    return tensor == FAD_O || tensor == FAD_LSE;
}

/* Unpacks a Forward message, in the allocator's memory: presence, enums, text, the shape, and all
 * that a field by itself can get wrong. Any status but FA_OK names the field in *error. */
enum fa_status fad_request_decode(const uint8_t *message, size_t length,
                                  ProtobufCAllocator *allocator, struct fad_request *request,
                                  struct fa_error *error);

/* Checks that every tensor lies inside its memory, outputs in what may be written, and apart where
 * they must; lays out the inline outputs.
 * memfd_size is the size of the descriptor that came with the frame, or -1 when none came. */
enum fa_status fad_request_check(struct fad_request *request, uint64_t payload_length,
                                 int64_t memfd_size, struct fa_error *error);

/* True when an output lies in the memfd, which must then be writable. */
bool fad_request_writes_memfd(const struct fad_request *request);

#endif
