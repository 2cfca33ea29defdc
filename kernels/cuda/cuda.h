/* cuda.h: what the CUDA kernels share with the version table and with tests. */
#ifndef FA_KERNELS_CUDA_H
#define FA_KERNELS_CUDA_H

#include "kernels/fa_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For the version table: the version's kernel for an architecture, NULL where it has none. v4 takes
 * smaller tiles, and another name, where a block has less than 178 KB of shared memory. */
const struct fa_kernel *fa_cuda_v0_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v1_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v2_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v3_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cuda_v4_kernel(const struct fa_target *target);

/* A __global__ function of ours. */
struct cuda_function {
    const char *name; /* as in tests/kernel-budget: "v4<64>" for v4_kernel<64> */
    const void *entry;
    int threads;   /* of a block */
    size_t shared; /* dynamic shared memory of a block, bytes */
};

/* A version's functions. *count entries. Static. */
const struct cuda_function *cuda_v0_functions(size_t *count);
const struct cuda_function *cuda_v1_functions(size_t *count);
const struct cuda_function *cuda_v2_functions(size_t *count);
const struct cuda_function *cuda_v3_functions(size_t *count);
const struct cuda_function *cuda_v4_functions(size_t *count);

#ifdef __cplusplus
}
#endif

#endif
