/* warp.cuh: a warp that works on its own rows (rows.cuh) by a tile of keys: a thread scores its
 * rows against every 8th key, and sums its columns of o over all of them. Only the weights go
 * through shared memory, in a part of it that the warp has for itself. v3 and v4 are this, with
 * different R and different ways to bring tiles in.
 *
 * Both products are sums of outer products: of a column of q, which is therefore kept transposed,
 * with one of k, and of a key's weights with its values. */
#ifndef FA_KERNELS_CUDA_WARP_CUH
#define FA_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/rows.cuh"

/* Where a key is in a row of a transposed tile: a thread's keys, every 8th one, lie four by four
 * side by side. */
__device__ __forceinline__ int key_place(int key)
{
    return key / 32 * 32 + key % 8 * 4 + key / 8 % 4;
}

/* Groups of columns whose sums over a tile of values are in registers at once. */
#define PART_GROUPS 4

/* D: columns of o, head_dim or more, a multiple of 16. R: rows of a thread, 4 or 8. KEYS: of a
 * tile, a multiple of 32. TRANSPOSED: keys lie as q does; else as in memory, which takes fewer
 * copies, but registers for several elements of each key. BLOCK_ROWS: of the block: the length of a
 * row of the transposed q. DEPTH, UNROLL: steps of the scores and of the values that are one piece
 * of code; for the scores head_dim is rounded up to a multiple of DEPTH, with zeroes. DEPTH is a
 * multiple of 8, or where keys are transposed an even number. */
template <int D, int R, int KEYS, bool TRANSPOSED, int BLOCK_ROWS, int DEPTH, int UNROLL>
struct warp : rows<D, R, BLOCK_ROWS> {
    using state = rows<D, R, BLOCK_ROWS>;
    using state::all_see, state::o, state::sum, state::top, state::weights;
    using state::column, state::row_of;
    using state::COLUMNS, state::GROUPS, state::ROWS;

    static constexpr int C = KEYS / WARP_COLUMNS;
    /* Floats from a key's weights to the next's: what is stored of 8 keys at once lies in different
     * banks. */
    static constexpr int STRIDE = ROWS + 8;
    static constexpr int KEYS_STRIDE = TRANSPOSED ? KEYS + 4 : tile_stride(D);
    /* Floats of q and of the tiles, and a warp's of weights. Loads are ahead of the products: the
     * last ones reach a step further, where there is room, but nothing of use. Values need no gaps
     * between keys: a quarter of a warp reads one key's at a time. */
    static constexpr int Q_SIZE = (D + 1) * BLOCK_ROWS, V_SIZE = (KEYS + 1) * D;
    static constexpr int K_SIZE = TRANSPOSED ? (D + 1) * KEYS_STRIDE : KEYS * KEYS_STRIDE;
    static constexpr int WEIGHTS = (KEYS + 1) * STRIDE;
    static_assert(KEYS % 32 == 0 && KEYS % UNROLL == 0, "whole steps");
    static_assert(TRANSPOSED || KEYS_STRIDE >= D + 4, "room for four elements more");

    const float *q; /* the thread's first row, in the transposed tile: [D + 1][BLOCK_ROWS] */

    /* block_q: [D + 1][BLOCK_ROWS]; block_weights: [KEYS + 1][STRIDE] of each warp. */
    __device__ __forceinline__ void init(const struct args &args, const struct tile &tile,
                                         const float *block_q, float *block_weights)
    {
        const int number = (int)threadIdx.x / 32;

        state::init(args, tile, block_weights + number * WEIGHTS);
        q = block_q + number * ROWS + row_of(0);
    }

    /* Keys of the tile at `first` that the thread's row i sees. */
    __device__ __forceinline__ int visible(const struct args &args, uint32_t first, int i) const
    {
        const uint32_t keys = mask_visible_keys(&args.problem, state::first_row + row_of(i));
        return keys_in_tile(keys, first, KEYS);
    }

    /* Whether some row of the warp does not see all of the tile at `first`. */
    __device__ __forceinline__ bool masked(uint32_t first) const
    {
        return all_see < first + KEYS;
    }

    /* The thread's rows of a column of q or of weights. */
    __device__ __forceinline__ static void load_rows(float (&x)[R], const float *from)
    {
#pragma unroll
        for (int i = 0; i < R; i += 4)
            load4_in_order(&x[i], from + i * WARP_ROWS);
    }

    /* Which row the mth product of column j is of. A bank of registers, those of even or of odd
     * numbers, gives one operand a cycle: a product that reads three of them takes two cycles. So
     * each shares a factor with the one before it, which the assembler then keeps: a column's rows
     * go forwards, the next one's backwards; the even rows first. */
    __device__ __forceinline__ static constexpr int row_in_turn(int j, int m)
    {
        const int at = j % 2 ? R - 1 - m : m;
        return at < R / 2 ? 2 * at : 2 * (at - R / 2) + 1;
    }

    /* A step's factors: the thread's rows of a column of q or weights, and N of its columns of a
     * row of keys or values: groups of 4, of which b is the first, then those that are left. */
    template <int N> struct factors {
        float x[R], y[N];

        __device__ __forceinline__ void load(const float *a, const float *b)
        {
            load_rows(x, a);
#pragma unroll
            for (int j = 0; j < N / 4 * 4; j += 4)
                load4_in_order(&y[j], b + j * WARP_COLUMNS);
            static_assert(N % 4 == 0 || N % 4 == 2, "none is left, or two");
            if constexpr (N % 4 == 2)
                load2_in_order(&y[N - 2], /* b has 4 a lane, here are 2 */
                               b + N / 4 * 4 * WARP_COLUMNS - 2 * column());
        }

        template <bool MASKED>
        __device__ __forceinline__ void add(float (&sums)[R][N], int n, const int (&seen)[R]) const
        {
#pragma unroll
            for (int j = 0; j < N; j++)
#pragma unroll
                for (int m = 0; m < R; m++) {
                    const int i = row_in_turn(j, m);
                    if (!MASKED || n < seen[i])
                        sums[i][j] = __fmaf_rn(x[i], y[j], sums[i][j]);
                }
        }
    };

    /* sums[i][j] += a[n][row i] * b[n][column j] for one n after the other; count is a multiple of
     * U, which is even. MASKED: row i takes its first seen[i] only; whatever b holds of the others
     * leaves it alone, NaN too. Factors are loaded a step before their use, so a and b have one row
     * more than count. start() is called after the first loads. */
    template <int U, bool MASKED, int N, typename F>
    __device__ __forceinline__ static void add_products(float (&sums)[R][N], const float *a,
                                                        int a_stride, const float *b, int b_stride,
                                                        int count, const int (&seen)[R], F start)
    {
        factors<N> sets[2];

        static_assert(U % 2 == 0, "each step has its set");
        sets[0].load(a, b);
        start();
#pragma unroll 1
        for (int n = 0; n < count; n += U, a += U * a_stride, b += U * b_stride)
#pragma unroll
            for (int u = 0; u < U; u++) {
                sets[(u + 1) % 2].load(a + (u + 1) * a_stride, b + (u + 1) * b_stride);
                sets[u % 2].template add<MASKED>(sums, n + u, seen);
            }
    }

    /* Four elements of each of the thread's keys. */
    __device__ __forceinline__ static void load_keys(float (&y)[C][4], int first, int count,
                                                     const float *from)
    {
#pragma unroll
        for (int j = first; j < first + count; j++)
            load4_in_order(y[j], from + j * WARP_COLUMNS * KEYS_STRIDE);
    }

    /* sums[i][j] += q[d][row i] * k[key j][d] for one d after the other, with k as in memory, and
     * depth a multiple of DEPTH. Each step of d loads a quarter of the keys' next four elements; q
     * has a row and k 4 columns more than depth. start() is called after the first loads. */
    template <typename F>
    __device__ __forceinline__ static void add_scores(float (&sums)[R][C], const float *q,
                                                      const float *k, int depth, F start)
    {
        float x[2][R], y[2][C][4];

        static_assert(DEPTH % 8 == 0 && C % 4 == 0, "each step has its set");
        load_rows(x[0], q);
        load_keys(y[0], 0, C, k);
        start();
#pragma unroll 1
        for (int n = 0; n < depth; n += DEPTH, q += DEPTH * BLOCK_ROWS, k += DEPTH)
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                load_rows(x[(d + 1) % 2], q + (d + 1) * BLOCK_ROWS);
                load_keys(y[(d / 4 + 1) % 2], d % 4 * C / 4, C / 4, k + d / 4 * 4 + 4);
#pragma unroll
                for (int j = 0; j < C; j++)
#pragma unroll
                    for (int m = 0; m < R; m++) {
                        const int i = row_in_turn(j, m);
                        sums[i][j] = __fmaf_rn(x[d % 2][i], y[d / 4 % 2][j][d % 4], sums[i][j]);
                    }
            }
    }

    /* Scores of the tile k, [KEYS][KEYS_STRIDE] or transposed [D + 1][KEYS_STRIDE], whose first key
     * is `first`. depth: head_dim rounded up to a multiple of DEPTH.
     *
     * start() may start copies. It is called where no new registers are wanted for a while: a copy
     * seems to read its address when those before it are on their way, and an instruction that
     * overwrites it waits. */
    template <typename F>
    __device__ __forceinline__ void score(const struct args &args, const float *k, int depth,
                                          uint32_t first, float (&scores)[R][C], F start) const
    {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < C; j++)
                scores[i][j] = 0;
        if constexpr (TRANSPOSED) {
            const int unused[R] = {};
            add_products<DEPTH, false>(scores, q, BLOCK_ROWS, k + 4 * column(), KEYS_STRIDE, depth,
                                       unused, start);
        } else {
            add_scores(scores, q, k + column() * KEYS_STRIDE, depth, start);
        }
        if (!masked(first))
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
    template <bool MASKED, int G = 0, typename F>
    __device__ __forceinline__ void add_tile(const float *v, const float (&alpha)[R],
                                             const int (&seen)[R], F start)
    {
        constexpr bool LAST = G + PART_GROUPS >= GROUPS;
        constexpr int N = LAST ? COLUMNS - 4 * G : 4 * PART_GROUPS;
        float part[R][N];

#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                part[i][j] = 0;
        add_products<MASKED ? 4 : UNROLL, MASKED>(part, weights + row_of(0), STRIDE,
                                                  v + 4 * (G * WARP_COLUMNS + column()), D, KEYS,
                                                  seen, start);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                o[i][4 * G + j] = __fmaf_rn(o[i][4 * G + j], alpha[i], part[i][j]);
        if constexpr (!LAST)
            add_tile<MASKED, G + PART_GROUPS>(v, alpha, seen, [] {});
    }

    /* o = o * alpha + the tile's part, summed from zero. v: [KEYS + 1][D]. start() as in score. */
    template <typename F>
    __device__ __forceinline__ void add_values(const struct args &args, const float *v,
                                               uint32_t first, const float (&alpha)[R], F start)
    {
        int seen[R];

        if (masked(first)) {
#pragma unroll
            for (int i = 0; i < R; i++)
                seen[i] = visible(args, first, i);
            add_tile<true>(v, alpha, seen, start);
        } else {
            add_tile<false>(v, alpha, seen, start);
        }
    }
};

#endif
