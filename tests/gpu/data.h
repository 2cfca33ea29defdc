/* data.h: what tests do to tensors that lie on the device. All wait until it is done. */
#ifndef TEST_GPU_DATA_H
#define TEST_GPU_DATA_H

#include "kernels/fa_attention.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets each element to mean + spread * N(0, 1), which follows from the seed and the element's index
 * alone; to mean when spread is 0. */
cudaError_t data_fill(void *tensor, struct fa_extents extents, struct fa_strides strides,
                      uint64_t seed, float mean, float spread);

/* Copies the listed rows, counted over (batch, head, row), to the host, packed; NULL: the first
 * `count`. */
cudaError_t data_rows(const void *tensor, struct fa_extents extents, struct fa_strides strides,
                      const uint64_t *rows, uint64_t count, float *out);

/* Adds the number of elements that are NaN. */
cudaError_t data_nans(const void *tensor, struct fa_extents extents, struct fa_strides strides,
                      uint64_t *count);

#ifdef __cplusplus
}
#endif

#endif
