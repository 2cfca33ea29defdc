/* warp.cuh: a warp that works on its own rows by a tile of keys, with their states in registers. A
 * thread has R of the warp's 4 R rows: it scores them against every 8th key, and keeps every 8th
 * group of 4 columns of o; the 8 lanes of a row agree on its top and sum by shuffles. Only the
 * weights go through shared memory, in a part of it that the warp has for itself. v3 and v4 are
 * this, with different R and different ways to bring tiles in. */
#ifndef FA_KERNELS_CUDA_WARP_CUH
#define FA_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/spans.cuh"

/* Rows and columns that the lanes of a warp are apart. */
#define WARP_ROWS    4
#define WARP_COLUMNS 8

/* D: head_dim, a multiple of 32. R: rows of a thread. KEYS: of a tile. UNROLL: of the products. */
template <int D, int R, int KEYS, int UNROLL> struct warp {
    enum { ROWS = WARP_ROWS * R, GROUPS = D / (4 * WARP_COLUMNS), COLUMNS = 4 * GROUPS };

    float o[R][COLUMNS], top[R], sum[R];
    uint32_t first_row; /* of the warp, in the head */
    const float *q;     /* the thread's first row; rows are tile_stride(D) apart */
    float *weights;     /* the thread's first row; rows are weight_stride(KEYS) apart */

    /* q: rows of the block; weights: [rows of the block][weight_stride(KEYS)]. */
    __device__ __forceinline__ void init(const struct tile &tile, const float *block_q,
                                         float *block_weights)
    {
        const int first = (int)threadIdx.x / 32 * ROWS, row = first + lane_row(threadIdx.x % 32);

        first_row = tile.first_row + first;
        q = block_q + row * tile_stride(D);
        weights = block_weights + row * weight_stride(KEYS);
#pragma unroll
        for (int i = 0; i < R; i++) {
            top[i] = -INFINITY, sum[i] = 0;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                o[i][j] = 0;
        }
    }

    /* Keys of the tile at `first` that the thread's row i sees. */
    __device__ __forceinline__ int visible(const struct args &args, uint32_t first, int i) const
    {
        const uint32_t row = first_row + lane_row(threadIdx.x % 32) + i * WARP_ROWS;
        const uint32_t keys = mask_visible_keys(&args.problem, row);
        return keys < first ? 0 : (int)min(keys - first, (uint32_t)KEYS);
    }

    /* Whether some row of the warp does not see all of the tile at `first`. */
    __device__ __forceinline__ bool masked(const struct args &args, uint32_t first) const
    {
        return mask_visible_keys(&args.problem, first_row) < first + KEYS;
    }

    /* Scores of the tile k, whose first key is `first`. */
    __device__ __forceinline__ void score(const struct args &args, const float *k, uint32_t first,
                                          float (&scores)[R][KEYS / WARP_COLUMNS]) const
    {
        constexpr int C = KEYS / WARP_COLUMNS;
        const int column = lane_column(threadIdx.x % 32);

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                scores[i][j] = 0;
        add_dots<UNROLL, R, C, WARP_ROWS, WARP_COLUMNS>(
            scores, q, tile_stride(D), k + column * tile_stride(D), tile_stride(D), D);
        if (!masked(args, first))
            return;
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int keys = visible(args, first, i);
#pragma unroll
            for (int j = 0; j < C; j++)
                if (column + j * WARP_COLUMNS >= keys)
                    scores[i][j] = -INFINITY;
        }
    }

    /* Scores to weights in shared memory; o is rescaled with alpha when the values come. */
    __device__ __forceinline__ void
    weigh_tile(const struct args &args, float (&scores)[R][KEYS / WARP_COLUMNS], float (&alpha)[R])
    {
        weigh<R, KEYS / WARP_COLUMNS, LANE_COLUMN_BITS>(scores, top, sum, alpha, args.scale_log2);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < KEYS / WARP_COLUMNS; j++)
                weights[i * WARP_ROWS * weight_stride(KEYS) + lane_column(threadIdx.x % 32) +
                        j * WARP_COLUMNS] = scores[i][j];
        __syncwarp();
    }

    template <bool MASKED>
    __device__ __forceinline__ void add_tile(const float *v, int v_stride, const float (&alpha)[R],
                                             const int (&seen)[R])
    {
        float part[R][COLUMNS];

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                part[i][j] = 0;
        add_values<UNROLL, R, GROUPS, WARP_ROWS, 4 * WARP_COLUMNS, MASKED>(
            part, weights, weight_stride(KEYS), v + 4 * lane_column(threadIdx.x % 32), v_stride,
            KEYS, seen);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                o[i][j] = __fmaf_rn(o[i][j], alpha[i], part[i][j]);
    }

    /* o = o * alpha + the tile's part, summed from zero. */
    __device__ __forceinline__ void add_values_of(const struct args &args, const float *v,
                                                  int v_stride, uint32_t first,
                                                  const float (&alpha)[R])
    {
        int seen[R];

        if (masked(args, first)) {
#pragma unroll
            for (int i = 0; i < R; i++)
                seen[i] = visible(args, first, i);
            add_tile<true>(v, v_stride, alpha, seen);
        } else {
            add_tile<false>(v, v_stride, alpha, seen);
        }
    }

    /* Writes the rows' states over the unit's span. */
    __device__ __forceinline__ void end_part(const struct args &args, const struct tile &tile) const
    {
        const int column = 4 * lane_column(threadIdx.x % 32);

#pragma unroll
        for (int i = 0; i < R; i++) {
            const uint32_t row =
                first_row - tile.first_row + lane_row(threadIdx.x % 32) + i * WARP_ROWS;
            float *to = part_row(args, tile, tile.span, row);
            if (row >= tile.rows)
                continue;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                to[column + j / 4 * 4 * WARP_COLUMNS + j % 4] = o[i][j];
            if (column == 0)
                to[D] = top[i], to[D + 1] = sum[i];
        }
    }

    /* Writes the rows' outputs. */
    __device__ __forceinline__ void end_rows(const struct args &args, const struct tile &tile) const
    {
        const int lane = (int)threadIdx.x % 32, column = 4 * lane_column(lane);
        const uint32_t first = first_row - tile.first_row;

        __syncwarp(); /* the weights are done with, and make room */
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float inverse = inverse_of(sum[i]);
            const uint32_t row = first + lane_row(lane) + i * WARP_ROWS;
            float *to = tile.o + row * args.problem.o.row + column;
            if (column == 0)
                weights[i * WARP_ROWS * weight_stride(KEYS)] = top[i],
                                        weights[i * WARP_ROWS * weight_stride(KEYS) + 1] = sum[i];
            if (row >= tile.rows)
                continue;
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 4) {
                const float4 x = {output_of(o[i][j], inverse), output_of(o[i][j + 1], inverse),
                                  output_of(o[i][j + 2], inverse), output_of(o[i][j + 3], inverse)};
                float *next = to + j * WARP_COLUMNS;
                if (args.aligned)
                    *(float4 *)next = x;
                else
                    next[0] = x.x, next[1] = x.y, next[2] = x.z, next[3] = x.w;
            }
        }
        __syncwarp();
        if (tile.lse && lane < ROWS && first + lane < tile.rows) {
            const float *state = weights + (lane - lane_row(lane)) * weight_stride(KEYS);
            tile.lse[(first + lane) * args.problem.lse.row] =
                lse_of(state[0], state[1], args.problem.scale);
        }
    }

    /* Ends the unit; every thread of the block comes here. */
    __device__ __forceinline__ void end(const struct args &args, const struct tile &tile) const
    {
        if (args.cut.spans == 1) {
            end_rows(args, tile);
            return;
        }
        if (tile.span == 0 || tile.first_key < tile.keys)
            end_part(args, tile);
        end_span(args, tile);
    }
};

#endif
