/* mask.h: which keys a query row sees. Every mask shows a row the first so many keys, never a set
 * with gaps, so one number says it all. */
#ifndef FA_KERNELS_MASK_H
#define FA_KERNELS_MASK_H

#include "kernels/fa_attention.h"

#ifdef __CUDACC__
#define MASK_INLINE static inline __host__ __device__
#else
#define MASK_INLINE static inline
#endif

/* How many keys query row `row` sees: the keys [0, result). */
MASK_INLINE uint32_t mask_visible_keys(const struct fa_problem *problem, uint32_t row)
{
    int64_t visible = (int64_t)row + 1;

    if (problem->mask == FA_MASK_NONE)
        return problem->kv_len;
    if (problem->mask == FA_MASK_CAUSAL_BOTTOM_RIGHT)
        visible += (int64_t)problem->kv_len - (int64_t)problem->q_len;
    if (visible <= 0)
        return 0;
    return visible < problem->kv_len ? (uint32_t)visible : problem->kv_len;
}

#endif
