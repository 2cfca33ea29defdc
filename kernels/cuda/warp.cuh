/* warp.cuh: a warp that works on its own rows by a tile of keys, with their states in registers. A
 * thread has R of the warp's 4 R rows: it scores them against every 8th key, and keeps every 8th
 * group of 4 columns of o; the 8 lanes of a row agree on its top and sum by shuffles. Only the
 * weights go through shared memory, in a part of it that the warp has for itself. v3 and v4 are
 * this, with different R and different ways to bring tiles in.
 *
 * Both products are sums of outer products: of a column of q, which is therefore kept transposed,
 * with one of k, and of a key's weights with its values. Factors that are read together then lie in
 * registers of both banks, and sums that follow each other do not wait for each other. */
#ifndef FA_KERNELS_CUDA_WARP_CUH
#define FA_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/spans.cuh"

/* Rows and columns that the lanes of a warp make. */
#define WARP_ROWS    4
#define WARP_COLUMNS 8

/* D: head_dim, a multiple of 32. R: rows of a thread, 4 or 8. KEYS: of a tile. BLOCK_ROWS: of the
 * block: the length of a row of the transposed q. UNROLL: steps of 4 that are one piece of code. */
template <int D, int R, int KEYS, int BLOCK_ROWS, int UNROLL> struct warp {
    static constexpr int ROWS = WARP_ROWS * R, C = KEYS / WARP_COLUMNS;
    static constexpr int GROUPS = D / (4 * WARP_COLUMNS), COLUMNS = 4 * GROUPS;
    /* Floats from a key's weights to the next's: what is stored of 8 keys at once lies in different
     * banks. */
    static constexpr int STRIDE = ROWS + 8, WEIGHTS = KEYS * STRIDE;

    float o[R][COLUMNS], top[R], sum[R];
    uint32_t first_row; /* of the warp, in the head */
    const float *q;     /* the thread's first row, in the transposed tile: [D][BLOCK_ROWS] */
    float *weights;     /* the warp's, [KEYS][STRIDE] */

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

    /* The thread's rows of a column of q or weights. */
    __device__ __forceinline__ static void load_rows(float (&x)[R], const float *from)
    {
#pragma unroll
        for (int i = 0; i < R; i += 4) {
            const float4 y = load4(from + i * WARP_ROWS);
            x[i] = y.x, x[i + 1] = y.y, x[i + 2] = y.z, x[i + 3] = y.w;
        }
    }

    /* block_q: [D][BLOCK_ROWS]; block_weights: WEIGHTS floats a warp. */
    __device__ __forceinline__ void init(const struct tile &tile, const float *block_q,
                                         float *block_weights)
    {
        const int number = (int)threadIdx.x / 32;

        first_row = tile.first_row + number * ROWS;
        q = block_q + number * ROWS + row_of(0);
        weights = block_weights + number * WEIGHTS;
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

    /* Keys of the tile at `first` that the thread's row i sees. */
    __device__ __forceinline__ int visible(const struct args &args, uint32_t first, int i) const
    {
        const uint32_t keys = mask_visible_keys(&args.problem, first_row + row_of(i));
        return keys_in_tile(keys, first, KEYS);
    }

    /* Whether some row of the warp does not see all of the tile at `first`. */
    __device__ __forceinline__ bool masked(const struct args &args, uint32_t first) const
    {
        return mask_visible_keys(&args.problem, first_row) < first + KEYS;
    }

    /* Scores of the tile k, [KEYS][tile_stride(D)], whose first key is `first`. */
    __device__ __forceinline__ void score(const struct args &args, const float *k, uint32_t first,
                                          float (&scores)[R][C]) const
    {
        k += column() * tile_stride(D);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                scores[i][j] = 0;
#pragma unroll UNROLL
        for (int d = 0; d < D; d += 4) {
            float x[4][R];
#pragma unroll
            for (int n = 0; n < 4; n++)
                load_rows(x[n], q + (d + n) * BLOCK_ROWS);
#pragma unroll
            for (int j = 0; j < C; j++) {
                const float4 y = load4(k + j * WARP_COLUMNS * tile_stride(D) + d);
                const float key[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int n = 0; n < 4; n++)
#pragma unroll
                    for (int i = 0; i < R; i++)
                        scores[i][j] = __fmaf_rn(x[n][i], key[n], scores[i][j]);
            }
        }
        if (!masked(args, first))
            return;
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int keys = visible(args, first, i);
#pragma unroll
            for (int j = 0; j < C; j++)
                if (column() + j * WARP_COLUMNS >= keys)
                    scores[i][j] = -INFINITY;
        }
    }

    /* Scores to weights in shared memory; o is rescaled with alpha when the values come. */
    __device__ __forceinline__ void weigh_tile(const struct args &args, float (&scores)[R][C],
                                               float (&alpha)[R])
    {
        weigh<R, C, LANE_COLUMN_BITS>(scores, top, sum, alpha, args.scale_log2);
#pragma unroll
        for (int j = 0; j < C; j++) {
            float *to = weights + (column() + j * WARP_COLUMNS) * STRIDE + row_of(0);
#pragma unroll
            for (int i = 0; i < R; i += 4)
                *(float4 *)(to + i * WARP_ROWS) = {scores[i][j], scores[i + 1][j], scores[i + 2][j],
                                                   scores[i + 3][j]};
        }
        __syncwarp();
    }

    template <bool MASKED>
    __device__ __forceinline__ void add_tile(const float *v, int v_stride, const float (&alpha)[R],
                                             const int (&seen)[R])
    {
        const float *from = weights + row_of(0);
        float part[R][COLUMNS];

        v += 4 * column();
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                part[i][j] = 0;
#pragma unroll(4 * UNROLL)
        for (int key = 0; key < KEYS; key++) {
            float w[R];
            load_rows(w, from + key * STRIDE);
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                const float4 x = load4(v + key * v_stride + g * 4 * WARP_COLUMNS);
#pragma unroll
                for (int i = 0; i < R; i++) {
                    if (MASKED && key >= seen[i])
                        continue; /* whatever v holds, NaN too */
                    part[i][4 * g + 0] = __fmaf_rn(w[i], x.x, part[i][4 * g + 0]);
                    part[i][4 * g + 1] = __fmaf_rn(w[i], x.y, part[i][4 * g + 1]);
                    part[i][4 * g + 2] = __fmaf_rn(w[i], x.z, part[i][4 * g + 2]);
                    part[i][4 * g + 3] = __fmaf_rn(w[i], x.w, part[i][4 * g + 3]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                o[i][j] = __fmaf_rn(o[i][j], alpha[i], part[i][j]);
    }

    /* o = o * alpha + the tile's part, summed from zero. v: [KEYS][v_stride]. */
    __device__ __forceinline__ void add_values(const struct args &args, const float *v,
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

    /* Merges the rows' states into what is kept of the span, which they begin if `first`. */
    __device__ __forceinline__ void keep(const struct args &args, const struct tile &tile,
                                         bool first)
    {
#pragma unroll
        for (int i = 0; i < R; i++) {
            const uint32_t row = first_row - tile.first_row + row_of(i);
            float *part = part_row(args, tile, tile.span, row), *to = part + 4 * column();
            float kept_top = -INFINITY, kept_sum = 0, a, b;
            if (row < tile.rows) {
                if (!first)
                    kept_top = part[D], kept_sum = part[D + 1];
                merge(kept_top, kept_sum, top[i], sum[i], args.scale_log2, a, b);
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    float *x = to + j / 4 * 4 * WARP_COLUMNS + j % 4;
                    *x = merged(first ? 0 : *x, a, o[i][j], b);
                }
            }
            __syncwarp(); /* all lanes of the row have read top and sum */
            if (row < tile.rows && column() == 0)
                part[D] = kept_top, part[D + 1] = kept_sum;
        }
        __syncwarp();
        clear();
    }

    /* Writes the rows' outputs. */
    __device__ __forceinline__ void end_rows(const struct args &args, const struct tile &tile) const
    {
        const int lane = (int)threadIdx.x % 32;
        const uint32_t first = first_row - tile.first_row;

        __syncwarp(); /* the weights are done with, and make room */
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float inverse = inverse_of(sum[i]);
            const uint32_t row = first + row_of(i);
            float *to = tile.o + row * args.problem.o.row + 4 * column();
            if (column() == 0)
                weights[2 * row_of(i)] = top[i], weights[2 * row_of(i) + 1] = sum[i];
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
