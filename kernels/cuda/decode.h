/* decode.h: attention of few query rows over many keys, as a decoding step has it: a kernel's
 * functions (fa_attention.h) for the problems that decode_covers, of every head_dim. */
#ifndef FA_KERNELS_CUDA_DECODE_H
#define FA_KERNELS_CUDA_DECODE_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the rows that read one key/value head are few: q_len * heads / kv_heads, 1 to 8. */
bool decode_covers(const struct fa_problem *problem);

/* fa_kernel.units, .state and .launch, of such problems only. A unit is a key/value head against a
 * span of its keys, for all the rows that read it. */
uint64_t decode_units(const struct fa_problem *problem);
size_t decode_state(const struct fa_problem *problem);
enum fa_status decode_launch(const struct fa_launch *launch);

/* The __global__ functions. *count entries. Static. */
const struct cuda_function *decode_functions(size_t *count);

#ifdef __cplusplus
}
#endif

#endif
