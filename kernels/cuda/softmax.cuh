/* softmax.cuh: the running softmax of a row, in base 2, and what ends it.
 *
 * A row's state is (top, sum, o): its largest score so far, before the scale; the sum of the
 * weights 2^(scale_log2 * (score - top)); and the sum of weight * value, not yet divided by sum. No
 * key yet, or none with a score above -inf: (-inf, 0, 0). The difference of scores comes before the
 * product: a huge scale cannot overflow what is about 0. */
#ifndef FA_KERNELS_CUDA_SOFTMAX_CUH
#define FA_KERNELS_CUDA_SOFTMAX_CUH

#include <math.h>
#include <stdint.h>

/* All lanes of a warp. */
#define WARP 0xffffffffu

/* 2^x, 0 below 2^-126; relative error at most 2^-22. */
__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The shift of a row's exponents: its top, or 0 where there is none (-inf - -inf would be NaN). */
__device__ __forceinline__ float shift_of(float top)
{
    return top == -INFINITY ? 0 : top;
}

__device__ __forceinline__ float weight_of(float score, float shift, float scale_log2)
{
    return exp2_of(__fmul_rn(__fsub_rn(score, shift), scale_log2));
}

/* Over the lanes that differ in BITS of their number only. */
template <int BITS> __device__ __forceinline__ float lanes_max(float x)
{
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        if (BITS & bit)
            x = fmaxf(x, __shfl_xor_sync(WARP, x, bit));
    return x;
}

template <int BITS> __device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        if (BITS & bit)
            x = __fadd_rn(x, __shfl_xor_sync(WARP, x, bit));
    return x;
}

/* Turns a thread's scores of R rows into weights and brings top and sum up to date; masked scores
 * are -inf. The lanes that differ in BITS have the row's other scores, the same top, and the same
 * sum, or if not TOTAL each that of its own scores. alpha is what o so far is to be multiplied by.
 * fmaxf passes over NaN, which the weight keeps. */
template <int R, int C, int BITS, bool TOTAL = true>
__device__ __forceinline__ void weigh(float (&scores)[R][C], float (&top)[R], float (&sum)[R],
                                      float (&alpha)[R], float scale_log2)
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        float most = top[i], shift, part;
#pragma unroll
        for (int j = 0; j < C; j++)
            most = fmaxf(most, scores[i][j]);
        most = lanes_max<BITS>(most);
        shift = shift_of(most);
        alpha[i] = weight_of(top[i], shift, scale_log2);
#pragma unroll
        for (int j = 0; j < C; j++) {
            scores[i][j] = weight_of(scores[i][j], shift, scale_log2);
            part = j == 0 ? scores[i][j] : __fadd_rn(part, scores[i][j]);
        }
        sum[i] = __fmaf_rn(sum[i], alpha[i], TOTAL ? lanes_sum<BITS>(part) : part);
        top[i] = most;
    }
}

/* Adds a state, (later_top, later_sum, x), whose keys are later ones: o = o * a + x * b. */
__device__ __forceinline__ void merge(float &top, float &sum, float later_top, float later_sum,
                                      float scale_log2, float &a, float &b)
{
    const float most = fmaxf(top, later_top), shift = shift_of(most);

    a = weight_of(top, shift, scale_log2);
    b = weight_of(later_top, shift, scale_log2);
    sum = __fmaf_rn(sum, a, __fmul_rn(later_sum, b));
    top = most;
}

__device__ __forceinline__ float merged(float o, float a, float x, float b)
{
    return __fmaf_rn(o, a, __fmul_rn(x, b));
}

/* 1 / sum, the factor of a row's outputs; 0 where the row has none (a sum is 0, or at least 1, or
 * NaN). */
__device__ __forceinline__ float inverse_of(float sum)
{
    return sum == 0 ? 0 : __frcp_rn(sum);
}

/* An element of the output: exactly 0 in a row that has none. A 0 of either sign becomes
 * +0: which one it is depends on how many tiles were passed over that the row does not see. */
__device__ __forceinline__ float output_of(float o, float inverse)
{
    return inverse == 0 ? 0 : __fmaf_rn(o, inverse, 0);
}

/* In double: the two terms may cancel. */
__device__ __forceinline__ float lse_of(float top, float sum, double scale)
{
    return sum == 0 ? -INFINITY : (float)__dadd_rn(__dmul_rn(fabs(scale), top), log((double)sum));
}

#endif
