/* v2: simplified FlashAttention-2. A block owns a tile of rows and walks the keys: there are as
 * many blocks as tiles, the rows' states stay where they are, and o is divided by its sum once.
 * Since blocks do not depend on each other, several can share the keys of few rows (spans.cuh).
 *
 * What it changes of v1: the order of the loops. What is left: the states, the scores and the
 * weights live in shared memory, and every step makes the block's warps wait for each other four
 * times. */
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

/* Merges the rows' states into what is kept of the span, which they begin if `first`. */
template <int T>
__device__ __forceinline__ void keep(const struct args &args, const struct tile &tile,
                                     const block_of<T> &block, bool first)
{
    const int width = (int)args.problem.head_dim, lane = (int)threadIdx.x % 32;

    for (int row = (int)threadIdx.x / 32; row < (int)tile.rows; row += BLOCK_WARPS) {
        float *part = part_row(args, tile, tile.span, row);
        float top = first ? -INFINITY : part[width], sum = first ? 0 : part[width + 1], a, b;
        merge(top, sum, block.top[row], block.sum[row], args.scale_log2, a, b);
        for (int d = lane; d < width; d += 32)
            part[d] = merged(first ? 0 : part[d], a, block.o[row * block.stride + d], b);
        __syncwarp(); /* all lanes have read top and sum */
        if (lane == 0)
            part[width] = top, part[width + 1] = sum;
        __syncwarp();
    }
}

template <int T>
__device__ __forceinline__ void write_rows(const struct args &args, const struct tile &tile,
                                           const block_of<T> &block)
{
    const int lane = (int)threadIdx.x % 32;

    for (int row = (int)threadIdx.x / 32; row < (int)tile.rows; row += BLOCK_WARPS) {
        const float sum = block.sum[row], inverse = inverse_of(sum);
        float *o = tile.o + row * args.problem.o.row;
        for (int d = lane; d < (int)args.problem.head_dim; d += 32)
            o[d] = output_of(block.o[row * block.stride + d], inverse);
        if (lane == 0 && tile.lse)
            tile.lse[row * args.problem.lse.row] = lse_of(block.top[row], sum, args.problem.scale);
    }
}

/* An SM of 228 KiB has room for two blocks of the largest tiles, for three of the others. */
template <int T>
__global__ void __launch_bounds__(BLOCK_THREADS, T == 64 ? 2 : 3)
    v2_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    __shared__ struct tile tile;
    const auto block = block_at<T>((float *)shared, args.problem.head_dim);

    find_tile(args, T, &tile);
    copy_q(args, tile, block);
    clear_state(block);
    for (uint32_t key = tile.first_key; key < tile.end_key; key += T) {
        __syncthreads();
        copy_kv(args, tile, key, block);
        __syncthreads();
        block_step<1>(args, block, tile.first_row, key);
        if (chunk_ends(tile, key + T)) {
            __syncthreads();
            keep(args, tile, block, key + T == tile.first_key + CHUNK_KEYS);
            __syncthreads();
            clear_state(block);
        }
    }
    __syncthreads();
    if (!args.cut.kept) {
        write_rows(args, tile, block);
        return;
    }
    if (has_part(tile))
        keep(args, tile, block, tile.end_key - tile.first_key <= CHUNK_KEYS);
    end_span(args, tile);
}

static const struct cuda_function functions[] = {
    {"v2<64>", (const void *)v2_kernel<64>, BLOCK_THREADS, block_shared(64, 64)},
    {"v2<32>", (const void *)v2_kernel<32>, BLOCK_THREADS, block_shared(32, 128)},
    {"v2<16>", (const void *)v2_kernel<16>, BLOCK_THREADS, block_shared(16, 256)},
};

static enum fa_status launch(const struct fa_launch *launch)
{
    const uint32_t head_dim = launch->problem->head_dim;
    const int side = block_side(head_dim);

    return spans_launch(launch, side, &functions[block_index(side)], block_shared(side, head_dim));
}

static const struct fa_kernel kernel = {
    .name = "cuda-v2",
    .refuses = refuses_nothing,
    .units = units,
    .in_order = false,
    .state = state,
    .scratch = no_scratch,
    .launch = launch,
    .rate = 26e12,         /* at (4,12,2048,64) on an H200, 2026-12-01 */
    .unit_seconds = 65e-9, /* about: 48 000 heads of one row and one key, there */
    .byte_seconds = BYTE_SECONDS,
    .read_seconds = READ_SECONDS,
};

const struct fa_kernel *fa_cuda_v2_kernel(const struct fa_target *target)
{
    return target->arch >= CUDA_ARCH_MIN ? &kernel : NULL;
}

const struct cuda_function *cuda_v2_functions(size_t *count)
{
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
