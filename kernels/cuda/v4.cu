/* v4: optimised v3. The same warps and the same steps, and four changes:
 *  - tiles come by asynchronous copies, the values while the scores are computed, the next keys
 *    while the values are summed; k and v have a tile each, and a step two barriers;
 *  - up to head_dim 64 a thread of the large tiles has 8 rows, so that at 64 eight loads of shared
 *    memory feed 128 multiplications; beyond it its registers hold 4, and with 128 it is twelve for
 *    the scores and ten for the values;
 *  - the products are unrolled as far as the instruction cache allows;
 *  - of equal units some are cut in two, for the end of a grid (relay.cuh).
 * A thread of 8 rows has no registers for several elements of 8 keys, and takes keys transposed,
 * which are copied by elements; the others take them as they lie, 16 bytes a copy where they can.
 *
 * Which tiling runs is chosen by the problem, or by the shared memory that a block gets. Few rows
 * are not worth a tile: decode.cu has those. */
#include "kernels/cuda/copies.cuh"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/relay.cuh"

#include <algorithm>

/* D: columns of o. R: rows of a thread. WARPS: of a block. KEYS: of a tile. BLOCKS: of an SM of 228
 * KiB. DEPTH, UNROLL: steps of the scores and of the values that are one piece of code, as many as
 * the instruction cache allows. Head dimensions that are not D take fewer steps of the scores, so
 * that they are not rounded up to much more. */
template <int D_, int R_, int WARPS_, int KEYS_, int BLOCKS_, int DEPTH, int UNROLL> struct tiling {
    static constexpr int D = D_, R = R_, WARPS = WARPS_, KEYS = KEYS_, BLOCKS = BLOCKS_;
    static constexpr bool TRANSPOSED = R == 8;
    static constexpr int EXACT_DEPTH = DEPTH, RAGGED_DEPTH = TRANSPOSED ? 4 : 8;
    static constexpr int THREADS = WARPS * 32, ROWS = WARPS * WARP_ROWS * R;
    template <int STEP> using warp_rows = warp<D, R, KEYS, TRANSPOSED, ROWS, STEP, UNROLL>;
    using sizes = warp_rows<DEPTH>;
    static_assert(D % DEPTH == 0, "whole steps");
    static constexpr size_t REGISTERS = sizes::REGISTERS;
    static constexpr size_t SHARED =
        (sizes::Q_SIZE + sizes::K_SIZE + sizes::V_SIZE + WARPS * sizes::WEIGHTS) * sizeof(float);
};

/* Structs, so that their names are in those of the functions. */
struct large_32 : tiling<32, 8, 4, 64, 2, 8, 16> { /* 74 KiB */
};
struct large_48 : tiling<48, 8, 4, 64, 2, 4, 16> { /* 90 KiB */
};
struct large_64 : tiling<64, 8, 4, 64, 2, 4, 8> { /* 107 KiB */
};
struct large_80 : tiling<80, 4, 8, 64, 1, 16, 16> { /* 131 KiB */
};
struct large_96 : tiling<96, 4, 8, 64, 1, 16, 32> { /* 147 KiB */
};
struct large_128 : tiling<128, 4, 8, 64, 1, 32, 32> { /* 179 KiB */
};
struct large_160 : tiling<160, 4, 8, 64, 1, 32, 16> { /* 211 KiB */
};
struct large_192 : tiling<192, 4, 8, 32, 1, 32, 16> { /* 171 KiB */
};
struct large_224 : tiling<224, 4, 8, 32, 1, 32, 16> { /* 195 KiB */
};
struct large_256 : tiling<256, 4, 8, 32, 1, 32, 32> { /* 219 KiB */
};
struct small_32 : tiling<32, 4, 4, 64, 4, 16, 16> { /* 50 KiB */
};
struct small_64 : tiling<64, 4, 4, 64, 3, 16, 32> { /* 74 KiB */
};
struct small_96 : tiling<96, 4, 4, 32, 3, 16, 16> { /* 62 KiB */
};
struct small_128 : tiling<128, 4, 4, 32, 2, 16, 16> { /* 78 KiB */
};

/* Bytes of shared memory of an SM. Where fewer blocks fit than on an H100 each gets more
 * registers. */
#if !defined __CUDA_ARCH__ || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define SM_SHARED ((size_t)228 << 10)
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define SM_SHARED ((size_t)100 << 10)
#else
#define SM_SHARED ((size_t)164 << 10)
#endif

/* Of a tiling, on an SM; 0 if none fits. CUDA takes 1 KiB of each block. */
template <typename S>
constexpr int blocks_of_sm = (int)std::min((size_t)S::BLOCKS,
                                           SM_SHARED / (S::SHARED + ((size_t)1 << 10)));

/* EXACT: head_dim is S::D. */
template <typename S, bool EXACT>
__global__ void __launch_bounds__(S::THREADS, blocks_of_sm<S>)
    v4_kernel(const __grid_constant__ struct args args)
{
    extern __shared__ float4 shared[];
    const struct fa_problem &problem = args.problem;
    const int width = EXACT ? S::D : (int)problem.head_dim;
    constexpr int STEP = EXACT ? S::EXACT_DEPTH : S::RAGGED_DEPTH;
    const int depth = (width + STEP - 1) / STEP * STEP;
    using warp_rows = typename S::template warp_rows<STEP>;
    float *q = (float *)shared, *k = q + warp_rows::Q_SIZE, *v = k + warp_rows::K_SIZE;
    /* The next keys are copied from the values' loop on if all warps of an SM are in step: before
     * the softmax they would wait for each other's copies. Those of two blocks are not, and rather
     * have the keys early. */
    constexpr bool LATE = S::BLOCKS == 1;
    const bool pieces = args.aligned && width % 4 == 0; /* of 16 bytes */
    __shared__ struct tile tile;
    __shared__ struct leg leg;
    keys_copy<S, EXACT, warp_rows::KEYS_STRIDE> keys;
    rows_copy<S, EXACT, S::D> values;
    warp_rows warp;

    const auto start_k = [&](uint32_t key) {
        if (key < leg.end_key)
            keys.start(problem.k.row, tile_keys(args, key, S::KEYS), width, pieces);
    };
    const auto start_v = [&](uint32_t key) {
        values.start(problem.v.row, tile_keys(args, key, S::KEYS), width, pieces);
    };

    find_leg<S::KEYS, S::REGISTERS>(args, S::ROWS, &tile, &leg);
    warp.init(args, tile, q, v + warp_rows::V_SIZE);
    if (leg.first_key < leg.end_key) {
        keys.init(tile.k + leg.first_key * problem.k.row, problem.k.row, k, pieces);
        values.init(tile.v + leg.first_key * problem.v.row, problem.v.row, v, pieces);
        if (!EXACT) { /* copies leave out what is after a row's elements, where q is 0 */
            for (int i = 4 * (int)threadIdx.x; i < warp_rows::K_SIZE + warp_rows::V_SIZE;
                 i += 4 * S::THREADS)
                store4(k + i, {0, 0, 0, 0});
            __syncthreads();
        }
        start_k(leg.first_key);
        copy_transposed<same_place, S::D <= 64 ? 16 : 8>(q, S::ROWS, S::ROWS, depth, tile.q,
                                                         problem.q.row, (int)tile.rows, width,
                                                         args.sign, args.aligned);
        if (threadIdx.x == 0 && leg.first_key > tile.first_key)
            await_leg(leg);
        wait_for_copies();
        if (leg.first_key > tile.first_key)
            warp.restore(leg.registers);
    }
    for (uint32_t key = leg.first_key; key < leg.end_key; key += S::KEYS) {
        float scores[S::R][warp_rows::C], alpha[S::R];

        warp.score(args, k, depth, key, scores, [&] { start_v(key); });
        wait_for_copies();
        if (!LATE)
            start_k(key + S::KEYS);
        warp.weigh_tile(args, scores, alpha);
        warp.add_values(args, v, key, alpha, [&] {
            if (LATE)
                start_k(key + S::KEYS);
        });
        if (chunk_ends(tile, key + S::KEYS))
            warp.keep(args, tile, key + S::KEYS == tile.first_key + CHUNK_KEYS);
        wait_for_copies();
    }
    if (leg.end_key < tile.end_key) {
        warp.save(leg.registers);
        leg_ends(leg);
        return;
    }
    warp.end(args, tile);
}

/* --- Which tiling ---------------------------------------------------------------------------- */

/* The large ones by columns of o, then the small ones; and each again for other head dimensions
 * than these. */
enum { LARGE = 10, SMALL = 4, TILINGS = LARGE + SMALL };

#define EACH(OF)                                                                                \
    OF(large_32), OF(large_48), OF(large_64), OF(large_80), OF(large_96), OF(large_128),        \
        OF(large_160), OF(large_192), OF(large_224), OF(large_256), OF(small_32), OF(small_64), \
        OF(small_96), OF(small_128)

#define FUNCTION(S, EXACT)                                                                \
    {                                                                                     \
        "v4<" #S "," #EXACT ">", (const void *)v4_kernel<S, EXACT>, S::THREADS, S::SHARED \
    }
#define EXACT(S)  FUNCTION(S, true)
#define RAGGED(S) FUNCTION(S, false)
static const struct cuda_function functions[2 * TILINGS] = {EACH(EXACT), EACH(RAGGED)};

#define TILE(S)                                              \
    {                                                        \
        S::D, S::ROWS, S::KEYS, S::BLOCKS *SMS, S::REGISTERS \
    }
static const struct tile_size {
    uint32_t columns, rows, keys;
    uint32_t slots;   /* blocks that an H200 runs at once */
    size_t registers; /* floats that a block keeps from one tile of keys to the next */
} tiles[TILINGS] = {EACH(TILE)};

/* The first tiling from `first` on that has as many columns; refuses_large sees to it that there is
 * one. */
static int tiling_from(int first, const struct fa_problem *problem)
{
    while (tiles[first].columns < problem->head_dim)
        first++;
    return first;
}

static int large_tiling(const struct fa_problem *problem)
{
    return tiling_from(0, problem);
}

static int small_tiling(const struct fa_problem *problem)
{
    return tiling_from(LARGE, problem);
}

/* Up to head_dim 64 the small tiles give the same bits, for a row's sums go the same way, some
 * percent slower. They are for problems with too few large tiles to fill an H200 once, and for
 * causal masks over so few keys that the masked half of a row's last tile costs more. */
static int best_tiling(const struct fa_problem *problem)
{
    const bool few = spans_units(problem, large_64::ROWS) <= SMS * large_64::BLOCKS;
    const bool short_causal = problem->mask != FA_MASK_NONE && problem->kv_len <= 2048;

    return problem->head_dim <= 64 && (few || short_causal) ? small_tiling(problem)
                                                            : large_tiling(problem);
}

static uint32_t tiling_relays(const struct fa_problem *problem, int tiling)
{
    const struct tile_size *tile = &tiles[tiling];
    return relays_of(problem, tile->rows, tile->keys, tile->slots);
}

static enum fa_status launch_tiling(const struct fa_launch *launch, int tiling)
{
    const struct fa_problem *problem = launch->problem;
    const struct tile_size *tile = &tiles[tiling];
    const struct cuda_function *function =
        &functions[tiling + (problem->head_dim == tile->columns ? 0 : TILINGS)];
    const uint64_t units = spans_units(problem, tile->rows);

    return for_each_part(
        launch, units, spans_state(problem, tile->rows), spans_cut(problem, tile->rows),
        GRID_MAX - tile->slots, [=](struct args &args) {
            const bool whole = launch->range.count == units && args.unit_count == units;
            const uint32_t relays = whole ? tiling_relays(problem, tiling) : 0;
            enum fa_status status = FA_OK;

            args.cut.relays = relays;
            if (relays > 0)
                status = status_of(cudaMemsetAsync(args.scratch, 0, relay_bytes(relays),
                                                   (cudaStream_t)launch->stream));
            return status != FA_OK ? status
                                   : enqueue(function, function->shared, args.unit_count + relays,
                                             args, launch->stream);
        });
}

/* The functions of a kernel that chooses by CHOOSE, except where rows are few. */
template <int CHOOSE(const struct fa_problem *)> struct chosen {
    static uint64_t units(const struct fa_problem *problem)
    {
        if (decode_covers(problem))
            return decode_units(problem);
        return spans_units(problem, tiles[CHOOSE(problem)].rows);
    }

    static size_t state(const struct fa_problem *problem)
    {
        if (decode_covers(problem))
            return decode_state(problem);
        return spans_state(problem, tiles[CHOOSE(problem)].rows);
    }

    static size_t scratch(const struct fa_problem *problem, uint64_t count)
    {
        uint32_t relays;
        int tiling;

        if (decode_covers(problem) || count != units(problem))
            return 0;
        tiling = CHOOSE(problem);
        relays = tiling_relays(problem, tiling);
        return relays == 0
                   ? 0
                   : relay_bytes(relays) + (size_t)relays * tiles[tiling].registers * sizeof(float);
    }

    static enum fa_status launch(const struct fa_launch *launch)
    {
        return decode_covers(launch->problem) ? decode_launch(launch)
                                              : launch_tiling(launch, CHOOSE(launch->problem));
    }
};

/* Larger tiles than that have no room. */
static const char *refuses_large(const struct fa_problem *problem)
{
    return decode_covers(problem) || problem->head_dim <= small_128::D ? NULL
                                                                       : "head_dim is over 128";
}

template <int CHOOSE(const struct fa_problem *)>
constexpr struct fa_kernel kernel_of(const char *name,
                                     const char *refuses(const struct fa_problem *), double rate,
                                     double unit_seconds)
{
    using functions = chosen<CHOOSE>;
    return {
        .name = name,
        .refuses = refuses,
        .units = functions::units,
        .in_order = false,
        .state = functions::state,
        .scratch = functions::scratch,
        .launch = functions::launch,
        .rate = rate,
        .unit_seconds = unit_seconds,
        .byte_seconds = BYTE_SECONDS,
        .read_seconds = READ_SECONDS,
    };
}

/* Rates at (4,12,2048,64), on an H200, 2026-12-01; seconds of a unit at (48000,1,1,64), there,
 * before rows that are few had kernels of their own. */
static const struct fa_kernel best =
    kernel_of<best_tiling>("cuda-v4", refuses_nothing, 45e12, 70e-9);
static const struct fa_kernel small =
    kernel_of<small_tiling>("cuda-v4-small", refuses_large, 43e12, 35e-9);
static const struct fa_kernel large =
    kernel_of<large_tiling>("cuda-v4-large", refuses_nothing, 45e12, 70e-9);

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
    *count = sizeof functions / sizeof functions[0];
    return functions;
}
