/* spans.cuh: the units of the versions whose blocks own a tile of rows (v2 to v4). A unit is a tile
 * against a span of its keys. With one span the block writes the output; with several each leaves
 * its rows' states in the memory that the problem's ranges share, and whichever ends last merges
 * them from the first span to the last: what ran where and when cannot show in the result. */
#ifndef FA_KERNELS_CUDA_SPANS_CUH
#define FA_KERNELS_CUDA_SPANS_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/softmax.cuh"

/* Keys of a span, at least: one row of a decoding step makes a block of them busy for a while. The
 * states of M rows over N / SPAN keys are M / (2 SPAN) of the bytes of k and v: an eighth at most
 * by the second rule. */
#define SPAN_KEYS     2048u
#define SPAN_PER_ROWS 4u

/* Every tile of keys of v2 to v4 divides it. */
#define SPAN_MULTIPLE 64u

static inline struct cut spans_cut(const struct fa_problem *problem, uint32_t tile_rows)
{
    const uint64_t rows = (uint64_t)problem->q_len * SPAN_PER_ROWS, keys = problem->kv_len;
    const uint64_t span = rows > SPAN_KEYS ? rows : SPAN_KEYS;
    const uint64_t count = (keys + span - 1) / span;
    struct cut cut = {divide_up(problem->q_len, tile_rows), 1, problem->kv_len};

    if (count > 1) {
        cut.span_keys = divide_up(divide_up(keys, (uint32_t)count), SPAN_MULTIPLE) * SPAN_MULTIPLE;
        cut.spans = divide_up(keys, cut.span_keys);
    }
    return cut;
}

static inline uint64_t spans_units(const struct fa_problem *problem, uint32_t tile_rows)
{
    const struct cut cut = spans_cut(problem, tile_rows);
    return units_of(problem, (uint64_t)cut.tiles * cut.spans);
}

/* Floats of the states of a tile's rows over one span. */
__host__ __device__ inline size_t part_size(const struct fa_problem &problem, uint32_t tile_rows)
{
    return (size_t)min(problem.q_len, tile_rows) * (problem.head_dim + 2);
}

/* A counter for each tile, then the parts. */
static inline size_t spans_state(const struct fa_problem *problem, uint32_t tile_rows)
{
    const struct cut cut = spans_cut(problem, tile_rows);
    const uint64_t tiles = units_of(problem, cut.tiles);
    size_t bytes;

    if (cut.spans == 1)
        return 0;
    if (tiles > SIZE_MAX / 64 ||
        __builtin_mul_overflow(tiles, cut.spans * part_size(*problem, tile_rows) * sizeof(float),
                               &bytes) ||
        bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return round_up_64(tiles * sizeof(uint32_t)) + round_up_64(bytes);
}

/* The block's tile and keys. The last rows of all heads come first: under a causal mask they see
 * the most keys, and what starts late should be short. */
__device__ __forceinline__ struct tile tile_of_block(const struct args &args, uint32_t tile_rows)
{
    const struct fa_problem &problem = args.problem;
    const struct cut &cut = args.cut;
    const uint64_t unit = args.first_unit + blockIdx.x;
    const uint64_t heads = (uint64_t)problem.batch * problem.heads, tiles = heads * cut.tiles;
    const uint64_t problem_number = unit / cut.spans / tiles, index = unit / cut.spans % tiles;
    const uint32_t number = cut.tiles - 1 - (uint32_t)(index / heads);
    struct tile tile =
        tile_at(args, problem_number * heads + index % heads, number * tile_rows, tile_rows);

    if (cut.spans > 1) {
        char *state = args.state + problem_number * args.state_bytes;
        tile.span = (uint32_t)(unit % cut.spans);
        tile.first_key = min(tile.span * cut.span_keys, tile.keys);
        tile.end_key = min(tile.keys - tile.first_key, cut.span_keys) + tile.first_key;
        tile.done = (uint32_t *)state + index;
        tile.parts = (float *)(state + (tiles * sizeof(uint32_t) + 63) / 64 * 64) +
                     index * cut.spans * part_size(problem, tile_rows);
    }
    return tile;
}

/* The same into shared memory, so that registers hold what is needed now. Synchronises. */
__device__ __forceinline__ void find_tile(const struct args &args, uint32_t tile_rows,
                                          struct tile *tile)
{
    if (threadIdx.x == 0)
        *tile = tile_of_block(args, tile_rows);
    __syncthreads();
}

/* Where a row's state over the unit's span goes: head_dim elements of o, top, sum. */
__device__ __forceinline__ float *part_row(const struct args &args, const struct tile &tile,
                                           uint32_t span, uint32_t row)
{
    return tile.parts + ((size_t)span * min(args.problem.q_len, tile.tile_rows) + row) *
                            (args.problem.head_dim + 2);
}

/* Merges the parts of the spans that the tile sees, and writes the output. */
__device__ __forceinline__ void merge_spans(const struct args &args, const struct tile &tile)
{
    const uint32_t head_dim = args.problem.head_dim;
    const uint32_t spans = tile.keys == 0 ? 1 : (tile.keys - 1) / args.cut.span_keys + 1;

    for (uint32_t i = threadIdx.x; i < tile.rows * head_dim; i += blockDim.x) {
        const uint32_t row = i / head_dim, d = i % head_dim;
        float top = -INFINITY, sum = 0, o = 0;
        for (uint32_t span = 0; span < spans; span++) {
            const float *part = part_row(args, tile, span, row);
            const float part_top = __ldcg(part + head_dim), part_sum = __ldcg(part + head_dim + 1);
            const float most = fmaxf(top, part_top), shift = shift_of(most);
            const float a = weight_of(top, shift, args.scale_log2);
            const float b = weight_of(part_top, shift, args.scale_log2);
            sum = __fmaf_rn(sum, a, __fmul_rn(part_sum, b));
            o = __fmaf_rn(o, a, __fmul_rn(__ldcg(part + d), b));
            top = most;
        }
        tile.o[(int64_t)row * args.problem.o.row + d] = output_of(o, inverse_of(sum));
        if (d == 0 && tile.lse)
            tile.lse[(int64_t)row * args.problem.lse.row] = lse_of(top, sum, args.problem.scale);
    }
}

/* Ends a unit of several whose states are written; every thread of the block comes here. */
__device__ __forceinline__ void end_span(const struct args &args, const struct tile &tile)
{
    __shared__ bool last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(tile.done, 1u) + 1 == args.cut.spans;
    __syncthreads();
    if (last) {
        __threadfence();
        merge_spans(args, tile);
    }
}

#endif
