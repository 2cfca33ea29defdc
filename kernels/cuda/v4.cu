/* v4: optimised v3. The same warps and the same steps, and three changes:
 *  - a thread has 8 rows where its registers allow it (head_dim 64), so that eight loads of shared
 *    memory feed 128 multiplications rather than 85;
 *  - tiles come by asynchronous copies of 16 bytes: values while the scores are computed, the next
 *    keys while the values are summed. k and v have a tile each;
 *  - the copies' indices are 32 bits wide; 64-bit products are left to the first row of a tile.
 *
 * Where a block has less shared memory than the tiles of a data-centre part need, smaller ones run:
 * a kernel of another name, since tiles of fewer keys round elsewhere. */
#include "kernels/cuda/warp.cuh"

/* D: head_dim. R: rows of a thread. WARPS, KEYS: of the tile. BLOCKS: of an SM of 228 KB. UNROLL:
 * of the products; more than this overflows the instruction cache. */
template <int D_, int R_, int WARPS, int KEYS_, int BLOCKS_, int UNROLL> struct shape {
    static constexpr int D = D_, R = R_, KEYS = KEYS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = WARPS * 32, ROWS = WARPS * WARP_ROWS * R;
    using warp_rows = warp<D, R, KEYS, ROWS, UNROLL>;
    /* Floats. Values need no gaps between rows: a quarter of a warp reads one row at a time. */
    static constexpr int Q = D * ROWS, K = KEYS * tile_stride(D), V = KEYS * D;
    static constexpr size_t SHARED = (Q + K + V + WARPS * warp_rows::WEIGHTS) * sizeof(float);
};

/* 105 KB; by its registers too an SM holds two. */
struct wide_64 : shape<64, 8, 4, 64, 2, 2> {
};

/* 177 KB. */
struct wide_128 : shape<128, 4, 8, 64, 1, 8> {
};

/* 73 KB. */
struct small_64 : shape<64, 4, 4, 64, 3, 4> {
};

/* 77 KB. */
struct small_128 : shape<128, 4, 4, 32, 2, 4> {
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
            args, k, tile.k + key * problem.k.row, problem.k.row,
            (int)min((uint32_t)S::KEYS, problem.kv_len - key));
    };
    const auto start_v = [&](uint32_t key) {
        start_copy<S::THREADS, S::KEYS, S::D, S::D>(
            args, v, tile.v + key * problem.v.row, problem.v.row,
            (int)min((uint32_t)S::KEYS, problem.kv_len - key));
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
        wait_for_copies();
    }
    warp.end(args, tile);
}

template <typename S> static enum fa_status launch_shape(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;

    return for_each_part(launch, spans_units(problem, S::ROWS), spans_state(problem, S::ROWS),
                         spans_cut(problem, S::ROWS), INT32_MAX, [=](struct args *args) {
                             return enqueue((const void *)v4_kernel<S>, args->unit_count,
                                            S::THREADS, S::SHARED, args, launch->stream);
                         });
}

/* What runs a problem. */
struct choice {
    uint32_t rows;
    enum fa_status (*launch)(const struct fa_launch *launch);
};

template <typename S> constexpr struct choice choice_of = {S::ROWS, launch_shape<S>};

/* Tiles of 64 rows are a little slower each than ones of 128, and give the same bits: the sums of a
 * row go the same way. They are for problems with too few tiles of 128 to fill the multiprocessors
 * of an H200 once, and for causal masks over so few keys that the masked half of the last tile of
 * keys costs more. */
static struct choice choose_wide(const struct fa_problem *problem)
{
    const uint64_t blocks = spans_units(problem, wide_64::ROWS), at_once = 132 * wide_64::BLOCKS;
    const bool causal = problem->mask != FA_MASK_NONE;

    if (problem->head_dim == 128)
        return choice_of<wide_128>;
    return blocks <= at_once || (causal && problem->kv_len <= 2048) ? choice_of<small_64>
                                                                    : choice_of<wide_64>;
}

static struct choice choose_small(const struct fa_problem *problem)
{
    return problem->head_dim == 128 ? choice_of<small_128> : choice_of<small_64>;
}

template <struct choice CHOOSE(const struct fa_problem *)> struct rows_of {
    static uint64_t units(const struct fa_problem *problem)
    {
        return spans_units(problem, CHOOSE(problem).rows);
    }
    static size_t state(const struct fa_problem *problem)
    {
        return spans_state(problem, CHOOSE(problem).rows);
    }
    static enum fa_status launch(const struct fa_launch *launch)
    {
        return CHOOSE(launch->problem).launch(launch);
    }
};

static const char *refuses(const struct fa_problem *problem)
{
    return problem->head_dim == 64 || problem->head_dim == 128 ? NULL
                                                               : "head_dim is neither 64 nor 128";
}

static const struct fa_kernel wide = {
    .name = "cuda-v4",
    .refuses = refuses,
    .units = rows_of<choose_wide>::units,
    .in_order = false,
    .state = rows_of<choose_wide>::state,
    .scratch = no_bytes,
    .launch = rows_of<choose_wide>::launch,
    .rate = 42e12,
    .unit_seconds = 60e-9,
    .byte_seconds = BYTE_SECONDS,
};

static const struct fa_kernel small = {
    .name = "cuda-v4-small",
    .refuses = refuses,
    .units = rows_of<choose_small>::units,
    .in_order = false,
    .state = rows_of<choose_small>::state,
    .scratch = no_bytes,
    .launch = rows_of<choose_small>::launch,
    .rate = 38e12,
    .unit_seconds = 30e-9,
    .byte_seconds = BYTE_SECONDS,
};

const struct fa_kernel *fa_cuda_v4_kernel(const struct fa_target *target)
{
    switch (target->arch) {
    case 90:
    case 100:
    case 103:
    case 110:
        return &wide; /* a block gets 227 KB */
    default:
        return target->arch >= 80 ? &small : NULL; /* 163 KB (80, 87), or 99 KB */
    }
}

const struct cuda_function *cuda_v4_functions(size_t *count)
{
    static const struct cuda_function functions[] = {
        {"v4<wide_64>", (const void *)v4_kernel<wide_64>, wide_64::THREADS, wide_64::SHARED},
        {"v4<wide_128>", (const void *)v4_kernel<wide_128>, wide_128::THREADS, wide_128::SHARED},
        {"v4<small_64>", (const void *)v4_kernel<small_64>, small_64::THREADS, small_64::SHARED},
        {"v4<small_128>", (const void *)v4_kernel<small_128>, small_128::THREADS,
         small_128::SHARED},
    };
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
