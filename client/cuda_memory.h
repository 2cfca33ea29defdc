/* cuda_memory.h: device memory: where it is, how another process can open it, and copies of it.
 *
 * fa_cuda_find and fa_cuda_memory_id load the driver; the others take what these found. An error's
 * field is empty: the caller knows it. A thread's current context is the same after each. */
#ifndef FA_CLIENT_CUDA_MEMORY_H
#define FA_CLIENT_CUDA_MEMORY_H

#include "client/cuda.h"
#include "proto/fa_types.h"

#include <stdbool.h>

/* An allocation that another process can open. */
struct fa_cuda_memory {
    struct fa_cuda_home home;
    uint64_t id; /* new with each allocation of this process */
    uint64_t base, size;
    uint8_t uuid[16]; /* of its device */
    struct fa_cuda_handle handle;
};

/* A tensor's rows, which may have gaps, and their packed copy in host memory. */
struct fa_copy {
    struct fa_cuda_home home; /* of the rows; driver NULL: they are in host memory */
    char *data;               /* the tensor's first element */
    char *packed;             /* owned by the request; NULL: there is none */
    struct fa_extents extents;
    struct fa_strides strides;
    size_t element; /* bytes of one */
};

/* Says where memory of any kind is used. INVALID_ARGUMENT: it is no device memory. UNAVAILABLE:
 * there is no driver. */
enum fa_status fa_cuda_find(const void *pointer, struct fa_cuda_home *out, struct fa_error *error);

/* The id of the allocation that the pointer points into; 0: there is none. The same id is the same
 * allocation, and all that fa_cuda_export said of it still holds. */
uint64_t fa_cuda_memory_id(const void *pointer);

/* Finds everything about the allocation that the pointer points into, with a handle, which costs
 * some 10 us. IPC_REFUSED: it cannot be shared, and the text says why. */
enum fa_status fa_cuda_export(const void *pointer, struct fa_cuda_memory *out,
                              struct fa_error *error);

/* The handle of a cudaEvent_t of that context's device. */
enum fa_status fa_cuda_export_event(void *event, const struct fa_cuda_home *home,
                                    struct fa_cuda_handle *out, struct fa_error *error);

/* Waits until what was recorded in it has happened. */
enum fa_status fa_cuda_await_event(void *event, const struct fa_cuda_home *home,
                                   struct fa_error *error);

/* Copies rows in device memory, and no byte between them, to their packed copy (gather) or back.
 * Returns when that is done. */
enum fa_status fa_cuda_copy_rows(const struct fa_copy *copy, bool gather, struct fa_error *error);

#endif
