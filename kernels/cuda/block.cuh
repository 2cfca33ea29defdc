/* block.cuh: a block of 256 threads that works on T rows by T keys with everything in shared
 * memory: the tiles of q, k, v, the scores, and the rows' states. v1 and v2 are this step in two
 * orders of the loops; v0 has its threads' places from here. */
#ifndef FA_KERNELS_CUDA_BLOCK_CUH
#define FA_KERNELS_CUDA_BLOCK_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/softmax.cuh"

#define BLOCK_THREADS 256
#define BLOCK_WARPS   (BLOCK_THREADS / 32)

/* The block's threads are 16 rows by 16 columns: a thread takes R by R scores, 16 apart each way,
 * and of o the same rows, in groups of 4 columns that are 64 apart. */
#define BLOCK_SIDE 16

template <int T> struct block_of {
    float *q, *k, *v, *o; /* [T][stride], zeroes from head_dim to width */
    float *weights;       /* [T][weight_stride(T)]; scores first */
    float *top, *sum;     /* [T] */
    float *alpha;         /* [T] what o is multiplied by in this step */
    int width;            /* head_dim rounded up to a multiple of 4 */
    int stride;
};

/* T for the head dimension; the tiles fit 99 KiB, what a block gets everywhere. */
static inline int block_side(uint32_t head_dim)
{
    return head_dim <= 64 ? 64 : head_dim <= 128 ? 32 : 16;
}

/* Of the functions for T = 64, 32 and 16, which is the one for `side`. */
static inline int block_index(int side)
{
    return side == 64 ? 0 : side == 32 ? 1 : 2;
}

__host__ __device__ constexpr int block_width(uint32_t head_dim)
{
    return (int)(head_dim + 3) / 4 * 4;
}

/* Bytes of shared memory. */
__host__ __device__ constexpr size_t block_shared(int side, uint32_t head_dim)
{
    return (size_t)side * (4 * tile_stride(block_width(head_dim)) + weight_stride(side) + 3) *
           sizeof(float);
}

template <int T> __device__ __forceinline__ block_of<T> block_at(float *shared, int head_dim)
{
    block_of<T> block;

    block.width = block_width(head_dim);
    block.stride = tile_stride(block.width);
    block.q = shared;
    block.k = block.q + T * block.stride;
    block.v = block.k + T * block.stride;
    block.o = block.v + T * block.stride;
    block.weights = block.o + T * block.stride;
    block.top = block.weights + T * weight_stride(T);
    block.sum = block.top + T;
    block.alpha = block.sum + T;
    return block;
}

__device__ __forceinline__ int block_row()
{
    return (int)threadIdx.x / 64 * 4 + lane_row((int)threadIdx.x % 32);
}

__device__ __forceinline__ int block_column()
{
    return (int)threadIdx.x / 32 % 2 * 8 + lane_column((int)threadIdx.x % 32);
}

template <int T>
__device__ __forceinline__ void copy_q(const struct args &args, const struct tile &tile,
                                       const block_of<T> &block)
{
    float4 q[COPY_ROWS];

    load_tile<T>(q, tile.q, args.problem.q.row, (int)tile.rows, (int)args.problem.head_dim,
                 args.aligned);
    store_tile<T>(block.q, block.stride, block.width, q, args.sign);
}

/* The keys from `first` on, of which there is one at least. */
template <int T>
__device__ __forceinline__ void copy_kv(const struct args &args, const struct tile &tile,
                                        uint32_t first, const block_of<T> &block)
{
    const struct fa_problem &problem = args.problem;
    const int keys = tile_keys(args, first, T), width = (int)problem.head_dim;
    float4 k[COPY_ROWS], v[COPY_ROWS];

    load_tile<T>(k, tile.k + first * problem.k.row, problem.k.row, keys, width, args.aligned);
    load_tile<T>(v, tile.v + first * problem.v.row, problem.v.row, keys, width, args.aligned);
    store_tile<T>(block.k, block.stride, block.width, k);
    store_tile<T>(block.v, block.stride, block.width, v);
}

/* No keys yet. */
template <int T> __device__ __forceinline__ void clear_state(const block_of<T> &block)
{
    for (int i = (int)threadIdx.x; i < T * block.stride; i += BLOCK_THREADS)
        block.o[i] = 0;
    for (int i = (int)threadIdx.x; i < T; i += BLOCK_THREADS)
        block.top[i] = -INFINITY, block.sum[i] = 0;
}

/* The scores of the tile, masked ones -inf. visible: keys of the tile that a thread's rows see. */
template <int T, int UNROLL>
__device__ __forceinline__ void score(const block_of<T> &block,
                                      const int (&visible)[T / BLOCK_SIDE])
{
    constexpr int R = T / BLOCK_SIDE;
    const int row = block_row(), column = block_column();
    float scores[R][R] = {};

    add_dots<UNROLL, R, R, BLOCK_SIDE>(scores, block.q + row * block.stride, block.stride,
                                       block.k + column * block.stride, block.stride, block.width);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            block.weights[(row + i * BLOCK_SIDE) * weight_stride(T) + column + j * BLOCK_SIDE] =
                column + j * BLOCK_SIDE < visible[i] ? scores[i][j] : -INFINITY;
}

/* Scores to weights. A warp takes whole rows, all of its rows at once: sums across lanes are long
 * waits, and those of different rows overlap. */
template <int T>
__device__ __forceinline__ void weigh_rows(const block_of<T> &block, float scale_log2)
{
    constexpr int R = T / BLOCK_WARPS, C = (T + 31) / 32;
    const int first = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *const weights = block.weights + first * weight_stride(T) + lane;
    float scores[R][C], top[R], sum[R], alpha[R];

#pragma unroll
    for (int i = 0; i < R; i++) {
        top[i] = block.top[first + i * BLOCK_WARPS];
        sum[i] = block.sum[first + i * BLOCK_WARPS];
#pragma unroll
        for (int j = 0; j < C; j++)
            scores[i][j] = lane + 32 * j < T ? weights[i * BLOCK_WARPS * weight_stride(T) + 32 * j]
                                             : -INFINITY;
    }
    weigh<R, C, 31>(scores, top, sum, alpha, scale_log2);
    __syncwarp(); /* all lanes have read top and sum */
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < C; j++)
            if (lane + 32 * j < T)
                weights[i * BLOCK_WARPS * weight_stride(T) + 32 * j] = scores[i][j];
        if (lane == 0) {
            block.top[first + i * BLOCK_WARPS] = top[i];
            block.sum[first + i * BLOCK_WARPS] = sum[i];
            block.alpha[first + i * BLOCK_WARPS] = alpha[i];
        }
    }
}

template <int T, int UNROLL, bool MASKED>
__device__ __forceinline__ void sum_values(const block_of<T> &block,
                                           const int (&visible)[T / BLOCK_SIDE])
{
    constexpr int R = T / BLOCK_SIDE;
    const int row = block_row();

    for (int d = 4 * block_column(); d < block.width; d += 4 * BLOCK_SIDE) {
        float sums[R][4] = {};
        add_values<UNROLL, R, BLOCK_SIDE, MASKED>(sums, block.weights + row * weight_stride(T),
                                                  weight_stride(T), block.v + d, block.stride, T,
                                                  visible);
#pragma unroll
        for (int i = 0; i < R; i++) {
            float *const o = block.o + (row + i * BLOCK_SIDE) * block.stride + d;
            const float alpha = block.alpha[row + i * BLOCK_SIDE];
            const float4 x = load4(o);
            store4(o, {__fmaf_rn(x.x, alpha, sums[i][0]), __fmaf_rn(x.y, alpha, sums[i][1]),
                       __fmaf_rn(x.z, alpha, sums[i][2]), __fmaf_rn(x.w, alpha, sums[i][3])});
        }
    }
}

/* Brings the T keys from `first` on, copied before, into the states of the T rows from first_row
 * on. The block must have synchronised since the copies; the states are complete, and the tiles
 * free, once it has after the step. UNROLL: of the products. */
template <int UNROLL, int T>
__device__ __forceinline__ void block_step(const struct args &args, const block_of<T> &block,
                                           uint32_t first_row, uint32_t first)
{
    constexpr int R = T / BLOCK_SIDE;
    const struct fa_problem &problem = args.problem;
    const bool masked = mask_visible_keys(&problem, first_row) < first + T;
    int visible[R];

#pragma unroll
    for (int i = 0; i < R; i++) {
        const uint32_t row = first_row + block_row() + i * BLOCK_SIDE;
        const uint32_t keys = masked ? mask_visible_keys(&problem, row) : first + T;
        visible[i] = keys_in_tile(keys, first, T);
    }
    score<T, UNROLL>(block, visible);
    __syncthreads();
    weigh_rows<T>(block, args.scale_log2);
    __syncthreads();
    if (masked)
        sum_values<T, UNROLL, true>(block, visible);
    else
        sum_values<T, UNROLL, false>(block, visible);
}

#endif
