/* v1: FlashAttention-1. One block a head; the outer loop runs over blocks of keys and values, which
 * stay in shared memory, the inner one over tiles of rows. Between two outer steps a row's state is
 * in memory: o in the output, divided by its sum so far as the paper has it, top and sum beside it.
 *
 * What it changes of v0: one kernel; scores and weights never leave the chip. What it pays: every
 * outer step reads and writes all of o, and a launch has only as many blocks as heads. Every step
 * also rounds o three times: its error grows with the number of steps.
 *
 * A unit is a block of keys of one head against all of its rows. Units run over heads first, so
 * that a range of them keeps many blocks busy, and in order. */
#include "kernels/cuda/block.cuh"

static uint32_t key_blocks(const struct fa_problem *problem)
{
    const uint32_t blocks = divide_up(problem->kv_len, block_side(problem->head_dim));
    return blocks > 0 ? blocks : 1; /* somebody must write the outputs of no keys */
}

static uint64_t units(const struct fa_problem *problem)
{
    return problem->q_len == 0 ? 0 : units_of(problem, key_blocks(problem));
}

/* top and sum of every row. */
static size_t state(const struct fa_problem *problem)
{
    const uint64_t rows = units_of(problem, problem->q_len);
    return rows > SIZE_MAX / 16 ? SIZE_MAX : round_up_64(rows * 2 * sizeof(float));
}

/* The states of a tile's rows, as the outer step before left them. */
template <int T>
__device__ __forceinline__ void load_state(const struct args &args, const struct tile &tile,
                                           const float *state, const block_of<T> &block)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    for (int row = warp; row < T; row += BLOCK_WARPS) {
        const bool valid = row < (int)tile.rows;
        const float sum = valid ? state[2 * row + 1] : 0, factor = sum == 0 ? 1 : sum;
        const float *o = tile.o + row * args.problem.o.row;
        for (int d = lane; d < block.width; d += 32)
            block.o[row * block.stride + d] =
                valid && d < (int)args.problem.head_dim ? o[d] * factor : 0;
        if (lane == 0) {
            block.top[row] = valid ? state[2 * row] : -INFINITY;
            block.sum[row] = sum;
        }
    }
}

/* o that has no sum yet is 0, or NaN by a key of weight 0: the next step is to see it. The `last`
 * one's is the output. */
template <int T>
__device__ __forceinline__ void store_state(const struct args &args, const struct tile &tile,
                                            float *state, const block_of<T> &block, bool last)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    for (int row = warp; row < (int)tile.rows; row += BLOCK_WARPS) {
        const float sum = block.sum[row], inverse = sum == 0 && !last ? 1 : inverse_of(sum);
        float *o = tile.o + row * args.problem.o.row;
        for (int d = lane; d < (int)args.problem.head_dim; d += 32)
            o[d] = output_of(block.o[row * block.stride + d], inverse);
        if (lane == 0)
            state[2 * row] = block.top[row], state[2 * row + 1] = sum;
    }
}

/* The keys of block `number` against all rows of the head. */
template <int T>
__device__ __forceinline__ void outer_step(const struct args &args, const block_of<T> &block,
                                           uint64_t problem_head, uint32_t number)
{
    const struct fa_problem &problem = args.problem;
    const uint64_t heads = (uint64_t)problem.batch * problem.heads;
    const uint32_t first = number * T;
    float *state = (float *)(args.state + problem_head / heads * args.state_bytes) +
                   problem_head % heads * problem.q_len * 2;

    if (first < problem.kv_len)
        copy_kv(args, tile_at(args, problem_head, 0, T), first, block);
    for (uint32_t row = 0; row < problem.q_len; row += T) {
        const struct tile tile = tile_at(args, problem_head, row, T);
        if (number > 0 && first >= tile.keys)
            continue;
        if (number == 0)
            clear_state(block);
        else
            load_state(args, tile, state + 2 * (size_t)row, block);
        copy_q(args, tile, block);
        __syncthreads();
        if (first < tile.keys)
            block_step<2>(args, block, row, first);
        __syncthreads();
        store_state(args, tile, state + 2 * (size_t)row, block, tile.keys <= (uint64_t)first + T);
        __syncthreads();
    }
}

template <int T>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    v1_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    const struct fa_problem &problem = args.problem;
    const block_of<T> block = block_at<T>((float *)shared, problem.head_dim);
    const uint64_t heads = (uint64_t)problem.batch * problem.heads;
    const uint64_t blocks = min(args.unit_count, heads); /* of each problem */
    const uint64_t problem_number = blockIdx.x / blocks;
    const uint64_t start = args.first_unit + blockIdx.x % blocks;
    const uint64_t problem_head = problem_number * heads + start % heads;
    uint64_t unit;

    for (unit = start; unit < args.first_unit + args.unit_count; unit += heads)
        outer_step(args, block, problem_head, (uint32_t)(unit / heads));
    if (unit / heads < args.cut.spans)
        return; /* later ranges go on */
    for (uint32_t row = 0; row < problem.q_len; row += T) {
        const struct tile tile = tile_at(args, problem_head, row, T);
        const float *state = (float *)(args.state + problem_number * args.state_bytes) +
                             (start % heads * problem.q_len + row) * 2;
        for (uint32_t i = threadIdx.x; tile.lse && i < tile.rows; i += BLOCK_THREADS)
            tile.lse[i * problem.lse.row] = lse_of(state[2 * i], state[2 * i + 1], problem.scale);
    }
}

static const struct cuda_function functions[] = {
    {"v1<64>", (const void *)v1_kernel<64>, BLOCK_THREADS, block_shared(64, 64)},
    {"v1<32>", (const void *)v1_kernel<32>, BLOCK_THREADS, block_shared(32, 128)},
    {"v1<16>", (const void *)v1_kernel<16>, BLOCK_THREADS, block_shared(16, 256)},
};

/* A grid is whole problems with a block for each head; or units of one problem with a block for
 * each head that has any, which are heads that follow each other. */
static enum fa_status launch(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    const int side = block_side(problem->head_dim);
    const struct cuda_function *function = &functions[block_index(side)];
    const size_t shared = block_shared(side, problem->head_dim);
    const uint64_t all = units(problem), heads = (uint64_t)problem->batch * problem->heads;
    const struct cut cut = {0, key_blocks(problem), 0, false};
    struct fa_launch part = *launch;

    for (uint64_t left = launch->range.count; left > 0 && all > 0; left -= part.range.count) {
        const uint64_t in_problem = part.range.first % all, rest = all - in_problem;
        const bool whole = in_problem == 0 && left >= all && heads <= GRID_MAX / PROBLEMS_MAX;
        enum fa_status status;

        part.range.count = whole ? left / all * all : left < rest ? left : rest;
        status = for_each_part(
            &part, all, state(problem), cut, heads > GRID_MAX ? GRID_MAX : UINT64_MAX,
            [=](const struct args &args) {
                const uint64_t problems = whole ? args.unit_count / all : 1;
                struct args each = args;
                each.unit_count /= problems;
                return enqueue(function, shared,
                               problems * (each.unit_count < heads ? each.unit_count : heads), each,
                               launch->stream);
            });
        if (status != FA_OK)
            return status;
        part.range.first += part.range.count;
    }
    return FA_OK;
}

static const struct fa_kernel kernel = {
    .name = "cuda-v1",
    .refuses = refuses_nothing,
    .units = units,
    .in_order = true,
    .state = state,
    .scratch = no_bytes,
    .launch = launch,
    .rate = 2e12, /* at (4,12,2048,64) on an H200, 2026-11-30 */
    .unit_seconds = 0,
    .byte_seconds = BYTE_SECONDS,
};

const struct fa_kernel *fa_cuda_v1_kernel(const struct fa_target *target)
{
    return target->arch >= CUDA_ARCH_MIN ? &kernel : NULL;
}

const struct cuda_function *cuda_v1_functions(size_t *count)
{
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
