/* decode.cu: few query rows over many keys: a decoding step. Nothing but the bandwidth of memory
 * should limit it: each key and value is read once, for all rows of all query heads that share it.
 *
 * A unit, and a block, is a key/value head against a span of its keys. Its warps work each on their
 * own: a warp takes every WARPS-th tile of the span's keys for all rows, and brings k and v of the
 * next tile into shared memory by asynchronous copies, k while it works on v and the other way
 * round. It is done with a tile long before the next one has come, so that nearly all of the
 * shared memory is being filled at any time, which is more than it takes to keep memory busy. At
 * its end the block merges the states of its warps, and where there are several spans, the block
 * that ends last merges those of the spans. */
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/decode.h"

/* A span has about a SPAN_SHARE-th of the keys, within limits that are multiples of SPAN_MULTIPLE
 * keys, a tile for each warp at least: the last of many blocks should be short, and there should be
 * blocks enough where heads are few; but a block takes a while to start and end, and spans leave
 * states behind, which take time to merge. A problem of one span needs no state. */
#define SPAN_SHARE 32u
#define SPAN_MOST  1024u
#define SPAN_ALONE 256u

/* --- The end --------------------------------------------------------------------------------- */

/* A row's state as a warp merges it: lanes have columns as in its tiles, and those beyond LANES the
 * same again. In memory it is STATE floats. */
template <typename S> struct total {
    float top = -INFINITY, sum = 0, o[S::COLUMNS] = {};

    __device__ __forceinline__ static int column(int i)
    {
        return 4 * ((int)threadIdx.x % S::LANES) + i / 4 * 4 * S::LANES + i % 4;
    }

    /* Adds a state of later keys, which is in shared memory, or was written by any block. */
    template <bool SHARED> __device__ __forceinline__ void add(const float *state, float scale_log2)
    {
        const float4 *const end = (const float4 *)(state + S::D);
        const float4 later = SHARED ? *end : __ldcg(end);
        float a, b;

        merge(top, sum, later.x, later.y, scale_log2, a, b);
#pragma unroll
        for (int i = 0; i < S::COLUMNS; i += 4) {
            const float4 *const from = (const float4 *)(state + column(i));
            const float4 x = SHARED ? *from : __ldcg(from);
            o[i + 0] = merged(o[i + 0], a, x.x, b);
            o[i + 1] = merged(o[i + 1], a, x.y, b);
            o[i + 2] = merged(o[i + 2], a, x.z, b);
            o[i + 3] = merged(o[i + 3], a, x.w, b);
        }
    }

    __device__ __forceinline__ void store(float *state) const
    {
        if (threadIdx.x % 32 < S::LANES)
#pragma unroll
            for (int i = 0; i < S::COLUMNS; i += 4)
                *(float4 *)(state + column(i)) = {o[i], o[i + 1], o[i + 2], o[i + 3]};
        if (threadIdx.x % 32 == 0)
            *(float4 *)(state + S::D) = {top, sum, 0, 0};
    }

    /* Writes the unit's row. */
    __device__ __forceinline__ void write(const struct args &args, const struct unit &unit,
                                          uint32_t row) const
    {
        const struct fa_problem &problem = args.problem;
        const float inverse = inverse_of(sum);
        float *to = unit.o + row_offset(problem, problem.o, row);

#pragma unroll
        for (int i = 0; i < S::COLUMNS; i++)
            if (threadIdx.x % 32 < S::LANES && column(i) < (int)problem.head_dim)
                to[column(i)] = output_of(o[i], inverse);
        if (threadIdx.x % 32 == 0 && unit.lse)
            unit.lse[row_offset(problem, problem.lse, row)] = lse_of(top, sum, problem.scale);
    }
};

/* Merges the states that the warps left, from the first to the last, to the span's state, or, where
 * `parts` is NULL, to the output. warp_states: the first warp's. A warp takes a row at a time. */
template <typename S>
__device__ __forceinline__ void merge_warps(const struct args &args, const struct unit &unit,
                                            const float *warp_states, float *parts)
{
    __syncthreads();
    for (uint32_t row = threadIdx.x / 32; row < unit.rows; row += WARPS) {
        total<S> total;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            total.template add<true>(warp_states + i * S::WARP_FLOATS + row * S::STATE,
                                     args.scale_log2);
        if (parts)
            total.store(parts + row * S::STATE);
        else
            total.write(args, unit, row);
    }
}

/* Merges the states of the spans that a row sees to those of the warps: each one merges a WARPS-th
 * of them, from the first to the last. Rows that are not there get another's. */
template <typename S>
__device__ __forceinline__ void merge_spans(const struct args &args, const struct unit &unit,
                                            float *states)
{
    constexpr int UNROLL = S::ROWS == 1 ? 8 : S::ROWS * S::COLUMNS > 32 ? 1 : 2;
    const uint32_t spans = unit.keys == 0 ? 1 : (unit.keys - 1) / args.cut.span_keys + 1;
    const uint32_t share = (spans + WARPS - 1) / WARPS;
    const uint32_t first = threadIdx.x / 32 * share, end = min(first + share, spans);
    total<S> totals[S::ROWS];

#pragma unroll UNROLL
    for (uint32_t span = first; span < end; span++)
#pragma unroll
        for (uint32_t i = 0; i < S::ROWS; i++) {
            const size_t row = (size_t)span * unit.rows + min(i, unit.rows - 1);
            totals[i].template add<false>(unit.parts + row * S::STATE, args.scale_log2);
        }
#pragma unroll
    for (int i = 0; i < S::ROWS; i++)
        totals[i].store(states + i * S::STATE);
}

/* Whether the block is the last one of the head to come here. Every thread of it does. */
__device__ __forceinline__ bool ends_last(const struct args &args, const struct unit &unit)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(unit.done, 1u) + 1 == args.cut.spans;
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* Ends the unit. all_states: where the first warp's go, its k. */
template <typename S>
__device__ __forceinline__ void end_unit(const struct args &args, const struct unit &unit,
                                         const states<S> &states, float *all_states)
{
    float *own = all_states + threadIdx.x / 32 * S::WARP_FLOATS;

#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        total<S> total;
        total.top = states.top[i];
        total.sum = states.sum[i];
#pragma unroll
        for (int j = 0; j < S::COLUMNS; j++)
            total.o[j] = lanes_sum<32 - S::LANES>(states.o[i][j]);
        total.store(own + i * S::STATE);
    }
    if (!args.cut.kept) {
        merge_warps<S>(args, unit, all_states, NULL);
        return;
    }
    if (unit.span == 0 || unit.first_key < unit.keys) /* else no row sees the span */
        merge_warps<S>(args, unit, all_states,
                       unit.parts + (size_t)unit.span * unit.rows * S::STATE);
    if (!ends_last(args, unit))
        return;
    merge_spans<S>(args, unit, own);
    merge_warps<S>(args, unit, all_states, NULL);
}

template <int D, int ROWS>
__global__ void __launch_bounds__(THREADS, shape<D, ROWS>::BLOCKS)
    decode_kernel(const __grid_constant__ struct args args)
{
    using S = shape<D, ROWS>;
    constexpr uint32_t STEP = WARPS * S::KEYS;
    extern __shared__ float4 shared[];
    __shared__ struct unit unit;
    const uint32_t warp = threadIdx.x / 32;
    float *q = (float *)shared, *all_states = q + S::Q;
    float *k = all_states + warp * S::WARP_FLOATS, *v = k + S::K, *weights = v + S::V;
    const struct fa_problem &problem = args.problem;
    states<S> states = {};

    const auto start_k = [&](uint32_t key) {
        start_copy<S, tile_stride(D)>(args, k, unit.k, problem.k.row, key, unit.end_key);
    };
    const auto start_v = [&](uint32_t key) {
        start_copy<S, D>(args, v, unit.v, problem.v.row, key, unit.end_key);
    };

    find_unit<S>(args, &unit);
    const uint32_t first = unit.first_key + warp * S::KEYS;
    start_k(first);
    start_v(first);
    copy_q<S>(args, unit, q);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        states.top[i] = -INFINITY;
    __syncthreads();
    for (uint32_t key = first; key < unit.end_key; key += STEP) {
        float scores[ROWS][1], alpha[ROWS];

        wait_but_for_one();
        score<S>(q, k, scores);
        __syncwarp();
        start_k(key + STEP);
        weigh_tile<S>(args, unit, key, scores, states, alpha, weights);
        wait_but_for_one();
        add_values<S>(unit, key, v, weights, alpha, states);
        __syncwarp();
        start_v(key + STEP);
    }
    end_unit<S>(args, unit, states, all_states);
}

/* --- On the host ----------------------------------------------------------------------------- */

bool decode_covers(const struct fa_problem *problem)
{
    uint64_t rows;

    if (problem->kv_heads == 0)
        return false;
    rows = (uint64_t)problem->q_len * (problem->heads / problem->kv_heads);
    return rows >= 1 && rows <= ROWS_MAX;
}

static struct cut cut_of(const struct fa_problem *problem)
{
    const uint32_t keys = problem->kv_len;
    const uint32_t share = divide_up(divide_up(keys, SPAN_SHARE), SPAN_MULTIPLE) * SPAN_MULTIPLE;
    struct cut cut = {.tiles = 1, .spans = 1, .span_keys = keys, .kept = keys > SPAN_ALONE};

    if (cut.kept) {
        cut.span_keys = share < SPAN_MOST ? share : SPAN_MOST;
        cut.spans = divide_up(keys, cut.span_keys);
    }
    return cut;
}

template <int D, int ROWS> constexpr struct cuda_function function_of(const char *name)
{
    return {name, (const void *)decode_kernel<D, ROWS>, THREADS, shape<D, ROWS>::SHARED};
}

enum { WIDTHS = 3, HEIGHTS = 3 };

static const uint32_t widths[WIDTHS] = {64, 128, 256}, heights[HEIGHTS] = {1, 4, 8};

static const struct cuda_function functions[WIDTHS][HEIGHTS] = {
    {function_of<64, 1>("decode<64,1>"), function_of<64, 4>("decode<64,4>"),
     function_of<64, 8>("decode<64,8>")},
    {function_of<128, 1>("decode<128,1>"), function_of<128, 4>("decode<128,4>"),
     function_of<128, 8>("decode<128,8>")},
    {function_of<256, 1>("decode<256,1>"), function_of<256, 4>("decode<256,4>"),
     function_of<256, 8>("decode<256,8>")},
};

/* Which D, and which ROWS, is for the problem. */
static int width_index(const struct fa_problem *problem)
{
    int i = 0;

    while (widths[i] < problem->head_dim)
        i++;
    return i;
}

static int height_index(const struct fa_problem *problem)
{
    int i = 0;

    while (heights[i] < rows_of(*problem))
        i++;
    return i;
}

uint64_t decode_units(const struct fa_problem *problem)
{
    uint64_t units;

    if (__builtin_mul_overflow((uint64_t)problem->batch * problem->kv_heads,
                               (uint64_t)cut_of(problem).spans, &units))
        return UINT64_MAX;
    return units;
}

/* A counter for each key/value head, then the spans' states of its rows. */
size_t decode_state(const struct fa_problem *problem)
{
    const struct cut cut = cut_of(problem);
    const uint64_t heads = (uint64_t)problem->batch * problem->kv_heads;
    const size_t row = (widths[width_index(problem)] + 4) * sizeof(float); /* shape::STATE */
    size_t bytes;

    if (!cut.kept)
        return 0;
    if (heads > SIZE_MAX / 64 ||
        __builtin_mul_overflow(heads, cut.spans * rows_of(*problem) * row, &bytes) ||
        bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return round_up_64(heads * sizeof(uint32_t)) + round_up_64(bytes);
}

enum fa_status decode_launch(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    const struct cuda_function *function = &functions[width_index(problem)][height_index(problem)];

    return for_each_part(launch, decode_units(problem), decode_state(problem), cut_of(problem),
                         GRID_MAX, [=](const struct args &args) {
                             return enqueue(function, function->shared, args.unit_count, args,
                                            launch->stream);
                         });
}

const struct cuda_function *decode_functions(size_t *count)
{
    *count = WIDTHS * HEIGHTS;
    return functions[0];
}
