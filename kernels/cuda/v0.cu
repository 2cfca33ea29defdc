/* v0: naive. Three kernels, as attention is written down: the scores S = q k^T go to memory, the
 * softmax of each of their rows back to where they were (P), and o = P v.
 *
 * The products are what a plain matrix multiplication looks like: tiles of 64 by 64 through shared
 * memory, 4 by 4 sums a thread. What is left: S and P, M * N elements a head, go through memory:
 * written by the scores, read and written by the softmax, read by the values. S and P of all units
 * take turns in one workspace: a launch goes through its units in groups.
 *
 * A unit is 64 rows of a head against all keys. */
#include "kernels/cuda/block.cuh"

#define SIDE  64 /* rows, keys and columns of a tile; elements of a slab of head_dim */
#define STEPS (SIDE / BLOCK_SIDE)
#define TILE  (SIDE * tile_stride(SIDE)) /* floats of a tile of rows */

/* A sum over keys starts afresh every so many, as in spans.cuh, else its error could grow with the
 * keys. Whole tiles. */
#define CHUNK_KEYS 8192u

/* Bytes of the workspace, unless one unit needs more: 512 units at 2048 keys. More are little
 * faster; fewer leave multiprocessors idle in the second product, which has one block for each 64
 * columns of a unit. A problem of few units gets room for more of a launch's problems, but within
 * FEW_WORKSPACE. */
#define WORKSPACE     ((size_t)256 << 20)
#define FEW_WORKSPACE ((size_t)16 << 20)

/* Units of a group: their blocks, 8 each, are to fit a grid. */
#define GROUP_MAX (1u << 24)

static struct cut cut_of(const struct fa_problem *problem)
{
    return {divide_up(problem->q_len, SIDE), divide_up(problem->kv_len, SIDE), 0, false};
}

static uint64_t units(const struct fa_problem *problem)
{
    return units_of(problem, cut_of(problem).tiles);
}

/* Floats of S of one unit; whole tiles. */
__host__ __device__ static inline size_t unit_size(const struct cut &cut)
{
    return (size_t)cut.spans * SIDE * SIDE;
}

static uint64_t group_units(const struct fa_problem *problem)
{
    const size_t bytes = unit_size(cut_of(problem)) * sizeof(float);
    const uint64_t all = units(problem), divisor = bytes > 0 ? bytes : 1;
    const uint64_t few = FEW_WORKSPACE / divisor, wanted = all > few ? all : few;
    const uint64_t fitting = WORKSPACE / divisor, group = wanted < fitting ? wanted : fitting;

    return group < 1 ? 1 : group < GROUP_MAX ? group : GROUP_MAX;
}

static size_t scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)units;
    return group_units(problem) * unit_size(cut_of(problem)) * sizeof(float);
}

__device__ __forceinline__ struct tile rows_of(const struct args &args, uint64_t group_unit)
{
    const uint64_t unit = args.first_unit + group_unit;
    return tile_at(args, unit / args.cut.tiles, (uint32_t)(unit % args.cut.tiles) * SIDE, SIDE);
}

/* The same into shared memory, which one thread finds: it takes divisions, and all threads'
 * registers. Synchronises. */
__device__ __forceinline__ void find_rows(const struct args &args, uint64_t group_unit,
                                          struct tile *tile)
{
    if (threadIdx.x == 0)
        *tile = rows_of(args, group_unit);
    __syncthreads();
}

/* S of a unit: [row][key], rows of whole tiles. */
__device__ __forceinline__ float *scores_of(const struct args &args, uint64_t group_unit)
{
    return args.scratch + group_unit * unit_size(args.cut);
}

/* A block: one tile of S. Masked scores within it are written, too, and never used. */
__global__ void __launch_bounds__(BLOCK_THREADS, 3)
    v0_scores_kernel(const __grid_constant__ struct args args)
{
    __shared__ float4 shared[2 * TILE / 4];
    float *q = (float *)shared, *k = q + TILE;
    const struct fa_problem &problem = args.problem;
    const uint32_t first = blockIdx.x % args.cut.spans * SIDE;
    const int row = block_row(), column = block_column(), stride = tile_stride(SIDE);
    float sums[STEPS][STEPS] = {};
    __shared__ struct tile tile;
    float *scores;

    find_rows(args, blockIdx.x / args.cut.spans, &tile);
    if (first >= tile.keys)
        return;
    for (int d = 0; d < (int)problem.head_dim; d += SIDE) {
        const int width = min(SIDE, (int)problem.head_dim - d), padded = block_width(width);
        float4 q_part[COPY_ROWS], k_part[COPY_ROWS];
        load_tile<SIDE>(q_part, tile.q + d, problem.q.row, (int)tile.rows, width, args.aligned);
        load_tile<SIDE>(k_part, tile.k + first * problem.k.row + d, problem.k.row,
                        tile_keys(args, first, SIDE), width, args.aligned);
        __syncthreads();
        store_tile<SIDE>(q, stride, padded, q_part, args.sign);
        store_tile<SIDE>(k, stride, padded, k_part);
        __syncthreads();
        add_dots<2, STEPS, STEPS, BLOCK_SIDE>(sums, q + row * stride, stride, k + column * stride,
                                              stride, padded);
    }
    scores = scores_of(args, blockIdx.x / args.cut.spans) + first;
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int j = 0; j < STEPS; j++)
            scores[(size_t)(row + i * BLOCK_SIDE) * args.cut.spans * SIDE + column +
                   j * BLOCK_SIDE] = sums[i][j];
}

/* A first weight of a row that has none above 0, though it sees keys: it gets no values, not even
 * 0 times NaN. */
#define NO_WEIGHTS -1.0f

/* Turns the scores of a row of at most 32 * KEYS keys into its P: read once, and written once. A
 * lane's keys are 32 apart. Returns what top and sum are then, as stream_row does. */
template <int KEYS>
__device__ __forceinline__ float2 hold_row(float *scores, int keys, float scale_log2)
{
    const int left = keys - (int)threadIdx.x % 32;
    float held[KEYS], top = -INFINITY, sum = 0, shift, inverse;

    scores += threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        held[i] = 32 * i < left ? scores[32 * i] : -INFINITY;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        top = fmaxf(top, held[i]);
    top = lanes_max<31>(top);
    shift = shift_of(top);
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        held[i] = weight_of(held[i], shift, scale_log2); /* 0 where there is no key */
        sum = __fadd_rn(sum, held[i]);
    }
    sum = lanes_sum<31>(sum);
    inverse = inverse_of(sum);
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (32 * i < left)
            scores[32 * i] = sum == 0 ? NO_WEIGHTS : __fmul_rn(held[i], inverse);
    return {top, sum};
}

/* The same of any number of keys: read three times, since they do not fit a warp's registers. */
__device__ __forceinline__ float2 stream_row(float *scores, uint32_t keys, float scale_log2)
{
    const uint32_t lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0, shift, inverse;

    for (uint32_t key = lane; key < keys; key += 32)
        top = fmaxf(top, scores[key]);
    top = lanes_max<31>(top);
    shift = shift_of(top);
    for (uint32_t key = lane; key < keys;) {
        const uint32_t end = min(keys - key, CHUNK_KEYS) + key;
        float part = 0;
        for (; key < end; key += 32)
            part = __fadd_rn(part, weight_of(scores[key], shift, scale_log2));
        sum = __fadd_rn(sum, part);
    }
    sum = lanes_sum<31>(sum);
    inverse = inverse_of(sum);
    for (uint32_t key = lane; key < keys; key += 32)
        scores[key] =
            sum == 0 ? NO_WEIGHTS : __fmul_rn(weight_of(scores[key], shift, scale_log2), inverse);
    return {top, sum};
}

/* A warp: one row. The block's are all of one unit. */
__global__ void __launch_bounds__(BLOCK_THREADS, 2)
    v0_softmax_kernel(const __grid_constant__ struct args args)
{
    const uint64_t index = (uint64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;
    const uint32_t row = index % SIDE;
    float *scores = scores_of(args, index / SIDE) + (size_t)row * args.cut.spans * SIDE;
    __shared__ struct tile tile;
    uint32_t keys;
    float2 ends; /* top, sum */

    find_rows(args, index / SIDE, &tile);
    if (row >= tile.rows)
        return;
    keys = mask_visible_keys(&args.problem, tile.first_row + row);
    if (keys <= 32 * 8)
        ends = hold_row<8>(scores, (int)keys, args.scale_log2);
    else if (keys <= 32 * 64)
        ends = hold_row<64>(scores, (int)keys, args.scale_log2);
    else
        ends = stream_row(scores, keys, args.scale_log2);
    if (threadIdx.x % 32 == 0 && tile.lse)
        tile.lse[row * args.problem.lse.row] = lse_of(ends.x, ends.y, args.problem.scale);
}

/* sums += P v of the tile of keys at `first`, summed from zero. seen: of how many keys each of the
 * unit's rows takes the values. */
__device__ __forceinline__ void add_tile(const float *weights, const float *v, uint32_t first,
                                         const uint32_t *seen, float (&sums)[STEPS][4])
{
    float part[STEPS][4] = {};
    int visible[STEPS] = {};
    uint32_t least = seen[block_row()];

#pragma unroll
    for (int i = 1; i < STEPS; i++)
        least = min(least, seen[block_row() + i * BLOCK_SIDE]);
    weights += block_row() * weight_stride(SIDE);
    v += 4 * block_column();
    if (least < first + SIDE) {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            visible[i] = keys_in_tile(seen[block_row() + i * BLOCK_SIDE], first, SIDE);
        add_values<1, STEPS, BLOCK_SIDE, true>(part, weights, weight_stride(SIDE), v,
                                               tile_stride(SIDE), SIDE, visible);
    } else {
        add_values<1, STEPS, BLOCK_SIDE, false>(part, weights, weight_stride(SIDE), v,
                                                tile_stride(SIDE), SIDE, visible);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            sums[i][n] = __fadd_rn(sums[i][n], part[i][n]);
}

/* Brings the sums of a chunk into the unit's o, from element d of its rows on, which they begin or
 * are added to. width: how many elements there are. */
__device__ __forceinline__ void end_chunk(const struct tile &tile, int64_t o_row, int d, int width,
                                          bool begins, const float (&chunk)[STEPS][4])
{
    const int rows = (int)tile.rows - block_row(), left = width - 4 * block_column();
    float *o = tile.o + block_row() * o_row + d + 4 * block_column();

    __builtin_assume(__isGlobal(o));
#pragma unroll
    for (int i = 0; i < STEPS; i++, o += BLOCK_SIDE * o_row)
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (i * BLOCK_SIDE < rows && n < left)
                o[n] = __fadd_rn(begins ? 0 : o[n], chunk[i][n]);
}

/* A block: 64 columns of a unit's o. It waits for memory before each tile: other blocks are to work
 * then, so an SM is to have room for three. */
__global__ void __launch_bounds__(BLOCK_THREADS, 3)
    v0_values_kernel(const __grid_constant__ struct args args)
{
    __shared__ float4 shared[SIDE * weight_stride(SIDE) / 4 + TILE / 4];
    float *weights = (float *)shared, *v = weights + SIDE * weight_stride(SIDE);
    const struct fa_problem &problem = args.problem;
    const int slabs = ((int)problem.head_dim + SIDE - 1) / SIDE;
    const int d = (int)(blockIdx.x % slabs) * SIDE;
    const int width = min(SIDE, (int)problem.head_dim - d);
    const float *scores = scores_of(args, blockIdx.x / slabs);
    const int64_t score_row = (int64_t)args.cut.spans * SIDE;
    uint32_t first = 0;
    __shared__ struct tile tile;
    __shared__ uint32_t seen[SIDE];

    find_rows(args, blockIdx.x / slabs, &tile);
    if (threadIdx.x < SIDE) {
        const uint32_t row_keys = mask_visible_keys(&problem, tile.first_row + threadIdx.x);
        const uint32_t keys = min(row_keys, tile.keys);
        const bool some = keys > 0 && scores[threadIdx.x * score_row] != NO_WEIGHTS;
        seen[threadIdx.x] = some ? keys : 0;
    }
    do {
        float chunk[STEPS][4] = {};
        while (first < tile.keys) {
            float4 p_part[COPY_ROWS], v_part[COPY_ROWS];
            load_tile<SIDE>(p_part, scores + first, score_row, SIDE, SIDE, true);
            load_tile<SIDE>(v_part, tile.v + first * problem.v.row + d, problem.v.row,
                            tile_keys(args, first, SIDE), width, args.aligned);
            __syncthreads();
            store_tile<SIDE>(weights, weight_stride(SIDE), SIDE, p_part);
            store_tile<SIDE>(v, tile_stride(SIDE), SIDE, v_part);
            __syncthreads();
            add_tile(weights, v, first, seen, chunk);
            first += SIDE;
            if (first % CHUNK_KEYS == 0)
                break;
        }
        end_chunk(tile, problem.o.row, d, width, first <= CHUNK_KEYS, chunk);
    } while (first < tile.keys);
}

static const struct cuda_function functions[] = {
    {"v0_scores", (const void *)v0_scores_kernel, BLOCK_THREADS, 0},
    {"v0_softmax", (const void *)v0_softmax_kernel, BLOCK_THREADS, 0},
    {"v0_values", (const void *)v0_values_kernel, BLOCK_THREADS, 0},
};

static enum fa_status launch(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    const struct cut cut = cut_of(problem);
    const uint64_t slabs = divide_up(problem->head_dim, SIDE);

    return for_each_part(
        launch, units(problem), 0, cut, group_units(problem), [=](const struct args &args) {
            const uint64_t blocks[] = {args.unit_count * cut.spans,
                                       args.unit_count * (SIDE / BLOCK_WARPS),
                                       args.unit_count * slabs};
            enum fa_status status = FA_OK;
            /* Over no keys there are no scores. */
            for (int i = cut.spans == 0; i < 3 && status == FA_OK; i++)
                status = enqueue(&functions[i], 0, blocks[i], args, launch->stream);
            return status;
        });
}

static const struct fa_kernel kernel = {
    .name = "cuda-v0",
    .refuses = refuses_nothing,
    .units = units,
    .in_order = false,
    .state = no_state,
    .scratch = scratch,
    .launch = launch,
    .rate = 22e12,         /* at (4,12,2048,64) on an H200, 2026-12-01 */
    .unit_seconds = 80e-9, /* about: 48 000 heads of one row and one key, there */
    .byte_seconds = BYTE_SECONDS,
    .read_seconds = READ_SECONDS,
};

const struct fa_kernel *fa_cuda_v0_kernel(const struct fa_target *target)
{
    return target->arch >= CUDA_ARCH_MIN ? &kernel : NULL;
}

const struct cuda_function *cuda_v0_functions(size_t *count)
{
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
