/* v4: optimised v3. The same warps and the same steps, and three changes:
 *  - tiles come by asynchronous copies of 16 bytes, the values while the scores are computed, the
 *    next keys while the values are summed; k and v have a tile each, and a step two barriers;
 *  - with head_dim 64 a thread of the large tiles has 8 rows, so that eight loads of shared memory
 *    feed 128 multiplications; with 128 its registers hold 4, and it is twelve for the scores and
 *    ten for the values;
 *  - the products are unrolled as far as the instruction cache allows.
 *
 * Which tiling runs is chosen by the problem, or by the shared memory that a block gets. */
#include "kernels/cuda/warp.cuh"

/* D: head_dim. R: rows of a thread. WARPS: of a block. KEYS: of a tile. BLOCKS: of an SM of 228
 * KiB. UNROLL: of the products. */
template <int D_, int R_, int WARPS, int KEYS_, int BLOCKS_, int UNROLL> struct tiling {
    static constexpr int D = D_, R = R_, KEYS = KEYS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = WARPS * 32, ROWS = WARPS * WARP_ROWS * R;
    using warp_rows = warp<D, R, KEYS, ROWS, UNROLL>;
    /* Floats. Values need no gaps between rows: a quarter of a warp reads one row at a time. */
    static constexpr int Q = D * ROWS, K = KEYS * tile_stride(D), V = KEYS * D;
    static constexpr size_t SHARED = (Q + K + V + WARPS * warp_rows::WEIGHTS) * sizeof(float);
};

/* Structs, so that their names are in those of the functions. */
struct large_64 : tiling<64, 8, 4, 64, 2, 2> { /* 105 KiB */
};
struct large_128 : tiling<128, 4, 8, 64, 1, 8> { /* 177 KiB */
};
struct small_64 : tiling<64, 4, 4, 64, 3, 4> { /* 73 KiB */
};
struct small_128 : tiling<128, 4, 4, 32, 2, 4> { /* 77 KiB */
};

/* Copies 4 or 16 bytes to shared memory, or zeroes where there is nothing to copy: then nothing is
 * read either. */
template <int BYTES>
__device__ __forceinline__ void copy_async(float *to, const float *from, bool there)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);

    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                     "r"(there ? 4 : 0)
                     : "memory");
}

/* Starts copying a tile of TILE_ROWS by D, of which `rows` are there, BYTES at a time. */
template <int THREADS, int TILE_ROWS, int D, int STRIDE, int BYTES>
__device__ __forceinline__ void copy_tile_async(float *to, const float *from, int64_t row_stride,
                                                int rows)
{
    constexpr int WIDTH = BYTES / 4, PER_ROW = D / WIDTH, STEP = THREADS / PER_ROW;
    const int first = (int)threadIdx.x / PER_ROW, column = (int)threadIdx.x % PER_ROW * WIDTH;
    const float *next = from + first * row_stride + column;

    static_assert(THREADS % PER_ROW == 0 && TILE_ROWS % STEP == 0, "whole steps");
    to += first * STRIDE + column;
#pragma unroll
    for (int row = 0; row < TILE_ROWS; row += STEP) {
        copy_async<BYTES>(to + row * STRIDE, next, first + row < rows);
        next += STEP * row_stride;
    }
}

template <int THREADS, int TILE_ROWS, int D, int STRIDE>
__device__ __forceinline__ void start_copy(const struct args &args, float *to, const float *from,
                                           int64_t row_stride, int rows)
{
    if (args.aligned)
        copy_tile_async<THREADS, TILE_ROWS, D, STRIDE, 16>(to, from, row_stride, rows);
    else
        copy_tile_async<THREADS, TILE_ROWS, D, STRIDE, 4>(to, from, row_stride, rows);
}

/* Waits for the copies that this thread started, then for all threads of the block: afterwards the
 * tiles are complete, and nobody still uses what was read before. */
__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    v4_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    float *q = (float *)shared, *k = q + S::Q, *v = k + S::K;
    const struct fa_problem &problem = args.problem;
    __shared__ struct tile tile;
    typename S::warp_rows warp;

    const auto start_k = [&](uint32_t key) {
        start_copy<S::THREADS, S::KEYS, S::D, tile_stride(S::D)>(
            args, k, tile.k + key * problem.k.row, problem.k.row, tile_keys(args, key, S::KEYS));
    };
    const auto start_v = [&](uint32_t key) {
        start_copy<S::THREADS, S::KEYS, S::D, S::D>(args, v, tile.v + key * problem.v.row,
                                                    problem.v.row, tile_keys(args, key, S::KEYS));
    };

    find_tile(args, S::ROWS, &tile);
    warp.init(tile, q, v + S::V);
    if (tile.first_key < tile.end_key) {
        start_k(tile.first_key);
        copy_transposed(q, S::ROWS, S::D, tile.q, problem.q.row, (int)tile.rows, args.sign,
                        args.aligned);
        wait_for_copies();
    }
    for (uint32_t key = tile.first_key; key < tile.end_key; key += S::KEYS) {
        float scores[S::R][S::warp_rows::C], alpha[S::R];

        start_v(key);
        warp.score(args, k, key, scores);
        wait_for_copies();
        if (key + S::KEYS < tile.end_key)
            start_k(key + S::KEYS);
        warp.weigh_tile(args, scores, alpha);
        warp.add_values(args, v, S::D, key, alpha);
        if (chunk_ends(tile, key + S::KEYS))
            warp.keep(args, tile, key + S::KEYS == tile.first_key + CHUNK_KEYS);
        wait_for_copies();
    }
    warp.end(args, tile);
}

/* --- Which tiling ---------------------------------------------------------------------------- */

enum { LARGE_64, LARGE_128, SMALL_64, SMALL_128, TILINGS };

template <typename S> constexpr struct cuda_function function_of(const char *name)
{
    return {name, (const void *)v4_kernel<S>, S::THREADS, S::SHARED};
}

static const struct cuda_function functions[TILINGS] = {
    function_of<large_64>("v4<large_64>"),
    function_of<large_128>("v4<large_128>"),
    function_of<small_64>("v4<small_64>"),
    function_of<small_128>("v4<small_128>"),
};

static const uint32_t tile_rows[TILINGS] = {large_64::ROWS, large_128::ROWS, small_64::ROWS,
                                            small_128::ROWS};

static int large_tiling(const struct fa_problem *problem)
{
    return problem->head_dim == 64 ? LARGE_64 : LARGE_128;
}

static int small_tiling(const struct fa_problem *problem)
{
    return problem->head_dim == 64 ? SMALL_64 : SMALL_128;
}

/* With head_dim 64 the small tiles give the same bits, for a row's sums go the same way, 5 %
 * slower. They are for problems with too few large tiles to fill an H200 once, and for causal masks
 * over so few keys that the masked half of a row's last tile costs more. */
static int best_tiling(const struct fa_problem *problem)
{
    const uint64_t at_once = 132 * large_64::BLOCKS;
    const bool few = spans_units(problem, large_64::ROWS) <= at_once;
    const bool short_causal = problem->mask != FA_MASK_NONE && problem->kv_len <= 2048;

    return problem->head_dim == 64 && (few || short_causal) ? SMALL_64 : large_tiling(problem);
}

/* The functions of a kernel that chooses by CHOOSE. */
template <int CHOOSE(const struct fa_problem *)> struct chosen {
    static uint64_t units(const struct fa_problem *problem)
    {
        return spans_units(problem, tile_rows[CHOOSE(problem)]);
    }

    static size_t state(const struct fa_problem *problem)
    {
        return spans_state(problem, tile_rows[CHOOSE(problem)]);
    }

    static enum fa_status launch(const struct fa_launch *launch)
    {
        const int tiling = CHOOSE(launch->problem);
        const struct cuda_function *function = &functions[tiling];

        return spans_launch(launch, tile_rows[tiling], function, function->shared);
    }
};

static const char *refuses(const struct fa_problem *problem)
{
    return problem->head_dim == 64 || problem->head_dim == 128 ? NULL
                                                               : "head_dim is neither 64 nor 128";
}

template <int CHOOSE(const struct fa_problem *)>
constexpr struct fa_kernel kernel_of(const char *name, double rate, double unit_seconds)
{
    using functions = chosen<CHOOSE>;
    return {
        .name = name,
        .refuses = refuses,
        .units = functions::units,
        .in_order = false,
        .state = functions::state,
        .scratch = no_bytes,
        .launch = functions::launch,
        .rate = rate,
        .unit_seconds = unit_seconds,
        .byte_seconds = BYTE_SECONDS,
    };
}

/* Rates at (4,12,2048,64), seconds of a unit at (48000,1,1,64), on an H200, 2026-11-30. */
static const struct fa_kernel best = kernel_of<best_tiling>("cuda-v4", 43e12, 70e-9);
static const struct fa_kernel small = kernel_of<small_tiling>("cuda-v4-small", 40e12, 35e-9);
static const struct fa_kernel large = kernel_of<large_tiling>("cuda-v4-large", 43e12, 70e-9);

const struct fa_kernel *fa_cuda_v4_kernel(const struct fa_target *target)
{
    switch (target->arch) {
    case 90:
    case 100:
    case 103:
    case 110:
        return &best; /* a block gets 227 KiB of shared memory */
    default:
        return target->arch >= CUDA_ARCH_MIN ? &small : NULL; /* 163 KiB (80, 87), or 99 KiB */
    }
}

const struct fa_kernel *const *cuda_v4_kernels(size_t *count)
{
    static const struct fa_kernel *const kernels[] = {&best, &small, &large};
    *count = sizeof kernels / sizeof kernels[0];
    return kernels;
}

const struct cuda_function *cuda_v4_functions(size_t *count)
{
    *count = TILINGS;
    return functions;
}
