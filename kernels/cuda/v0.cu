/* v0: naive. Three kernels, as attention is written down: the scores S = q k^T go to memory, the
 * softmax of each of their rows back to where they were (P), and o = P v.
 *
 * The products are what a plain matrix multiplication looks like: tiles of 64 by 64 through shared
 * memory, 4 by 4 sums a thread. What is left: S and P, M * N elements a head, go through memory:
 * written by the scores, read three times and written twice by the softmax, read by the values.
 * They take turns in one workspace: a launch goes through its units in groups.
 *
 * A unit is 64 rows of a head against all keys. */
#include "kernels/cuda/block.cuh"

#define SIDE  64 /* rows, keys and columns of a tile; elements of a slab of head_dim */
#define STEPS (SIDE / BLOCK_SIDE)
#define TILE  (SIDE * tile_stride(SIDE)) /* floats of a tile of rows */

/* A sum over keys starts afresh every so many tiles, as in spans.cuh, else its error could grow
 * with the keys. */
#define CHUNK_TILES 128

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

static size_t scratch(const struct fa_problem *problem)
{
    return group_units(problem) * unit_size(cut_of(problem)) * sizeof(float);
}

__device__ __forceinline__ struct tile rows_of(const struct args &args, uint64_t group_unit)
{
    const uint64_t unit = args.first_unit + group_unit;
    return tile_at(args, unit / args.cut.tiles, (uint32_t)(unit % args.cut.tiles) * SIDE, SIDE);
}

/* S of a unit: [row][key], rows of whole tiles. */
__device__ __forceinline__ float *scores_of(const struct args &args, uint64_t group_unit)
{
    return args.scratch + group_unit * unit_size(args.cut);
}

/* A block: one tile of S. Masked scores within it are written, too, and never used. */
__global__ void __launch_bounds__(BLOCK_THREADS)
    v0_scores_kernel(const __grid_constant__ struct args args)
{
    __shared__ float4 shared[2 * TILE / 4];
    float *q = (float *)shared, *k = q + TILE;
    const struct fa_problem &problem = args.problem;
    const uint64_t unit = blockIdx.x / args.cut.spans;
    const uint32_t first = (uint32_t)(blockIdx.x % args.cut.spans) * SIDE;
    const struct tile tile = rows_of(args, unit);
    const int keys = tile_keys(args, first, SIDE);
    const int row = block_row(), column = block_column(), stride = tile_stride(SIDE);
    float *scores = scores_of(args, unit), sums[STEPS][STEPS] = {};

    if (first >= tile.keys)
        return;
    for (int d = 0; d < (int)problem.head_dim; d += SIDE) {
        const int width = min(SIDE, (int)problem.head_dim - d), padded = block_width(width);
        __syncthreads();
        copy_tile(q, stride, SIDE, padded, tile.q + d, problem.q.row, (int)tile.rows, width,
                  args.sign);
        copy_tile(k, stride, SIDE, padded, tile.k + first * problem.k.row + d, problem.k.row, keys,
                  width);
        __syncthreads();
        add_dots<2, STEPS, STEPS, BLOCK_SIDE>(sums, q + row * stride, stride, k + column * stride,
                                              stride, padded);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int j = 0; j < STEPS; j++)
            scores[(size_t)(row + i * BLOCK_SIDE) * args.cut.spans * SIDE + first + column +
                   j * BLOCK_SIDE] = sums[i][j];
}

/* A first weight of a row that has none above 0, though it sees keys: it gets no values, not even
 * 0 times NaN. */
#define NO_WEIGHTS -1.0f

/* A warp: one row. Lanes take every 32nd key. */
__global__ void __launch_bounds__(BLOCK_THREADS)
    v0_softmax_kernel(const __grid_constant__ struct args args)
{
    const uint64_t index = (uint64_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / 32;
    const struct tile tile = rows_of(args, index / SIDE);
    const uint32_t row = index % SIDE, lane = threadIdx.x % 32;
    const uint32_t keys = mask_visible_keys(&args.problem, tile.first_row + row);
    float *scores = scores_of(args, index / SIDE) + (size_t)row * args.cut.spans * SIDE;
    float top = -INFINITY, sum = 0, shift, inverse;

    if (row >= tile.rows)
        return;
    for (uint32_t key = lane; key < keys; key += 32)
        top = fmaxf(top, scores[key]);
    top = lanes_max<31>(top);
    shift = shift_of(top);
    for (uint32_t key = lane; key < keys;) {
        const uint32_t end = min(keys - key, (uint32_t)CHUNK_TILES * SIDE) + key;
        float part = 0;
        for (; key < end; key += 32) {
            const float weight = weight_of(scores[key], shift, args.scale_log2);
            scores[key] = weight;
            part = __fadd_rn(part, weight);
        }
        sum = __fadd_rn(sum, part);
    }
    sum = lanes_sum<31>(sum);
    inverse = inverse_of(sum);
    for (uint32_t key = lane; key < keys; key += 32)
        scores[key] = sum == 0 ? NO_WEIGHTS : __fmul_rn(scores[key], inverse);
    if (lane == 0 && tile.lse)
        tile.lse[row * args.problem.lse.row] = lse_of(top, sum, args.problem.scale);
}

/* sums += P v of the tile of keys at `first`, summed from zero. */
__device__ __forceinline__ void add_tile(const struct tile &tile, const struct args &args,
                                         const float *weights, const float *v, uint32_t first,
                                         const bool (&none)[STEPS], float (&sums)[STEPS][4])
{
    bool masked = mask_visible_keys(&args.problem, tile.first_row) < first + SIDE;
    float part[STEPS][4] = {};
    int visible[STEPS];

#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t row = tile.first_row + block_row() + i * BLOCK_SIDE;
        const uint32_t keys = none[i] ? 0 : mask_visible_keys(&args.problem, row);
        visible[i] = keys_in_tile(keys, first, SIDE);
        masked |= none[i];
    }
    if (masked)
        add_values<1, STEPS, BLOCK_SIDE, true>(part, weights, weight_stride(SIDE), v,
                                               tile_stride(SIDE), SIDE, visible);
    else
        add_values<1, STEPS, BLOCK_SIDE, false>(part, weights, weight_stride(SIDE), v,
                                                tile_stride(SIDE), SIDE, visible);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            sums[i][n] = __fadd_rn(sums[i][n], part[i][n]);
}

/* A block: 64 columns of a unit's o. */
__global__ void __launch_bounds__(BLOCK_THREADS, 2)
    v0_values_kernel(const __grid_constant__ struct args args)
{
    __shared__ float4 shared[SIDE * weight_stride(SIDE) / 4 + TILE / 4];
    float *weights = (float *)shared, *v = weights + SIDE * weight_stride(SIDE);
    const struct fa_problem &problem = args.problem;
    const int slabs = ((int)problem.head_dim + SIDE - 1) / SIDE;
    const int d = (int)(blockIdx.x % slabs) * SIDE;
    const int width = min(SIDE, (int)problem.head_dim - d);
    const float *scores = scores_of(args, blockIdx.x / slabs);
    const int row = block_row(), column = 4 * block_column();
    const int64_t score_row = (int64_t)args.cut.spans * SIDE;
    float o[STEPS][4] = {}, chunk[STEPS][4] = {};
    __shared__ struct tile tile;
    bool none[STEPS];

    if (threadIdx.x == 0)
        tile = rows_of(args, blockIdx.x / slabs);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        none[i] = tile.keys > 0 && scores[(row + i * BLOCK_SIDE) * score_row] == NO_WEIGHTS;
    for (uint32_t first = 0; first < tile.keys; first += SIDE) {
        __syncthreads();
        copy_tile(weights, weight_stride(SIDE), SIDE, SIDE, scores + first, score_row, SIDE, SIDE);
        copy_tile(v, tile_stride(SIDE), SIDE, SIDE, tile.v + first * problem.v.row + d,
                  problem.v.row, tile_keys(args, first, SIDE), width);
        __syncthreads();
        add_tile(tile, args, weights + row * weight_stride(SIDE), v + column, first, none, chunk);
        if (first / SIDE % CHUNK_TILES == CHUNK_TILES - 1 || first + SIDE >= tile.keys) {
#pragma unroll
            for (int i = 0; i < STEPS; i++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    o[i][n] = __fadd_rn(o[i][n], chunk[i][n]), chunk[i][n] = 0;
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (row + i * BLOCK_SIDE < (int)tile.rows && column + n < width)
                tile.o[(row + i * BLOCK_SIDE) * problem.o.row + d + column + n] = o[i][n];
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
    .state = no_bytes,
    .scratch = scratch,
    .launch = launch,
    .rate = 9.4e12,        /* at (4,12,2048,64) on an H200, 2026-11-30 */
    .unit_seconds = 80e-9, /* about: 48 000 heads of one row and one key, there */
    .byte_seconds = BYTE_SECONDS,
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
