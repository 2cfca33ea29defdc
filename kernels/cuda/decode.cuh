/* decode.cuh: what a block of decode.cu works on, and what a warp does with a tile of its keys: the
 * copies that bring it, the scores, the weights and the values.
 *
 * Scores: a lane, or SPLIT of them, have a key of the tile and score it against all rows. Values: a
 * lane has 4 columns (8 with D = 256) of all rows. The weights go from one to the other through
 * shared memory. */
#ifndef FA_KERNELS_CUDA_DECODE_CUH
#define FA_KERNELS_CUDA_DECODE_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/cuda/softmax.cuh"

#define ROWS_MAX 8u

/* Of a block. */
#define WARPS   4
#define THREADS (WARPS * 32)

/* Spans, but the last, are a multiple of so many keys. */
#define SPAN_MULTIPLE 128u

/* D: head_dim at most; columns beyond head_dim are zeroes. ROWS: rows of a unit at most; those that
 * are not there are computed from zeroes. */
template <int D_, int ROWS_> struct shape {
    static constexpr int D = D_, ROWS = ROWS_;
    static constexpr int KEYS = 2048 / D;              /* of a tile, which takes 8 KiB */
    static constexpr int SPLIT = 32 / KEYS;            /* lanes that share a key's columns */
    static constexpr int LANES = D < 128 ? D / 4 : 32; /* that share a row of values */
    static constexpr int GROUPS = D / (4 * LANES), COLUMNS = 4 * GROUPS; /* of a lane */
    static constexpr int STATE = D + 4; /* of a row: o, top, sum, two unused; 16-byte aligned */

    /* Floats of shared memory. Each warp has a tile of k, one of v, and the weights of a tile,
     * [KEYS][ROWS]; where k was go its rows' states at the end. */
    static constexpr int Q = ROWS * D;
    static constexpr int K = KEYS * tile_stride(D), V = KEYS * D, WARP_FLOATS = K + V + KEYS * ROWS;
    static constexpr size_t SHARED = (Q + WARPS * WARP_FLOATS) * sizeof(float);

    /* Of an SM of 228 KiB; one fits an SM of 100 KiB. The largest has too many registers for 3. */
    static constexpr int BLOCKS = D * ROWS <= 1024 ? 3 : 2;

    static_assert(SPAN_MULTIPLE % (WARPS * KEYS) == 0, "no tile crosses the end of a span");
    static_assert(ROWS * STATE <= K && ROWS <= (int)ROWS_MAX, "room for the states");
};

/* What a block works on. Row i of a unit is row i % q_len of the i / q_len-th query head. */
struct unit {
    const float *q, *k, *v; /* of the key/value head; q and the outputs of its first query head */
    float *o;
    float *lse; /* NULL: not wanted */
    uint32_t rows;
    uint32_t keys;               /* that the last row, and so any of them, sees */
    uint32_t first_key, end_key; /* the span's part of these; may be empty */
    uint32_t span;
    uint32_t *done;             /* how many spans of the head are done */
    float *parts;               /* [spans][rows][STATE] */
    uint32_t visible[ROWS_MAX]; /* keys that each row sees; the first one sees the fewest */
};

/* --- Where things are ------------------------------------------------------------------------ */

__host__ __device__ static inline uint32_t rows_of(const struct fa_problem &problem)
{
    return problem.q_len * (problem.heads / problem.kv_heads);
}

/* Of a unit's row from its first one. */
__device__ __forceinline__ int64_t row_offset(const struct fa_problem &problem,
                                              const struct fa_strides &strides, uint32_t row)
{
    return offset_of(strides, 0, row / problem.q_len, row % problem.q_len);
}

template <typename S>
__device__ __forceinline__ void find_unit_of_block(const struct args &args, struct unit *unit)
{
    const struct fa_problem &problem = args.problem;
    const struct cut &cut = args.cut;
    const uint64_t number = args.first_unit + blockIdx.x;
    const uint64_t heads = (uint64_t)problem.batch * problem.kv_heads;
    const uint64_t kv = number / cut.spans, problem_number = kv / heads, index = kv % heads;
    const uint64_t batch = index / problem.kv_heads, kv_head = index % problem.kv_heads;
    const uint64_t head = kv_head * (problem.heads / problem.kv_heads);
    const struct fa_tensors &tensors = args.tensors[problem_number];

    unit->q = (const float *)tensors.q + offset_of(problem.q, batch, head, 0);
    unit->k = (const float *)tensors.k + offset_of(problem.k, batch, kv_head, 0);
    unit->v = (const float *)tensors.v + offset_of(problem.v, batch, kv_head, 0);
    unit->o = (float *)tensors.o + offset_of(problem.o, batch, head, 0);
    unit->lse = tensors.lse ? (float *)tensors.lse + offset_of(problem.lse, batch, head, 0) : NULL;
    unit->rows = rows_of(problem);
    unit->keys = mask_visible_keys(&problem, problem.q_len - 1);
    unit->span = (uint32_t)(number - kv * cut.spans);
    unit->first_key = min(unit->span * cut.span_keys, unit->keys);
    unit->end_key = min(unit->keys - unit->first_key, cut.span_keys) + unit->first_key;
    if (cut.kept) {
        char *state = args.state + problem_number * args.state_bytes;
        unit->done = (uint32_t *)state + index;
        unit->parts = (float *)(state + (heads * sizeof(uint32_t) + 63) / 64 * 64) +
                      index * cut.spans * unit->rows * S::STATE;
    }
}

/* Into shared memory. Synchronises. */
template <typename S>
__device__ __forceinline__ void find_unit(const struct args &args, struct unit *unit)
{
    const uint32_t thread = threadIdx.x;

    if (thread == 0)
        find_unit_of_block<S>(args, unit);
    else if (thread >= 32 && thread < 32 + S::ROWS)
        unit->visible[thread - 32] =
            mask_visible_keys(&args.problem, (thread - 32) % args.problem.q_len);
    __syncthreads();
}

/* --- Copies ---------------------------------------------------------------------------------- */

/* Ends a group of the thread's copies; it may be empty. */
__device__ __forceinline__ void end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for the warp's copies but those of the last group. */
__device__ __forceinline__ void wait_but_for_one()
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

/* Starts the warp's copy of a tile of KEYS by D, of which rows by width are there, BYTES at a time;
 * width is a multiple of so many. */
template <typename S, int STRIDE, int BYTES>
__device__ __forceinline__ void copy_tile_async(float *to, const float *from, int64_t row_stride,
                                                int rows, int width)
{
    constexpr int WIDTH = BYTES / 4, PER_ROW = S::D / WIDTH;
    constexpr int ACROSS = PER_ROW < 32 ? PER_ROW : 32, STEP = 32 / ACROSS; /* of the lanes */
    constexpr int UNROLL = BYTES == 16 ? S::KEYS / STEP : 2;
    const int lane = (int)threadIdx.x % 32, first = lane / ACROSS, column = lane % ACROSS * WIDTH;
    const float *next = from + first * row_stride + column;

    to += first * STRIDE + column;
#pragma unroll UNROLL
    for (int row = 0; row < S::KEYS; row += STEP) {
#pragma unroll
        for (int i = 0; i < S::D; i += ACROSS * WIDTH)
            copy_async<BYTES>(to + row * STRIDE + i, next + i,
                              first + row < rows && column + i < width);
        next += STEP * row_stride;
    }
}

/* Starts copying the tile at `key`, zeroes from end_key on, as a group of its own, which is empty
 * where there is no such tile. */
template <typename S, int STRIDE>
__device__ __forceinline__ void start_copy(const struct args &args, float *to, const float *head,
                                           int64_t row_stride, uint32_t key, uint32_t end_key)
{
    const int width = (int)args.problem.head_dim;

    if (key < end_key) {
        const float *from = head + (int64_t)key * row_stride;
        const int rows = (int)min(end_key - key, (uint32_t)S::KEYS);
        if (args.aligned && width % 4 == 0)
            copy_tile_async<S, STRIDE, 16>(to, from, row_stride, rows, width);
        else
            copy_tile_async<S, STRIDE, 4>(to, from, row_stride, rows, width);
    }
    end_group();
}

/* The unit's rows of q, times the scale's sign, and zeroes around them. A warp takes a row. */
template <typename S>
__device__ __forceinline__ void copy_q(const struct args &args, const struct unit &unit, float *q)
{
    const uint32_t lane = threadIdx.x % 32;

    for (uint32_t row = threadIdx.x / 32; row < S::ROWS; row += WARPS) {
        const float *from = unit.q + row_offset(args.problem, args.problem.q, row);
#pragma unroll
        for (uint32_t d = lane; d < S::D; d += 32)
            q[row * S::D + d] =
                row < unit.rows && d < args.problem.head_dim ? args.sign * from[d] : 0;
    }
}

/* --- A warp's tile --------------------------------------------------------------------------- */

/* A warp's states of all rows. Lanes that differ in bits above LANES have different keys' o. */
template <typename S> struct states {
    float top[S::ROWS], sum[S::ROWS], o[S::ROWS][S::COLUMNS];
};

/* Scores of a tile k, [KEYS][tile_stride(D)], against q, [ROWS][D]: key lane % KEYS. A lane sums
 * every 4th of its columns by itself. */
template <typename S>
__device__ __forceinline__ void score(const float *q, const float *k, float (&scores)[S::ROWS][1])
{
    constexpr int UNROLL = S::ROWS == 1 ? 16 : 4;
    const int lane = (int)threadIdx.x % 32, column = 4 * (lane / S::KEYS);
    float sums[S::ROWS][4] = {};

    q += column;
    k += lane % S::KEYS * tile_stride(S::D) + column;
#pragma unroll UNROLL
    for (int d = 0; d < S::D; d += 4 * S::SPLIT) {
        const float4 y = load4(k + d);
#pragma unroll
        for (int i = 0; i < S::ROWS; i++) {
            const float4 x = load4(q + i * S::D + d);
            sums[i][0] = __fmaf_rn(x.x, y.x, sums[i][0]);
            sums[i][1] = __fmaf_rn(x.y, y.y, sums[i][1]);
            sums[i][2] = __fmaf_rn(x.z, y.z, sums[i][2]);
            sums[i][3] = __fmaf_rn(x.w, y.w, sums[i][3]);
        }
    }
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
        scores[i][0] = lanes_sum<32 - S::KEYS>(
            __fadd_rn(__fadd_rn(sums[i][0], sums[i][1]), __fadd_rn(sums[i][2], sums[i][3])));
}

/* Scores of the tile at `key` to weights in shared memory. */
template <typename S>
__device__ __forceinline__ void
weigh_tile(const struct args &args, const struct unit &unit, uint32_t key,
           float (&scores)[S::ROWS][1], states<S> &states, float (&alpha)[S::ROWS], float *weights)
{
    const int lane = (int)threadIdx.x % 32;

    if (unit.visible[0] < key + S::KEYS)
#pragma unroll
        for (int i = 0; i < S::ROWS; i++)
            if (key + lane % S::KEYS >= unit.visible[i])
                scores[i][0] = -INFINITY;
    weigh<S::ROWS, 1, S::KEYS - 1>(scores, states.top, states.sum, alpha, args.scale_log2);
    if (lane < S::KEYS)
#pragma unroll
        for (int i = 0; i < S::ROWS; i++)
            weights[lane * S::ROWS + i] = scores[i][0];
}

/* o = o * alpha + the tile's part, summed from zero. v: [KEYS][D]; weights: [KEYS][ROWS]. Where
 * fewer than 32 lanes have a row's columns, their groups take turns at 4 keys. MASKED: row i takes
 * its first seen[i] keys only. */
template <typename S, bool MASKED>
__device__ __forceinline__ void add_tile(const float *v, const float *weights,
                                         const float (&alpha)[S::ROWS], const int (&seen)[S::ROWS],
                                         states<S> &states)
{
    constexpr int UNROLL = MASKED ? 1 : S::ROWS == 1 ? 4 : 2;
    const int lane = (int)threadIdx.x % 32;
    float part[S::ROWS][S::COLUMNS] = {};

    v += 4 * (lane % S::LANES);
#pragma unroll UNROLL
    for (int turn = 0; turn < S::KEYS; turn += 4 * 32 / S::LANES) {
        const int first = turn + 4 * (lane / S::LANES);
        float w[4 * S::ROWS];
#pragma unroll
        for (int i = 0; i < 4 * S::ROWS; i += 4) {
            const float4 x = load4(weights + first * S::ROWS + i);
            w[i] = x.x, w[i + 1] = x.y, w[i + 2] = x.z, w[i + 3] = x.w;
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int g = 0; g < S::COLUMNS; g += 4) {
                const float4 x = load4(v + (first + n) * S::D + g * S::LANES);
#pragma unroll
                for (int i = 0; i < S::ROWS; i++) {
                    if (MASKED && first + n >= seen[i])
                        continue; /* whatever v holds, NaN too */
                    part[i][g + 0] = __fmaf_rn(w[n * S::ROWS + i], x.x, part[i][g + 0]);
                    part[i][g + 1] = __fmaf_rn(w[n * S::ROWS + i], x.y, part[i][g + 1]);
                    part[i][g + 2] = __fmaf_rn(w[n * S::ROWS + i], x.z, part[i][g + 2]);
                    part[i][g + 3] = __fmaf_rn(w[n * S::ROWS + i], x.w, part[i][g + 3]);
                }
            }
    }
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
#pragma unroll
        for (int j = 0; j < S::COLUMNS; j++)
            states.o[i][j] = __fmaf_rn(states.o[i][j], alpha[i], part[i][j]);
}

/* The values of the tile at `key`. What no row sees was copied as zeroes, and has weight 0. */
template <typename S>
__device__ __forceinline__ void add_values(const struct unit &unit, uint32_t key, const float *v,
                                           const float *weights, const float (&alpha)[S::ROWS],
                                           states<S> &states)
{
    int seen[S::ROWS] = {};

    if (S::ROWS > 1 && unit.visible[0] < min(key + S::KEYS, unit.end_key)) {
#pragma unroll
        for (int i = 0; i < S::ROWS; i++)
            seen[i] = keys_in_tile(unit.visible[i], key, S::KEYS);
        add_tile<S, true>(v, weights, alpha, seen, states);
    } else {
        add_tile<S, false>(v, weights, alpha, seen, states);
    }
}

#endif
