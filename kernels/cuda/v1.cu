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

/* A thread's part of what a step needs of a tile of rows, on its way to shared memory: of the rows
 * that load_tile gives it, and of their columns. */
struct fetched {
    float4 q[COPY_ROWS], o[COPY_ROWS];
    float top[COPY_ROWS], sum[COPY_ROWS];
};

/* The tile of the head that `row` begins; head is the one of its first row. */
template <int T>
__device__ __forceinline__ struct tile tile_of_row(const struct args &args, struct tile head,
                                                   uint32_t row)
{
    head.q += row * args.problem.q.row;
    head.o += row * args.problem.o.row;
    head.first_row = row;
    head.rows = min(args.problem.q_len - row, (uint32_t)T);
    head.keys = mask_visible_keys(&args.problem, row + head.rows - 1);
    return head;
}

/* begins: the rows have no state yet. state: of the head. */
template <int T>
__device__ __forceinline__ void fetch(const struct args &args, const struct tile &tile,
                                      const float *state, bool begins, struct fetched &rows)
{
    const struct fa_problem &problem = args.problem;
    const int width = (int)problem.head_dim, count = begins ? 0 : (int)tile.rows;

    load_tile<T>(rows.q, tile.q, problem.q.row, (int)tile.rows, width, args.aligned);
    load_tile<T>(rows.o, tile.o, problem.o.row, count, width, args.aligned);
    state += 2 * ((size_t)tile.first_row + copy_row<T>());
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++) {
        const bool valid = copy_row<T>() + i * (T / COPY_ROWS) < count;
        rows.top[i] = valid ? state[2 * i * (T / COPY_ROWS)] : -INFINITY;
        rows.sum[i] = valid ? state[2 * i * (T / COPY_ROWS) + 1] : 0;
    }
}

/* o is multiplied by the sum that it was divided by. */
template <int T>
__device__ __forceinline__ void put(const struct args &args, const block_of<T> &block,
                                    struct fetched &rows)
{
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++) {
        const int row = copy_row<T>() + i * (T / COPY_ROWS);
        const float factor = rows.sum[i] == 0 ? 1 : rows.sum[i];
        float4 &o = rows.o[i];
        o = {o.x * factor, o.y * factor, o.z * factor, o.w * factor};
        if (copy_column<T>() == 0)
            block.top[row] = rows.top[i], block.sum[row] = rows.sum[i];
    }
    store_tile<T>(block.o, block.stride, block.width, rows.o);
    store_tile<T>(block.q, block.stride, block.width, rows.q, args.sign);
}

/* o that has no sum yet is 0, or NaN by a key of weight 0: the next step is to see it. The `last`
 * one's is the output. state: of the head. */
template <int T>
__device__ __forceinline__ void store_state(const struct args &args, const struct tile &tile,
                                            float *state, const block_of<T> &block, bool last)
{
    const int d = copy_column<T>(), left = (int)args.problem.head_dim - d;
    const bool fours = args.aligned && args.problem.head_dim % 4 == 0;

    state += 2 * (size_t)tile.first_row;
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++) {
        const int row = copy_row<T>() + i * (T / COPY_ROWS);
        const float sum = block.sum[row], inverse = sum == 0 && !last ? 1 : inverse_of(sum);
        float *const o = tile.o + row * args.problem.o.row + d;
        float x[4] = {};
        if (row >= (int)tile.rows || left <= 0)
            continue;
#pragma unroll
        for (int n = 0; n < 4; n++)
            x[n] = output_of(block.o[row * block.stride + d + n], inverse);
        if (fours)
            store4(o, {x[0], x[1], x[2], x[3]});
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (!fours && n < left)
                o[n] = x[n];
        if (d == 0)
            state[2 * row] = block.top[row], state[2 * row + 1] = sum;
    }
}

/* The keys of block `number` against all rows of the head that see any of them; of block 0 against
 * all rows. What a tile needs is fetched while the one before is worked on. */
template <int T>
__device__ __forceinline__ void outer_step(const struct args &args, const block_of<T> &block,
                                           uint64_t problem_head, uint32_t number)
{
    const struct fa_problem &problem = args.problem;
    const uint64_t heads = (uint64_t)problem.batch * problem.heads;
    const struct tile head = tile_at(args, problem_head, 0, T);
    const uint32_t first = number * T;
    float *state = (float *)(args.state + problem_head / heads * args.state_bytes) +
                   problem_head % heads * problem.q_len * 2;
    struct fetched rows;
    uint32_t row = 0;

    if (first < problem.kv_len)
        copy_kv(args, head, first, block);
    while (number > 0 && row < problem.q_len && first >= tile_of_row<T>(args, head, row).keys)
        row += T; /* later rows see more */
    if (row < problem.q_len)
        fetch<T>(args, tile_of_row<T>(args, head, row), state, number == 0, rows);
    for (; row < problem.q_len; row += T) {
        const struct tile tile = tile_of_row<T>(args, head, row);
        put(args, block, rows);
        __syncthreads();
        if (problem.q_len - row > T)
            fetch<T>(args, tile_of_row<T>(args, head, row + T), state, number == 0, rows);
        if (first < tile.keys)
            block_step<2>(args, block, row, first);
        __syncthreads();
        store_state(args, tile, state, block, tile.keys <= (uint64_t)first + T);
        __syncthreads();
    }
}

template <int T>
__global__ void __launch_bounds__(BLOCK_THREADS, T == 16 ? 2 : 1)
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
    const struct cut cut = {0, key_blocks(problem), 0, false, 0};
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
    .scratch = no_scratch,
    .launch = launch,
    .rate = 7.4e12, /* at (4,12,2048,64) on an H200, 2026-12-01 */
    .unit_seconds = 0,
    .byte_seconds = BYTE_SECONDS,
    .read_seconds = READ_SECONDS,
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
