/* launch.cuh: from a launch of several equal problems and a range of their units to grids of
 * blocks, and from a block to the tile of rows and keys that it works on. */
#ifndef FA_KERNELS_CUDA_LAUNCH_CUH
#define FA_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/mask.h"

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>

/* Problems of one grid: their pointers travel as parameters, which may take 4 KiB everywhere. */
#define PROBLEMS_MAX 64u

/* Blocks of a grid. */
#define GRID_MAX INT32_MAX

/* SMs of the device that grids are made to fill: an H200. */
#define SMS 132u

/* How a problem's rows and keys are cut. */
struct cut {
    uint32_t tiles;     /* of a head's rows */
    uint32_t spans;     /* of a tile's keys: spans.cuh, decode.cu; of v0 and v1 tiles of keys */
    uint32_t span_keys; /* v2 to v4: of each span but the last */
    bool kept;          /* v2 to v4: results of spans go through the state */
    uint32_t relays;    /* v4: units of the grid that are cut in two: relay.cuh */
};

/* The parameters of every kernel. */
struct args {
    struct fa_problem problem;
    struct cut cut;
    float sign;          /* of the scale: -1, 0 or 1; every q is multiplied by it on its way in */
    float scale_log2;    /* turns a difference of scores into an exponent of 2; > 0 */
    uint32_t aligned;    /* q, k, v and o allow accesses of 16 bytes */
    uint64_t first_unit; /* block 0's, counted from tensors[0]'s first */
    uint64_t unit_count; /* of the grid */
    char *state;         /* of tensors[0]; the next problem's follows after state_bytes */
    size_t state_bytes;
    float *scratch;
    struct fa_tensors tensors[PROBLEMS_MAX];
};
static_assert(sizeof(struct args) <= 4096, "kernel parameters");

/* What a block works on. */
struct tile {
    const float *q;     /* the tile's first row */
    const float *k, *v; /* the first key of the head that it reads */
    float *o;
    float *lse;               /* NULL: not wanted */
    uint32_t first_row, rows; /* rows: tile_rows, or fewer at the end */
    uint32_t tile_rows;
    uint32_t keys;               /* that the last row, and so any of them, sees */
    uint32_t first_key, end_key; /* the unit's part of these keys; may be empty */
    uint32_t span;
    /* Where the spans' results are kept: */
    uint32_t *done; /* how many spans of the tile are done */
    float *parts;   /* [spans][rows][head_dim + 2], see part_row */
};

/* fa_kernel.byte_seconds and .read_seconds: about 2 and 4.3 TB/s, on an H200. */
#define BYTE_SECONDS 0.5e-12
#define READ_SECONDS 0.23e-12

/* --- On the host ---------------------------------------------------------------------------- */

static inline uint32_t divide_up(uint64_t x, uint32_t by)
{
    return (uint32_t)((x + by - 1) / by);
}

static inline size_t round_up_64(size_t bytes)
{
    return bytes > SIZE_MAX - 63 ? SIZE_MAX : (bytes + 63) / 64 * 64;
}

static inline float sign_of(double scale)
{
    return (float)((scale > 0) - (scale < 0));
}

/* As in kernels/cpu/tiled.c: cut to what a float holds, and never 0, which times -inf is NaN. */
static inline float scale_log2_of(double scale)
{
    return (float)fmin(fmax(fabs(scale) * M_LOG2E, (double)FLT_TRUE_MIN), (double)FLT_MAX);
}

static inline bool rows_aligned(const void *first, struct fa_strides strides)
{
    return ((uintptr_t)first % 16 | (uint64_t)(strides.batch | strides.head | strides.row) % 4) ==
           0;
}

static inline bool is_aligned(const struct fa_problem *problem, const struct fa_tensors *tensors)
{
    return rows_aligned(tensors->q, problem->q) && rows_aligned(tensors->k, problem->k) &&
           rows_aligned(tensors->v, problem->v) && rows_aligned(tensors->o, problem->o);
}

/* fa_kernel.refuses of kernels that cover everything fa_problem_check passes. */
static inline const char *refuses_nothing(const struct fa_problem *problem)
{
    (void)problem;
    return NULL;
}

/* fa_kernel.state and .scratch of kernels that want none. */
static inline size_t no_state(const struct fa_problem *problem)
{
    (void)problem;
    return 0;
}

static inline size_t no_scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 0;
}

/* batch * heads * each, saturated. Extents are below 2^31. */
static inline uint64_t units_of(const struct fa_problem *problem, uint64_t each)
{
    uint64_t units;

    if (__builtin_mul_overflow((uint64_t)problem->batch * problem->heads, each, &units))
        return UINT64_MAX;
    return units;
}

static inline enum fa_status status_of(cudaError_t error)
{
    if (error == cudaSuccess)
        return FA_OK;
    return error == cudaErrorMemoryAllocation ? FA_RESOURCE_EXHAUSTED : FA_INTERNAL;
}

/* shared: bytes of dynamic shared memory, at most the function's. */
static inline enum fa_status enqueue(const struct cuda_function *function, size_t shared,
                                     uint64_t blocks, const struct args &args, void *stream)
{
    void *parameters[] = {(void *)&args};
    cudaError_t error = cudaErrorInvalidConfiguration;

    if (blocks <= GRID_MAX)
        error = cudaLaunchKernel(function->entry, dim3((unsigned)blocks),
                                 dim3((unsigned)function->threads), parameters, shared,
                                 (cudaStream_t)stream);
    if (error != cudaSuccess)
        (void)cudaGetLastError(); /* it is told here, not at a later call */
    return status_of(error);
}

/* Calls start(args), which returns a status, for one part after another of the launch's range, none
 * of more than `most` units or PROBLEMS_MAX problems. It may set args.cut.relays, which the next
 * part then has. units, state_bytes: of a problem. */
template <typename F>
static enum fa_status for_each_part(const struct fa_launch *launch, uint64_t units,
                                    size_t state_bytes, struct cut cut, uint64_t most, F start)
{
    const struct fa_problem *problem = launch->problem;
    uint64_t first = launch->range.first, left = launch->range.count;
    struct args args;

    args.problem = *problem;
    args.cut = cut;
    args.sign = sign_of(problem->scale);
    args.scale_log2 = scale_log2_of(problem->scale);
    args.state_bytes = state_bytes;
    args.scratch = (float *)launch->scratch;
    while (left > 0 && units > 0) {
        const uint64_t base = first / units, after = launch->problem_count - base;
        const uint64_t problems = after < PROBLEMS_MAX ? after : PROBLEMS_MAX;
        const uint64_t in_reach = (base + problems) * units - first;
        enum fa_status status;

        args.first_unit = first - base * units;
        args.unit_count = left < in_reach ? left : in_reach;
        if (args.unit_count > most)
            args.unit_count = most;
        args.state = (char *)launch->state + base * args.state_bytes;
        args.aligned = 1;
        for (uint64_t i = 0; i < problems; i++) {
            args.tensors[i] = launch->tensors[base + i];
            args.aligned &= is_aligned(problem, &args.tensors[i]);
        }
        status = start(args);
        if (status != FA_OK)
            return status;
        first += args.unit_count;
        left -= args.unit_count;
    }
    return FA_OK;
}

/* --- On the device -------------------------------------------------------------------------- */

__device__ __forceinline__ int64_t offset_of(const struct fa_strides &strides, uint64_t batch,
                                             uint64_t head, uint64_t row)
{
    return (int64_t)batch * strides.batch + (int64_t)head * strides.head +
           (int64_t)row * strides.row;
}

/* How many of a tile's `size` keys from `first` on a row sees that sees `keys` in all. */
__device__ __forceinline__ int keys_in_tile(uint32_t keys, uint32_t first, uint32_t size)
{
    return keys < first ? 0 : (int)min(keys - first, size);
}

/* How many of a tile's `size` keys from `first` on there are; one at least. */
__device__ __forceinline__ int tile_keys(const struct args &args, uint32_t first, uint32_t size)
{
    return (int)min(size, args.problem.kv_len - first);
}

/* The rows of a head from first_row on, `rows` at most. problem_head counts heads over problems
 * and their sequences. All keys. */
__device__ __forceinline__ struct tile tile_at(const struct args &args, uint64_t problem_head,
                                               uint32_t first_row, uint32_t rows)
{
    const struct fa_problem &problem = args.problem;
    const uint64_t head = problem_head % problem.heads;
    const uint64_t batch = problem_head / problem.heads % problem.batch;
    const struct fa_tensors &tensors = args.tensors[problem_head / problem.heads / problem.batch];
    const uint64_t kv_head = head / (problem.heads / problem.kv_heads);
    struct tile tile = {};

    tile.first_row = first_row;
    tile.rows = min(rows, problem.q_len - first_row);
    tile.tile_rows = rows;
    tile.q = (const float *)tensors.q + offset_of(problem.q, batch, head, first_row);
    tile.k = (const float *)tensors.k + offset_of(problem.k, batch, kv_head, 0);
    tile.v = (const float *)tensors.v + offset_of(problem.v, batch, kv_head, 0);
    tile.o = (float *)tensors.o + offset_of(problem.o, batch, head, first_row);
    if (tensors.lse)
        tile.lse = (float *)tensors.lse + offset_of(problem.lse, batch, head, first_row);
    tile.keys = mask_visible_keys(&problem, first_row + tile.rows - 1);
    tile.end_key = tile.keys;
    return tile;
}

#endif
