/* warp.cuh: a warp that works on its own rows by a tile of keys, with their states in registers. A
 * thread has R of the warp's 4 R rows: it scores them against every 8th key, and keeps every 8th
 * group of 4 columns of o; the 8 lanes of a row agree on its top by shuffles, and add their sums at
 * the end. Only the weights go through shared memory, in a part of it that the warp has for itself.
 * v3 and v4 are this, with different R and different ways to bring tiles in.
 *
 * Both products are sums of outer products: of a column of q with one of k, both of which are
 * therefore kept transposed, and of a key's weights with its values. */
#ifndef FA_KERNELS_CUDA_WARP_CUH
#define FA_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/spans.cuh"

/* Rows and columns that the lanes of a warp make. */
#define WARP_ROWS    4
#define WARP_COLUMNS 8

/* Where a key of a tile is in a row of the transposed tile: a thread's keys, every 8th one, lie
 * four by four side by side. */
__device__ __forceinline__ int key_place(int key)
{
    return key / 32 * 32 + key % 8 * 4 + key / 8 % 4;
}

/* Floats from one row of a transposed tile of keys to the next. */
__host__ __device__ constexpr int keys_stride(int keys)
{
    return keys + 4;
}

/* Groups of columns whose sums over a tile of values are in registers at once. */
#define PART_GROUPS 4

/* D: columns of o, head_dim rounded up to a multiple of 32. R: rows of a thread, 4 or 8. KEYS: of a
 * tile, a multiple of 32. BLOCK_ROWS: of the block: the length of a row of the transposed q.
 * DEPTH, UNROLL: steps of the scores and of the values that are one piece of code; for the scores
 * head_dim is rounded up to a multiple of DEPTH, with zeroes. */
template <int D, int R, int KEYS, int BLOCK_ROWS, int DEPTH, int UNROLL> struct warp {
    static constexpr int ROWS = WARP_ROWS * R, C = KEYS / WARP_COLUMNS;
    static constexpr int GROUPS = D / (4 * WARP_COLUMNS), COLUMNS = 4 * GROUPS;
    /* Floats from a key's weights to the next's: what is stored of 8 keys at once lies in different
     * banks. */
    static constexpr int STRIDE = ROWS + 8, WEIGHTS = KEYS * STRIDE;

    float o[R][COLUMNS], top[R];
    float sum[R];       /* of the lane's own keys; lanes are added at the end */
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

    /* Which column of o the thread's jth is. */
    __device__ __forceinline__ static int column_of(int j)
    {
        return j / 4 * 4 * WARP_COLUMNS + 4 * column() + j % 4;
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

    /* A step's factors: the thread's rows of a column of q or weights, and its columns of a row of
     * keys or values. */
    template <int N> struct factors {
        float x[R], y[N];

        __device__ __forceinline__ void load(const float *a, const float *b)
        {
#pragma unroll
            for (int i = 0; i < R; i += 4) {
                const float4 z = load4_in_order(a + i * WARP_ROWS);
                x[i] = z.x, x[i + 1] = z.y, x[i + 2] = z.z, x[i + 3] = z.w;
            }
#pragma unroll
            for (int j = 0; j < N; j += 4) {
                const float4 z = load4_in_order(b + j * WARP_COLUMNS);
                y[j] = z.x, y[j + 1] = z.y, y[j + 2] = z.z, y[j + 3] = z.w;
            }
        }

        /* A bank of registers, those of even or of odd numbers, gives one operand a cycle: a
         * product that reads three of them takes two cycles. So each shares a factor with the one
         * before it, which the assembler then keeps: a column's rows go forwards, the next one's
         * backwards; the even rows first. */
        template <bool MASKED>
        __device__ __forceinline__ void add(float (&sums)[R][N], int n, const int (&seen)[R]) const
        {
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int m = 0; m < R; m++) {
                    const int at = j % 2 ? R - 1 - m : m;
                    const int i = at < R / 2 ? 2 * at : 2 * (at - R / 2) + 1;
                    if (!MASKED || n < seen[i])
                        sums[i][j] = __fmaf_rn(x[i], y[j], sums[i][j]);
                }
        }
    };

    /* sums[i][j] += a[n][row i] * b[n][column j] for one n after the other; count is a multiple of
     * U, which is even. MASKED: row i takes its first seen[i] only; whatever b holds of the others
     * leaves it alone, NaN too. Factors are loaded a step before their use. */
    template <int U, bool MASKED, int N>
    __device__ __forceinline__ static void add_products(float (&sums)[R][N], const float *a,
                                                        int a_stride, const float *b, int b_stride,
                                                        int count, const int (&seen)[R])
    {
        factors<N> sets[2];

        static_assert(U % 2 == 0, "each step has its set");
        sets[0].load(a, b);
#pragma unroll 1
        for (int n = 0; n < count; n += U) {
            const bool more = n + U < count;
            const float *next_a = more ? a + U * a_stride : a;
            const float *next_b = more ? b + U * b_stride : b;
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (u + 1 < U)
                    sets[(u + 1) % 2].load(a + (u + 1) * a_stride, b + (u + 1) * b_stride);
                else
                    sets[0].load(next_a, next_b);
                sets[u % 2].template add<MASKED>(sums, n + u, seen);
            }
            a = next_a, b = next_b;
        }
    }

    /* Scores of the tile k, [depth][keys_stride(KEYS)], whose first key is `first`. depth: head_dim
     * rounded up to a multiple of DEPTH. */
    __device__ __forceinline__ void score(const struct args &args, const float *k, int depth,
                                          uint32_t first, float (&scores)[R][C]) const
    {
        const int all[R] = {};

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                scores[i][j] = 0;
        add_products<DEPTH, false>(scores, q, BLOCK_ROWS, k + 4 * column(), keys_stride(KEYS),
                                   depth, all);
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
        weigh<R, C, LANE_COLUMN_BITS, false>(scores, top, sum, alpha, args.scale_log2);
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

    /* For the groups of columns from G on. */
    template <bool MASKED, int G = 0>
    __device__ __forceinline__ void add_tile(const float *v, int v_stride, const float (&alpha)[R],
                                             const int (&seen)[R])
    {
        constexpr int N = 4 * (GROUPS - G < PART_GROUPS ? GROUPS - G : PART_GROUPS);
        float part[R][N];

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                part[i][j] = 0;
        add_products<MASKED ? 4 : UNROLL, MASKED>(part, weights + row_of(0), STRIDE,
                                                  v + 4 * (G * WARP_COLUMNS + column()), v_stride,
                                                  KEYS, seen);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                o[i][4 * G + j] = __fmaf_rn(o[i][4 * G + j], alpha[i], part[i][j]);
        if constexpr (G + PART_GROUPS < GROUPS)
            add_tile<MASKED, G + PART_GROUPS>(v, v_stride, alpha, seen);
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
                const float x[4] = {output_of(o[i][j], inverse), output_of(o[i][j + 1], inverse),
                                    output_of(o[i][j + 2], inverse),
                                    output_of(o[i][j + 3], inverse)};
                if (args.aligned && column_of(j) + 4 <= width) {
                    *(float4 *)(to + column_of(j)) = {x[0], x[1], x[2], x[3]};
                    continue;
                }
#pragma unroll
                for (int n = 0; n < 4; n++)
                    if (column_of(j) + n < width)
                        to[column_of(j) + n] = x[n];
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
