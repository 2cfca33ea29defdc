/* v3: warp-local FlashAttention-2. A warp owns rows from their first score to their output: their
 * states are in registers, and warps wait for each other only to change the tile.
 *
 * What it changes of v2: where the states live, and who works on a row. That frees so much shared
 * memory that a block takes 128 rows, with k and v in turns in one tile. What is left: twelve loads
 * of shared memory feed 128 multiplications; and while a tile is copied, the block waits. */
#include "kernels/cuda/warp.cuh"

#define D     64
#define R     4
#define WARPS 8
#define KEYS  64
#define ROWS  (WARPS * WARP_ROWS * R)

using warp_rows = warp<D, R, KEYS, true, ROWS, 4, 4>;

/* q, one tile of keys (transposed, as q) or values, weights: 99 KiB. */
#define SHARED \
    ((warp_rows::Q_SIZE + warp_rows::K_SIZE + WARPS * warp_rows::WEIGHTS) * sizeof(float))
static_assert(warp_rows::V_SIZE <= warp_rows::K_SIZE, "as large a tile");
static_assert(SHARED + sizeof(struct tile) <= 99 * 1024, "what a block gets at least");

/* Blocks of an SM: one of 228 KiB has room for two. */
#if defined __CUDA_ARCH__ && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define BLOCKS 1
#else
#define BLOCKS 2
#endif

static const char *refuses(const struct fa_problem *problem)
{
    return problem->head_dim == D ? NULL : "head_dim is not 64";
}

static uint64_t units(const struct fa_problem *problem)
{
    return spans_units(problem, ROWS);
}

static size_t state(const struct fa_problem *problem)
{
    return spans_state(problem, ROWS);
}

__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    v3_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    float *q = (float *)shared, *kv = q + warp_rows::Q_SIZE;
    const struct fa_problem &problem = args.problem;
    __shared__ struct tile tile;
    warp_rows warp;

    find_tile(args, ROWS, &tile);
    copy_transposed<same_place, 2>(q, ROWS, ROWS, D, tile.q, problem.q.row, (int)tile.rows, D,
                                   args.sign, args.aligned);
    warp.init(args, tile, q, kv + warp_rows::K_SIZE);
    for (uint32_t key = tile.first_key; key < tile.end_key; key += KEYS) {
        const int keys = tile_keys(args, key, KEYS);
        float scores[R][warp_rows::C], alpha[R];

        __syncthreads();
        copy_transposed<key_place, 2>(kv, warp_rows::KEYS_STRIDE, KEYS, D,
                                      tile.k + key * problem.k.row, problem.k.row, keys, D, 1,
                                      args.aligned);
        __syncthreads();
        warp.score(args, kv, D, key, scores, [] {});
        __syncthreads();
        copy_tile<KEYS>(kv, D, D, tile.v + key * problem.v.row, problem.v.row, keys, D,
                        args.aligned);
        warp.weigh_tile(args, scores, alpha);
        __syncthreads();
        warp.add_values(args, kv, key, alpha, [] {});
        if (chunk_ends(tile, key + KEYS))
            warp.keep(args, tile, key + KEYS == tile.first_key + CHUNK_KEYS);
    }
    warp.end(args, tile);
}

static const struct cuda_function function = {"v3", (const void *)v3_kernel, WARPS * 32, SHARED};

static enum fa_status launch(const struct fa_launch *launch)
{
    return spans_launch(launch, ROWS, &function, function.shared);
}

static const struct fa_kernel kernel = {
    .name = "cuda-v3",
    .refuses = refuses,
    .units = units,
    .in_order = false,
    .state = state,
    .scratch = no_scratch,
    .launch = launch,
    .rate = 39e12,         /* at (4,12,2048,64) on an H200, 2026-12-01 */
    .unit_seconds = 45e-9, /* about: 48 000 heads of one row and one key, there */
    .byte_seconds = BYTE_SECONDS,
    .read_seconds = READ_SECONDS,
};

const struct fa_kernel *fa_cuda_v3_kernel(const struct fa_target *target)
{
    return target->arch >= CUDA_ARCH_MIN ? &kernel : NULL;
}

const struct cuda_function *cuda_v3_functions(size_t *count)
{
    *count = 1;
    return &function;
}
