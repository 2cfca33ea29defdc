/* cuda.h: what the CUDA kernels share with the version table and with tests. */
#ifndef FA_KERNELS_CUDA_H
#define FA_KERNELS_CUDA_H

#include "kernels/fa_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The lowest compute capability with asynchronous copies, which v4 makes. */
#define CUDA_ARCH_MIN 80

/* For the version table: the version's kernel for an architecture; NULL below compute capability
 * 8.0. v4 takes smaller tiles, and another name, where a block has less than 219 KiB of shared
 * memory. */
const struct fa_kernel *fa_cuda_v0_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v1_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v2_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v3_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v4_kernel(const struct fa_target *target);

/* For tests: v4's kernels for all architectures, and one that takes large tiles for every problem.
 * *count entries. Static. */
const struct fa_kernel *const *cuda_v4_kernels(size_t *count);

/* A __global__ function of ours. */
struct cuda_function {
    const char *name; /* as in tests/kernel-budget: "v2<64>" for v2_kernel<64> */
    const void *entry;
    int threads;   /* of a block */
    size_t shared; /* dynamic shared memory of a block at most, bytes */
};

/* The functions of a version, 0 to CUDA_VERSIONS - 1, and as one more list those of decode.h, which
 * v4 launches. *count entries. Static. */
#define CUDA_VERSIONS 5
#define CUDA_DECODE   CUDA_VERSIONS
#define CUDA_LISTS    (CUDA_VERSIONS + 1)
const struct cuda_function *cuda_functions(int list, size_t *count);

/* The same, of each version's own file. */
const struct cuda_function *cuda_v0_functions(size_t *count);
const struct cuda_function *cuda_v1_functions(size_t *count);
const struct cuda_function *cuda_v2_functions(size_t *count);
const struct cuda_function *cuda_v3_functions(size_t *count);
const struct cuda_function *cuda_v4_functions(size_t *count);

#ifdef __cplusplus
}
#endif

#endif
