/* v2: simplified FlashAttention-2. A block owns a tile of rows and walks the keys: there are as
 * many blocks as tiles, the rows' states stay where they are, and o is divided by its sum once.
 *
 * What it changes of v1: the order of the loops. What is left: the states, the scores and the
 * weights live in shared memory, and every step makes the block's warps wait for each other three
 * times. */
#define BLOCK_UNROLL 1
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/spans.cuh"

static uint64_t units(const struct fa_problem *problem)
{
    return spans_units(problem, block_side(problem->head_dim));
}

static size_t state(const struct fa_problem *problem)
{
    return spans_state(problem, block_side(problem->head_dim));
}

template <int T>
__global__ void __launch_bounds__(BLOCK_THREADS, 3)
    v2_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    const struct block<T> block = block_at<T>((float *)shared, args.problem.head_dim);
    __shared__ struct tile tile;
    const int width = (int)args.problem.head_dim;

    find_tile(args, T, &tile);
    copy_q(args, tile, block);
    clear_state(block);
    for (uint32_t key = tile.first_key; key < tile.end_key; key += T) {
        __syncthreads();
        copy_kv(args, tile, key, block);
        __syncthreads();
        block_step(args, block, tile.first_row, key);
    }
    __syncthreads();
    if (args.cut.spans == 1) {
        for (int row = (int)threadIdx.x / 32; row < (int)tile.rows; row += BLOCK_WARPS) {
            const float sum = block.sum[row], inverse = inverse_of(sum);
            float *o = tile.o + row * args.problem.o.row;
            for (int d = (int)threadIdx.x % 32; d < width; d += 32)
                o[d] = output_of(block.o[row * block.stride + d], inverse);
            if (threadIdx.x % 32 == 0 && tile.lse)
                tile.lse[row * args.problem.lse.row] =
                    lse_of(block.top[row], sum, args.problem.scale);
        }
        return;
    }
    if (tile.span == 0 || tile.first_key < tile.keys)
        for (int row = (int)threadIdx.x / 32; row < (int)tile.rows; row += BLOCK_WARPS) {
            float *part = part_row(args, tile, tile.span, row);
            for (int d = (int)threadIdx.x % 32; d < width; d += 32)
                part[d] = block.o[row * block.stride + d];
            if (threadIdx.x % 32 == 0)
                part[width] = block.top[row], part[width + 1] = block.sum[row];
        }
    end_span(args, tile);
}

static enum fa_status launch(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    const int side = block_side(problem->head_dim);
    const void *entry = side == 64   ? (const void *)v2_kernel<64>
                        : side == 32 ? (const void *)v2_kernel<32>
                                     : (const void *)v2_kernel<16>;

    return for_each_part(launch, units(problem), state(problem), spans_cut(problem, side),
                         INT32_MAX, [=](struct args *args) {
                             return enqueue(entry, args->unit_count, BLOCK_THREADS,
                                            block_shared(side, problem->head_dim), args,
                                            launch->stream);
                         });
}

static const struct fa_kernel kernel = {
    .name = "cuda-v2",
    .refuses = refuses_nothing,
    .units = units,
    .in_order = false,
    .state = state,
    .scratch = no_bytes,
    .launch = launch,
    .rate = 13.7e12,
    .unit_seconds = 65e-9,
    .byte_seconds = BYTE_SECONDS,
};

const struct fa_kernel *fa_cuda_v2_kernel(const struct fa_target *target)
{
    return target->arch >= 80 ? &kernel : NULL;
}

const struct cuda_function *cuda_v2_functions(size_t *count)
{
    static const struct cuda_function functions[] = {
        {"v2<64>", (const void *)v2_kernel<64>, BLOCK_THREADS, block_shared(64, 64)},
        {"v2<32>", (const void *)v2_kernel<32>, BLOCK_THREADS, block_shared(32, 128)},
        {"v2<16>", (const void *)v2_kernel<16>, BLOCK_THREADS, block_shared(16, 256)},
    };
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
