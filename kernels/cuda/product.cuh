/* product.cuh: how the lanes of a warp share a tile, the copies that bring tiles to shared memory,
 * and the two products of v0 to v2 from there (warp.cuh has those of v3 and v4, decode.cuh those of
 * few rows). */
#ifndef FA_KERNELS_CUDA_PRODUCT_CUH
#define FA_KERNELS_CUDA_PRODUCT_CUH

#include <stdint.h>

/* The lanes of a warp as 4 rows by 8 columns. Shared memory serves 16 bytes a lane to half a warp
 * at once if lanes that differ in bit 0 (or all that differ in bit 1) want the same bytes: bit 0
 * is of the column, bit 1 of the row. */
#define LANE_COLUMN_BITS 0b01101

__device__ __forceinline__ int lane_row(int lane)
{
    return (lane >> 1 & 1) | (lane >> 3 & 2);
}

__device__ __forceinline__ int lane_column(int lane)
{
    return (lane & 1) | (lane >> 1 & 6);
}

/* Floats from one row of a tile to the next: an odd multiple of 4, so that 16 bytes each of 8 rows
 * lie in different banks. width is a multiple of 4. */
__host__ __device__ constexpr int tile_stride(int width)
{
    return (width / 4 | 1) * 4;
}

/* Floats from one row of weights to the next: 8 more than a multiple of 16, so that 4 rows by 8
 * keys lie in different banks. keys is a multiple of 16. */
__host__ __device__ constexpr int weight_stride(int keys)
{
    return keys + 8;
}

__device__ __forceinline__ float4 load4(const float *from)
{
    return *(const float4 *)from;
}

/* From shared memory. Such loads stay in their order, and so come when the source says. */
__device__ __forceinline__ void load4_in_order(float *to, const float *from)
{
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from))
                 : "memory");
}

__device__ __forceinline__ void load2_in_order(float *to, const float *from)
{
    asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(to[0]), "=f"(to[1])
                 : "r"((unsigned)__cvta_generic_to_shared(from))
                 : "memory");
}

__device__ __forceinline__ void store4(float *to, float4 x)
{
    *(float4 *)to = x;
}

/* sums[i][j] += a's row i * STEP times b's row j * STEP, over `width` elements (a multiple of 4),
 * in their order. UNROLL steps of 4 are one piece of code. */
template <int UNROLL, int R, int C, int STEP>
__device__ __forceinline__ void add_dots(float (&sums)[R][C], const float *a, int a_stride,
                                         const float *b, int b_stride, int width)
{
#pragma unroll UNROLL
    for (int d = 0; d < width; d += 4) {
        float4 x[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            x[i] = load4(a + i * STEP * a_stride + d);
#pragma unroll
        for (int j = 0; j < C; j++) {
            const float4 y = load4(b + j * STEP * b_stride + d);
#pragma unroll
            for (int i = 0; i < R; i++) {
                sums[i][j] = __fmaf_rn(x[i].x, y.x, sums[i][j]);
                sums[i][j] = __fmaf_rn(x[i].y, y.y, sums[i][j]);
                sums[i][j] = __fmaf_rn(x[i].z, y.z, sums[i][j]);
                sums[i][j] = __fmaf_rn(x[i].w, y.w, sums[i][j]);
            }
        }
    }
}

/* sums[i][n] += weight (row i * STEP, key) * v[key][n] over the keys (a multiple of 4), in their
 * order. MASKED: row i takes its first visible[i] keys only; whatever v holds of the others leaves
 * it alone, NaN too. */
template <int UNROLL, int R, int STEP, bool MASKED>
__device__ __forceinline__ void add_values(float (&sums)[R][4], const float *weights,
                                           int weights_stride, const float *v, int v_stride,
                                           int keys, const int (&visible)[R])
{
#pragma unroll UNROLL
    for (int key = 0; key < keys; key += 4) {
        float w[R][4];
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float4 x = load4(weights + i * STEP * weights_stride + key);
            w[i][0] = x.x, w[i][1] = x.y, w[i][2] = x.z, w[i][3] = x.w;
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float4 x = load4(v + (key + n) * v_stride);
#pragma unroll
            for (int i = 0; i < R; i++) {
                if (MASKED && key + n >= visible[i])
                    continue;
                sums[i][0] = __fmaf_rn(w[i][n], x.x, sums[i][0]);
                sums[i][1] = __fmaf_rn(w[i][n], x.y, sums[i][1]);
                sums[i][2] = __fmaf_rn(w[i][n], x.z, sums[i][2]);
                sums[i][3] = __fmaf_rn(w[i][n], x.w, sums[i][3]);
            }
        }
    }
}

/* Tiles of T rows and at most 4096 / T columns are copied by blocks of 256 threads, through
 * registers: a thread has 4 elements of each of COPY_ROWS rows, T / COPY_ROWS apart. So all of its
 * loads are on their way before it stores any; a next tile can be before there is room for it. */
#define COPY_ROWS 4

template <int T> __device__ __forceinline__ int copy_row()
{
    return (int)threadIdx.x / (1024 / T) % (T / COPY_ROWS);
}

template <int T> __device__ __forceinline__ int copy_column()
{
    return (int)threadIdx.x % (1024 / T) * 4;
}

/* The thread's part of `rows` rows of `width` elements; zeroes where there are none. aligned: rows
 * begin at multiples of 16 bytes. */
template <int T>
__device__ __forceinline__ void load_tile(float4 (&x)[COPY_ROWS], const float *from,
                                          int64_t row_stride, int rows, int width, bool aligned)
{
    const int left = width - copy_column<T>();
    const int64_t step = T / COPY_ROWS * row_stride;

    __builtin_assume(__isGlobal(from));
    from += copy_row<T>() * row_stride + copy_column<T>();
    rows = left > 0 ? rows - copy_row<T>() : 0;
    if (aligned && width % 4 == 0) {
#pragma unroll
        for (int i = 0; i < COPY_ROWS; i++, from += step) {
            x[i] = {0, 0, 0, 0};
            if (i * (T / COPY_ROWS) < rows)
                x[i] = load4(from);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++, from += step) {
        x[i] = {0, 0, 0, 0};
        if (i * (T / COPY_ROWS) < rows) {
            x[i].x = from[0];
            x[i].y = left > 1 ? from[1] : 0;
            x[i].z = left > 2 ? from[2] : 0;
            x[i].w = left > 3 ? from[3] : 0;
        }
    }
}

/* What load_tile found, times factor, to the first `padded` columns of a tile in shared memory;
 * padded is the width rounded up to a multiple of 4, or more. */
template <int T>
__device__ __forceinline__ void store_tile(float *to, int stride, int padded,
                                           const float4 (&x)[COPY_ROWS], float factor = 1)
{
    to += copy_row<T>() * stride + copy_column<T>();
    if (copy_column<T>() < padded)
#pragma unroll
        for (int i = 0; i < COPY_ROWS; i++)
            store4(to + i * (T / COPY_ROWS) * stride,
                   {factor * x[i].x, factor * x[i].y, factor * x[i].z, factor * x[i].w});
}

/* Both. */
template <int T>
__device__ __forceinline__ void copy_tile(float *to, int stride, int padded, const float *from,
                                          int64_t row_stride, int rows, int width, bool aligned)
{
    float4 x[COPY_ROWS];

    load_tile<T>(x, from, row_stride, rows, width, aligned);
    store_tile<T>(to, stride, padded, x);
}

/* Copies `rows` rows of `width` elements, times factor, into a transposed tile of depth (a multiple
 * of 4) by tile_rows, the rest zeroes; row i goes to column PLACE(i). Lanes take a row each, so
 * that their stores go to different banks; tile_rows is a multiple of 32, and the block's warps one
 * of tile_rows / 32. aligned: rows begin at multiples of 16 bytes. AT_ONCE: loads of a thread that
 * are on their way together. */
template <int PLACE(int), int AT_ONCE>
__device__ __forceinline__ void copy_transposed(float *to, int stride, int tile_rows, int depth,
                                                const float *from, int64_t row_stride, int rows,
                                                int width, float factor, bool aligned)
{
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const int side_by_side = tile_rows / 32; /* warps */
    const int row = warp % side_by_side * 32 + (int)threadIdx.x % 32;

    const int step = warps / side_by_side * 4;
    const bool present = row < rows;

    __builtin_assume(__isGlobal(from));
    from += row * row_stride, to += PLACE(row);
    for (int first = warp / side_by_side * 4; first < depth; first += AT_ONCE * step) {
        float4 x[AT_ONCE];
        if (aligned && width % 4 == 0) {
#pragma unroll
            for (int i = 0, d = first; i < AT_ONCE; i++, d += step) {
                x[i] = {0, 0, 0, 0};
                if (present && d < width)
                    x[i] = load4(from + d);
            }
        } else {
#pragma unroll
            for (int i = 0, d = first; i < AT_ONCE; i++, d += step) {
                const int left = present ? width - d : 0;
                x[i].x = left > 0 ? from[d] : 0;
                x[i].y = left > 1 ? from[d + 1] : 0;
                x[i].z = left > 2 ? from[d + 2] : 0;
                x[i].w = left > 3 ? from[d + 3] : 0;
            }
        }
#pragma unroll
        for (int i = 0, d = first; i < AT_ONCE; i++, d += step) {
            if (d >= depth)
                break;
            to[(d + 0) * stride] = factor * x[i].x;
            to[(d + 1) * stride] = factor * x[i].y;
            to[(d + 2) * stride] = factor * x[i].z;
            to[(d + 3) * stride] = factor * x[i].w;
        }
    }
}

/* A PLACE: in order. */
__device__ __forceinline__ int same_place(int row)
{
    return row;
}

/* Copies 4 or 16 bytes to shared memory, or zeroes where there is nothing to copy: then nothing is
 * read either. */
template <int BYTES>
__device__ __forceinline__ void copy_async(float *to, const float *from, bool there)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);

    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                     "r"(there ? 4 : 0)
                     : "memory");
}

#endif
