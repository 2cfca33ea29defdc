/* vector.h: vectors of floats as wide as the instruction set being compiled for, for tiled.c.
 *
 * Only GCC's vector extensions: the same source serves every instruction set. All functions go lane
 * by lane, so a lane's result never depends on another's. */
#ifndef FA_KERNELS_CPU_VECTOR_H
#define FA_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

/* Inlined even where GCC would not: arguments that are constants at the call unroll the loops. */
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t integers __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint32_t bits __attribute__((vector_size(LANES * sizeof(uint32_t))));

INLINE vector splat(float x)
{
    return (vector){0} + x;
}

/* Masks are what comparisons give: all bits of a lane or none. a where set, else b. */
INLINE vector select_of(integers mask, vector a, vector b)
{
    return (vector)((mask & (integers)a) | (~mask & (integers)b));
}

/* 0 where the mask is set, else a. */
INLINE vector clear_where(integers mask, vector a)
{
    return (vector)(~mask & (integers)a);
}

/* The larger; b where a is NaN. */
INLINE vector larger_of(vector a, vector b)
{
    return select_of(a > b, a, b);
}

/* 2^x for x <= 0, within 2 ulp; 0 below the normal range and at -inf; NaN stays NaN. */
INLINE vector exp2_of(vector x)
{
    const float round = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    const vector shifted = x + round;
    const vector f = x - (shifted - round);
    const vector power = (vector)(((bits)shifted << 23) + 0x3f800000u);
    vector p = f * 0x1.6370d4p-13f + 0x1.60343cp-10f; /* minimax on [-1/2, 1/2] with p(0) = 1 */

    p = p * f + 0x1.3afca2p-7f;
    p = p * f + 0x1.c6ac3ap-5f;
    p = p * f + 0x1.ebfc1ep-3f;
    p = p * f + 0x1.62e434p-1f;
    p = p * f + 1.0f;
    return clear_where(x < -126.0f, p * power);
}

#endif
