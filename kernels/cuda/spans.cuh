/* spans.cuh: the units of the versions whose blocks own a tile of rows (v2 to v4). A unit is a tile
 * against a span of its keys. Where all keys are one short span the block writes the output. Else
 * the rows' states over a span go to the memory that the problem's ranges share, and whichever
 * block of a tile ends last merges them from the first span to the last: what ran where and when
 * cannot show in the result.
 *
 * A span's sums start afresh every CHUNK_KEYS keys, and what they came to is merged into the span's
 * state. Sums of many equal parts round the same way again and again: their error grows with the
 * number of parts, which is so the number of tiles in a chunk, and then that of chunks. */
#ifndef FA_KERNELS_CUDA_SPANS_CUH
#define FA_KERNELS_CUDA_SPANS_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/softmax.cuh"

/* A span has at most SPAN_KEYS keys, or SPAN_PER_ROWS times the rows of a head where that is more,
 * rounded up to SPAN_MULTIPLE; and all but the last have more than half of that. So many keep a
 * block busy for a while in a decoding step of one row, and the states of several spans come to
 * about a quarter of the bytes of k and v at most, where each query head has its own and head_dim
 * is not small. One span of more than CHUNK_KEYS keys has a state, too, about as large as o. */
#define SPAN_KEYS     2048u
#define SPAN_PER_ROWS 4u

/* Chunks, and spans but the last, are multiples of SPAN_MULTIPLE keys, which is one of every tile's
 * keys. */
#define CHUNK_KEYS    8192u
#define SPAN_MULTIPLE 64u

static inline struct cut spans_cut(const struct fa_problem *problem, uint32_t tile_rows)
{
    const uint64_t rows = (uint64_t)problem->q_len * SPAN_PER_ROWS, keys = problem->kv_len;
    const uint64_t span = rows > SPAN_KEYS ? rows : SPAN_KEYS;
    const uint64_t count = (keys + span - 1) / span;
    struct cut cut = {divide_up(problem->q_len, tile_rows), 1, problem->kv_len, keys > CHUNK_KEYS,
                      0};

    if (count > 1) {
        cut.span_keys = divide_up(divide_up(keys, (uint32_t)count), SPAN_MULTIPLE) * SPAN_MULTIPLE;
        cut.spans = divide_up(keys, cut.span_keys);
        cut.kept = true;
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

    if (!cut.kept)
        return 0;
    if (tiles > SIZE_MAX / 64 ||
        __builtin_mul_overflow(tiles, cut.spans * part_size(*problem, tile_rows) * sizeof(float),
                               &bytes) ||
        bytes > SIZE_MAX / 2)
        return SIZE_MAX;
    return round_up_64(tiles * sizeof(uint32_t)) + round_up_64(bytes);
}

/* fa_kernel.launch of a kernel whose blocks each take a unit. shared: bytes of dynamic shared
 * memory, at most the function's. */
static inline enum fa_status spans_launch(const struct fa_launch *launch, uint32_t tile_rows,
                                          const struct cuda_function *function, size_t shared)
{
    const struct fa_problem *problem = launch->problem;

    return for_each_part(launch, spans_units(problem, tile_rows), spans_state(problem, tile_rows),
                         spans_cut(problem, tile_rows), GRID_MAX, [=](const struct args &args) {
                             return enqueue(function, shared, args.unit_count, args,
                                            launch->stream);
                         });
}

/* The unit's tile and keys. The last rows of all heads come first: under a causal mask they see the
 * most keys, and what starts late should be short. */
__device__ __forceinline__ struct tile tile_of_unit(const struct args &args, uint64_t unit,
                                                    uint32_t tile_rows)
{
    const struct fa_problem &problem = args.problem;
    const struct cut &cut = args.cut;
    const uint64_t heads = (uint64_t)problem.batch * problem.heads, tiles = heads * cut.tiles;
    const uint64_t problem_number = unit / cut.spans / tiles, index = unit / cut.spans % tiles;
    const uint32_t number = cut.tiles - 1 - (uint32_t)(index / heads);
    struct tile tile =
        tile_at(args, problem_number * heads + index % heads, number * tile_rows, tile_rows);

    if (cut.kept) {
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

/* The block's into shared memory, so that registers hold what is needed now. Synchronises. */
__device__ __forceinline__ void find_tile(const struct args &args, uint32_t tile_rows,
                                          struct tile *tile)
{
    if (threadIdx.x == 0)
        *tile = tile_of_unit(args, args.first_unit + blockIdx.x, tile_rows);
    __syncthreads();
}

/* Where a row's state over a span goes: head_dim elements of o, top, sum. */
__device__ __forceinline__ float *part_row(const struct args &args, const struct tile &tile,
                                           uint32_t span, uint32_t row)
{
    return tile.parts + ((size_t)span * min(args.problem.q_len, tile.tile_rows) + row) *
                            (args.problem.head_dim + 2);
}

/* Whether a chunk of the unit's keys, but not the last one, ends before `key`. */
__device__ __forceinline__ bool chunk_ends(const struct tile &tile, uint32_t key)
{
    return (key - tile.first_key) % CHUNK_KEYS == 0 && key < tile.end_key;
}

/* Whether the unit has a result: the first span's does even where it sees no key. */
__device__ __forceinline__ bool has_part(const struct tile &tile)
{
    return tile.span == 0 || tile.first_key < tile.keys;
}

/* Merges the results of the spans that the tile sees, and writes the output. A warp takes a row. */
__device__ __forceinline__ void merge_spans(const struct args &args, const struct tile &tile)
{
    constexpr int STEPS = FA_HEAD_DIM_MAX / 32;
    const struct fa_problem &problem = args.problem;
    const uint32_t spans = tile.keys == 0 ? 1 : (tile.keys - 1) / args.cut.span_keys + 1;
    const uint32_t head_dim = problem.head_dim, lane = threadIdx.x % 32;

    for (uint32_t row = threadIdx.x / 32; row < tile.rows; row += blockDim.x / 32) {
        float top = -INFINITY, sum = 0, o[STEPS] = {}, inverse;
        for (uint32_t span = 0; span < spans; span++) {
            const float *part = part_row(args, tile, span, row);
            float a, b;
            merge(top, sum, __ldcg(part + head_dim), __ldcg(part + head_dim + 1), args.scale_log2,
                  a, b);
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                if (lane + 32 * i < head_dim)
                    o[i] = merged(o[i], a, __ldcg(part + lane + 32 * i), b);
        }
        inverse = inverse_of(sum);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (lane + 32 * i < head_dim)
                tile.o[row * problem.o.row + lane + 32 * i] = output_of(o[i], inverse);
        if (lane == 0 && tile.lse)
            tile.lse[row * problem.lse.row] = lse_of(top, sum, problem.scale);
    }
}

/* Ends a unit whose result, if it has one, is kept; every thread of the block comes here. */
__device__ __forceinline__ void end_span(const struct args &args, const struct tile &tile)
{
    __shared__ bool last;

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(tile.done, 1u) + 1 == args.cut.spans;
        __threadfence();
    }
    __syncthreads();
    if (last) {
        __threadfence();
        merge_spans(args, tile);
    }
}

#endif
