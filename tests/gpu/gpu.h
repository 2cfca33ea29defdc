/* gpu.h: the device, for tests. Whatever CUDA says but success fails the test. */
#ifndef TEST_GPU_H
#define TEST_GPU_H

#include "kernels/fa_attention.h"

#include <cuda_runtime_api.h>

#define GPU(call) gpu_expect((call), #call)
void gpu_expect(cudaError_t error, const char *call);

/* For programs that run under compute-sanitizer, which sees what is touched past an allocation or
 * read before it is written: allocations end where they were asked to, and are not filled. */
extern bool gpu_bare;

/* What gpu_alloc adds to an allocation, unless gpu_bare. */
#define GPU_PAD ((size_t)512)

/* Device memory, 256-byte aligned, with GPU_PAD bytes behind it. All bytes are 0xff: NaN,
 * unless gpu_bare. */
void *gpu_alloc(size_t bytes);
void gpu_free(void *memory);

/* Launches on a stream of the calling thread, with a scratch that is new and, unless gpu_bare,
 * holds NaN, and waits. The launch's stream and scratch are ignored. */
enum fa_status gpu_run(const struct fa_kernel *kernel, struct fa_launch launch);

#endif
