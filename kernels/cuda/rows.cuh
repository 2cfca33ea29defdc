/* rows.cuh: the states of a warp's own rows, in registers, from the first key to the output. A
 * thread has R of the warp's 4 R rows, and of o every 8th group of 4 columns; the 8 lanes of a row
 * have the same top, and add their sums at the end. */
#ifndef FA_KERNELS_CUDA_ROWS_CUH
#define FA_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/spans.cuh"

/* Rows and columns that the lanes of a warp make. */
#define WARP_ROWS    4
#define WARP_COLUMNS 8

/* D: columns of o, a multiple of 16. R: rows of a thread, 4 or 8. BLOCK_ROWS: of the block. */
template <int D, int R, int BLOCK_ROWS> struct rows {
    static constexpr int ROWS = WARP_ROWS * R;
    static constexpr int GROUPS = D / (4 * WARP_COLUMNS), REST = D / WARP_COLUMNS % 4;
    static constexpr int COLUMNS = 4 * GROUPS + REST;
    static constexpr int THREADS = BLOCK_ROWS / ROWS * 32;
    static constexpr size_t REGISTERS = (size_t)R * (COLUMNS + 2) * THREADS;
    static_assert(D % 16 == 0, "whole groups, and a rest of two columns each");

    float o[R][COLUMNS], top[R];
    float sum[R];       /* of the lane's own keys; lanes are added at the end */
    uint32_t first_row; /* of the warp, in the head */
    uint32_t all_see;   /* keys that each of the warp's rows sees */
    float *weights;     /* the warp's, in shared memory: 2 ROWS floats at least, for end_rows */

    /* Where the thread's row i is among the warp's: it has 4 that follow each other, and with R = 8
     * another 4, as far on as the warp's lanes reach. */
    __device__ __forceinline__ static int row_of(int i)
    {
        return i / 4 * 4 * WARP_ROWS + 4 * lane_row(threadIdx.x % 32) + i % 4;
    }

    __device__ __forceinline__ static int column()
    {
        return lane_column(threadIdx.x % 32);
    }

    /* Which column of o the thread's jth is. */
    __device__ __forceinline__ static int column_of(int j)
    {
        return j < 4 * GROUPS ? j / 4 * 4 * WARP_COLUMNS + 4 * column() + j % 4
                              : 4 * GROUPS * WARP_COLUMNS + REST * column() + j % 4;
    }

    __device__ __forceinline__ void init(const struct args &args, const struct tile &tile,
                                         float *warp_weights)
    {
        first_row = tile.first_row + threadIdx.x / 32 * ROWS;
        all_see = mask_visible_keys(&args.problem, first_row);
        weights = warp_weights;
        clear();
    }

    /* No keys yet. */
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < R; i++) {
            top[i] = -INFINITY, sum[i] = 0;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                o[i][j] = 0;
        }
    }

    /* What a thread keeps from one tile to the next, to memory and from there: [number][thread],
     * REGISTERS floats of a block. */
    __device__ __forceinline__ void save(float *to) const
    {
        to += threadIdx.x;
#pragma unroll
        for (int i = 0; i < R; i++, to += (COLUMNS + 2) * THREADS) {
            to[0] = top[i], to[THREADS] = sum[i];
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                to[(2 + j) * THREADS] = o[i][j];
        }
    }

    __device__ __forceinline__ void restore(const float *from)
    {
        from += threadIdx.x;
#pragma unroll
        for (int i = 0; i < R; i++, from += (COLUMNS + 2) * THREADS) {
            top[i] = __ldcg(from), sum[i] = __ldcg(from + THREADS);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                o[i][j] = __ldcg(from + (2 + j) * THREADS);
        }
    }

    /* Merges the rows' states into what is kept of the span, which they begin if `first`. */
    __device__ __forceinline__ void keep(const struct args &args, const struct tile &tile,
                                         bool first)
    {
        const int width = (int)args.problem.head_dim;

#pragma unroll
        for (int i = 0; i < R; i++) {
            const uint32_t row = first_row - tile.first_row + row_of(i);
            float *part = part_row(args, tile, tile.span, row), *end = part + width;
            const float total = lanes_sum<LANE_COLUMN_BITS>(sum[i]);
            float kept_top = -INFINITY, kept_sum = 0, a, b;
            if (row < tile.rows) {
                if (!first)
                    kept_top = end[0], kept_sum = end[1];
                merge(kept_top, kept_sum, top[i], total, args.scale_log2, a, b);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    float *x = part + column_of(j);
                    if (column_of(j) < width)
                        *x = merged(first ? 0 : *x, a, o[i][j], b);
                }
            }
            __syncwarp(); /* all lanes of the row have read top and sum */
            if (row < tile.rows && column() == 0)
                end[0] = kept_top, end[1] = kept_sum;
        }
        __syncwarp();
        clear();
    }

    /* Writes the rows' outputs. */
    __device__ __forceinline__ void end_rows(const struct args &args, const struct tile &tile) const
    {
        const int lane = (int)threadIdx.x % 32, width = (int)args.problem.head_dim;
        const uint32_t first = first_row - tile.first_row;

        __syncwarp(); /* the weights are done with, and make room */
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float total = lanes_sum<LANE_COLUMN_BITS>(sum[i]), inverse = inverse_of(total);
            const uint32_t row = first + row_of(i);
            float *to = tile.o + row * args.problem.o.row;
            if (column() == 0)
                weights[2 * row_of(i)] = top[i], weights[2 * row_of(i) + 1] = total;
            if (row >= tile.rows)
                continue;
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 4) {
                float x[4];
#pragma unroll
                for (int n = 0; n < 4; n++)
                    x[n] = j + n < COLUMNS ? output_of(o[i][j + n], inverse) : 0;
                if (j < 4 * GROUPS && args.aligned && column_of(j) + 4 <= width) {
                    *(float4 *)(to + column_of(j)) = {x[0], x[1], x[2], x[3]};
                    continue;
                }
#pragma unroll
                for (int n = 0; n < 4; n++)
                    if (j + n < COLUMNS && column_of(j + n) < width)
                        to[column_of(j + n)] = x[n];
            }
        }
        __syncwarp();
        if (tile.lse && lane < ROWS && first + lane < tile.rows)
            tile.lse[(first + lane) * args.problem.lse.row] =
                lse_of(weights[2 * lane], weights[2 * lane + 1], args.problem.scale);
    }

    /* Ends the unit; every thread of the block comes here. */
    __device__ __forceinline__ void end(const struct args &args, const struct tile &tile)
    {
        if (!args.cut.kept) {
            end_rows(args, tile);
            return;
        }
        if (has_part(tile))
            keep(args, tile, tile.end_key - tile.first_key <= CHUNK_KEYS);
        end_span(args, tile);
    }
};

#endif
