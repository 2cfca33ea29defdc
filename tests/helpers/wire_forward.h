/* wire_forward.h: Forward requests for the raw client, with data, and the check of their results.
 *
 *     struct wire_forward f;
 *     wire_forward_make(&f, (struct wire_shape){1, 2, 2, 3, 5, 8}, 1 << FAD_O);
 *     f.message.heads = 0; ... any field ...
 *     wire_refused(fd, &f, FA_INVALID_ARGUMENT, "heads");
 *     wire_forward_free(&f); */
#ifndef TEST_WIRE_FORWARD_H
#define TEST_WIRE_FORWARD_H

#include "daemon/connection/request.h"
#include "tests/helpers/wire.h"

struct wire_shape {
    uint32_t batch;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t head_dim;
};

/* A shape with nothing special. */
#define WIRE_SMALL ((struct wire_shape){2, 4, 2, 3, 5, 8})

struct wire_region;

struct wire_forward {
    Fad__Forward message;
    Fad__Tensor tensors[FAD_TENSORS];
    Fad__InlineLocation inlined[FAD_TENSORS];
    Fad__MemfdLocation shared[FAD_TENSORS];
    Fad__RegionLocation lodged[FAD_TENSORS];
    Fad__CudaIpcLocation ipc[FAD_TENSORS];
    const struct wire_region *regions[FAD_TENSORS]; /* where it is lodged; NULL: it is not */
    struct wire_bytes payload;
    int memfd; /* -1: none */
    uint8_t *memory;
    size_t memory_size;
};

/* The tensors whose bit is set lie in a fresh memfd, sealed against shrinking, the others inline;
 * all packed, lse wanted. Inputs are random, output memory is poisoned. The message points into
 * *forward, which must stay where it is. */
void wire_forward_make(struct wire_forward *forward, struct wire_shape shape, unsigned shared);

/* A small request that takes minutes, in ranges of tens of milliseconds: its inputs repeat by
 * strides of 0. To be at work whenever a test wants something to be; closing its connection ends
 * it. */
void wire_forward_make_long(struct wire_forward *forward);

void wire_forward_free(struct wire_forward *forward);

/* More bytes, poisoned, at the end of the shared memory. */
void wire_forward_grow(struct wire_forward *forward, size_t bytes);

/* Bytes, zero and not yet there, that make the shared memory so large. */
void wire_forward_grow_sparse(struct wire_forward *forward, size_t size);

/* A shared tensor's first element. */
float *wire_forward_at(const struct wire_forward *forward, enum fad_tensor tensor);

/* Bytes from the tensor's first element to its last. */
uint64_t wire_forward_span(const struct wire_forward *forward, enum fad_tensor tensor);

/* Where the tensor's elements are on the test's side: in the payload, the shared memory or a region
 * (wire_region.h). Not for inline outputs. */
uint8_t *wire_forward_bytes(const struct wire_forward *forward, enum fad_tensor tensor);

/* Makes the tensor a CUDA IPC location that is well formed. */
void wire_forward_use_ipc(struct wire_forward *forward, enum fad_tensor tensor);

void wire_forward_set_strides(struct wire_forward *forward, enum fad_tensor tensor, int64_t batch,
                              int64_t head, int64_t row);

/* Asks for a version; the string stays the caller's. */
void wire_forward_set_version(struct wire_forward *forward, const char *version);

/* A memfd of the size with the seals (0: none), of this name. */
#define WIRE_MEMFD "fad-test"
int wire_memfd(uint64_t size, int seals);

/* Makes the frame's bytes. The header announces a descriptor if there is one. */
void wire_forward_append(const struct wire_forward *forward, uint64_t id, struct wire_bytes *bytes);

/* Sends it, with the descriptor on the first byte. False when the daemon has closed. */
bool wire_forward_send(int fd, const struct wire_forward *forward, uint64_t id);

/* Asserts that the reply is a success and the result right, against double precision. */
void wire_forward_check(const struct wire_forward *forward, const struct wire_reply *reply);

/* Sends it, awaits the reply and checks the result. */
void wire_forward_run(int fd, const struct wire_forward *forward, uint64_t id);

/* Sends it; it must be refused, and the same connection must then serve. */
void wire_refused(int fd, const struct wire_forward *forward, enum fa_status status,
                  const char *field);

/* The connection serves a small forward and a ping, correctly. */
void wire_serves(int fd);

#endif
