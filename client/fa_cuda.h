/* fa_cuda.h: device memory for programs that are built without the CUDA toolkit. A program that has
 * it allocates and copies as ever: libfa's FA_CUDA_IPC and FA_CUDA_COPY tensors take its pointers.
 *
 * The CUDA driver, libcuda.so.1, is loaded when the first of these is called. Each may be called
 * from any thread and leaves that thread's current context as it was. On failure *error (which may
 * be NULL) says what was wrong:
 * FA_UNAVAILABLE: there is no driver, or no device; FA_INVALID_ARGUMENT: a pointer that the driver
 * does not know; FA_RESOURCE_EXHAUSTED: no memory; FA_INTERNAL: any other failure of the driver,
 * which the text names. */
#ifndef FA_CUDA_H
#define FA_CUDA_H

#include "proto/fa_status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of size bytes (> 0), as cudaMalloc gives, with anything in it, on the device with this
 * UUID (16 bytes, as in fa_device; FA_NOT_FOUND: this process sees none) or, for NULL, on the
 * first. It keeps that device's primary context. *out is to be freed by fa_cuda_free; NULL on
 * failure. */
enum fa_status fa_cuda_alloc(void **out, uint64_t size, const uint8_t *uuid,
                             struct fa_error *error);

/* Frees what fa_cuda_alloc returned, and nothing else. NULL is legal. */
enum fa_status fa_cuda_free(void *pointer, struct fa_error *error);

/* Copies size bytes and waits until they are there. One side at least is device memory. */
enum fa_status fa_cuda_copy(void *to, const void *from, uint64_t size, struct fa_error *error);

#ifdef __cplusplus
}
#endif

#endif
