/* oracle.h: the oracle on the device, for problems that take the CPU's too long or lie on the
 * device only. Shares no code with any kernel but kernels/mask.h. */
#ifndef TEST_GPU_ORACLE_H
#define TEST_GPU_ORACLE_H

#include "kernels/fa_attention.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As fa_reference, from tensors on the device, over a list of rows that are counted over (batch,
 * head, row); NULL: the first `count` of them. o [count, D] and lse [count] are the host's. Faster
 * when rows of a head stand together. */
cudaError_t oracle_rows(const struct fa_problem *problem, const struct fa_tensors *tensors,
                        const uint64_t *rows, uint64_t count, double *o, double *lse);

#ifdef __cplusplus
}
#endif

#endif
