#include "tests/gpu/recorder.h"

#include "kernels/cuda/decode.h"
#include "kernels/cuda/launch.cuh"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

enum { RANGES_MAX = 4096 };

/* Of the launch at hand. */
static struct {
    const struct fa_kernel *kernel;
    const struct fa_launch *launch;
    uint64_t units; /* of a problem */
    const struct cuda_function *functions;
    size_t function_count;
    bool all_aligned;

    struct fa_range ranges[RANGES_MAX]; /* that grids ran, counted over problems; merged */
    size_t range_count;
    int stage; /* v0: grids of the group so far */
    uint64_t group_first, group_count;
    size_t zeroed;   /* bytes of the scratch, since the last grid */
    uint64_t relays; /* v4: units that two blocks share */
    int calls, failing_call;
    cudaError_t failure;
} seen;

/* ck_assert writes to a pipe even when all is well: too slow for every grid. */
static void expect(bool met, const char *what)
{
    const struct fa_problem *p = seen.launch->problem;

    if (!met)
        ck_abort_msg("%s at (%u,%u/%u,%u,%u,%u) %s, %u problems, units from %llu on, %llu of them: "
                     "grid %d: %s",
                     seen.kernel->name, p->batch, p->heads, p->kv_heads, p->q_len, p->kv_len,
                     p->head_dim, fa_mask_name(p->mask), seen.launch->problem_count,
                     (unsigned long long)seen.launch->range.first,
                     (unsigned long long)seen.launch->range.count, seen.calls, what);
}

static char version(void)
{
    return seen.kernel->name[strlen("cuda-v")];
}

/* v4: whether the query heads of a group share its units, which are those of decode.h. */
static bool is_decoding(void)
{
    return version() == '4' && decode_covers(seen.launch->problem);
}

static const struct cuda_function *function_of(const void *entry)
{
    for (size_t i = 0; i < seen.function_count; i++)
        if (seen.functions[i].entry == entry)
            return &seen.functions[i];
    return NULL;
}

/* Units of a grid, counted from the base-th problem's first. */
static void note(uint64_t base, uint64_t first, uint64_t count)
{
    struct fa_range *last = seen.range_count > 0 ? &seen.ranges[seen.range_count - 1] : NULL;

    first += base * seen.units;
    if (last && last->first + last->count == first) {
        last->count += count;
        return;
    }
    expect(seen.range_count < RANGES_MAX, "too many grids");
    seen.ranges[seen.range_count++] = {first, count};
}

/* v0: three grids for each group of units, the first only where there are keys. All three take the
 * same units, whose scores are in the scratch. Returns how many units the last one ends. */
static uint64_t note_group(const struct args *args, const void *entry, uint64_t blocks)
{
    const struct fa_problem *problem = seen.launch->problem;
    const uint64_t count = args->unit_count, slabs = divide_up(problem->head_dim, 64);
    const uint64_t each[] = {args->cut.spans, 64 / 8, slabs}; /* blocks of a unit */
    const size_t scores = (size_t)args->cut.spans * 64 * 64 * sizeof(float);

    if (seen.stage == 0) {
        seen.group_first = (uint64_t)args->state + args->first_unit;
        seen.group_count = count;
        seen.stage = problem->kv_len > 0 ? 0 : 1;
    }
    expect(entry == seen.functions[seen.stage].entry, "not the group's next kernel");
    expect(blocks == count * each[seen.stage], "blocks do not cover the group");
    expect((uint64_t)args->state + args->first_unit == seen.group_first &&
               count == seen.group_count,
           "a group's kernels take different units");
    expect(count * scores <= seen.kernel->scratch(problem, seen.launch->range.count),
           "a group does not fit the scratch");
    seen.stage = (seen.stage + 1) % 3;
    return seen.stage == 0 ? count : 0;
}

/* v1: a window of the heads of each problem, or all of them. Block b of a problem has the units
 * first_unit + b, + heads, + 2 heads .. below first_unit + unit_count: each of those once. Returns
 * how many problems the grid has. */
static uint64_t count_problems(const struct args *args, uint64_t blocks)
{
    const uint64_t heads = (uint64_t)args->problem.batch * args->problem.heads;
    const uint64_t window = args->unit_count < heads ? args->unit_count : heads;

    expect(window > 0, "no units");
    expect(blocks % window == 0, "not the same number of blocks for each problem");
    expect(args->first_unit + args->unit_count <= seen.units, "units past the problem's");
    return blocks / window;
}

/* v4: units of the grid that two blocks share, whose counters the launch zeroed just before, at the
 * beginning of a scratch that has room for their rows after these. */
static void note_relays(const struct args *args)
{
    const struct fa_problem *problem = seen.launch->problem;
    const uint64_t relays = args->cut.relays, rows = divide_up(problem->q_len, args->cut.tiles);
    const size_t scratch = seen.kernel->scratch(problem, seen.launch->range.count);

    expect(relays <= args->unit_count, "more units cut than there are");
    expect((relays > 0) == (seen.zeroed > 0), "zeroes in vain, or none");
    if (relays > 0) {
        expect(seen.zeroed >= (relays + 1) * sizeof(uint32_t), "too few zeroes");
        expect(scratch >= seen.zeroed + relays * rows * (problem->head_dim + 2) * sizeof(float),
               "no room for the rows");
    }
    seen.zeroed = 0;
    seen.relays += relays;
}

/* How the blocks of each version find their units: v0's by unit_count, v1's as above, the others'
 * unit is first_unit + blockIdx.x, but for v4's that two blocks share. Returns the number of units
 * past the base-th problem's first that the grid reaches. */
static uint64_t note_units(const struct args *args, uint64_t base, const void *entry,
                           uint64_t blocks)
{
    const uint64_t count = args->unit_count;

    if (version() == '1') {
        const uint64_t problems = count_problems(args, blocks);
        for (uint64_t p = 0; p < problems; p++)
            note(base + p, args->first_unit, count);
        return (problems - 1) * seen.units + args->first_unit + count;
    }
    if (version() == '0') {
        const uint64_t ended = note_group(args, entry, blocks);
        if (ended > 0)
            note(base, args->first_unit, ended);
    } else {
        expect(blocks == count + args->cut.relays, "blocks do not cover the units");
        note_relays(args);
        note(base, args->first_unit, count);
    }
    return args->first_unit + count;
}

static uint64_t base_of(const struct args *args)
{
    const struct fa_launch *launch = seen.launch;
    uint64_t base = 0;

    while (base < launch->problem_count && launch->tensors[base].q != args->tensors[0].q)
        base++;
    expect(base < launch->problem_count, "unknown tensors");
    return base;
}

static void check_args(const struct args *args, uint64_t base, uint64_t reach)
{
    const struct fa_launch *launch = seen.launch;
    const uint64_t heads = (uint64_t)launch->problem->batch *
                           (is_decoding() ? launch->problem->kv_heads : launch->problem->heads);
    const uint64_t problems = (reach + seen.units - 1) / seen.units;
    const uint64_t tiles = version() == '1' ? 1 : args->cut.tiles;
    const uint64_t spans = version() == '0' ? 1 : args->cut.spans;
    bool aligned = true;

    expect(problems <= PROBLEMS_MAX && base + problems <= launch->problem_count,
           "units past the last problem's");
    expect(memcmp(&args->problem, launch->problem, sizeof args->problem) == 0, "another problem");
    expect(heads * tiles * spans == seen.units, "cut into another number of units");
    expect(args->state_bytes == seen.kernel->state(launch->problem), "another size of state");
    expect(args->state == (char *)launch->state + base * args->state_bytes, "another's state");
    expect(args->scratch == launch->scratch, "another scratch");
    for (uint64_t i = 0; i < problems; i++) {
        const struct fa_tensors *tensors = &launch->tensors[base + i];
        expect(memcmp(&args->tensors[i], tensors, sizeof *tensors) == 0, "another's tensors");
        aligned = aligned && is_aligned(launch->problem, tensors);
    }
    expect(aligned || !args->aligned, "not aligned");
    expect(args->aligned || !seen.all_aligned, "aligned");
}

extern "C" cudaError_t __wrap_cudaLaunchKernel(const void *entry, dim3 grid, dim3 block,
                                               void **parameters, size_t shared,
                                               cudaStream_t stream)
{
    const struct args *args = (const struct args *)parameters[0];
    const struct cuda_function *function = function_of(entry);
    const uint64_t base = base_of(args);

    expect(function, "not one of the version's functions");
    expect((int)block.x == function->threads && block.y == 1 && block.z == 1, "other threads");
    expect(shared <= function->shared, "more shared memory than was made ready");
    expect(grid.x > 0 && grid.x <= INT32_MAX && grid.y == 1 && grid.z == 1, "no such grid");
    expect(stream == seen.launch->stream, "another stream");
    check_args(args, base, note_units(args, base, entry, grid.x));
    return seen.calls++ == seen.failing_call ? seen.failure : cudaSuccess;
}

extern "C" cudaError_t __wrap_cudaMemsetAsync(void *memory, int value, size_t bytes,
                                              cudaStream_t stream)
{
    expect(memory == seen.launch->scratch && value == 0 && seen.zeroed == 0, "sets other memory");
    expect(stream == seen.launch->stream, "zeroes on another stream");
    seen.zeroed = bytes;
    return seen.calls++ == seen.failing_call ? seen.failure : cudaSuccess;
}

/* What a launch must not do. */
static cudaError_t forbidden(const char *what)
{
    expect(false, what);
    return cudaErrorUnknown;
}

extern "C" cudaError_t __wrap_cudaMalloc(void **, size_t)
{
    return forbidden("allocates");
}

extern "C" cudaError_t __wrap_cudaMallocAsync(void **, size_t, cudaStream_t)
{
    return forbidden("allocates on the stream");
}

extern "C" cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t)
{
    return forbidden("waits for the stream");
}

extern "C" cudaError_t __wrap_cudaDeviceSynchronize(void)
{
    return forbidden("waits for the device");
}

static void begin(const struct fa_kernel *kernel, const struct fa_launch *launch)
{
    seen.kernel = kernel;
    seen.launch = launch;
    seen.units = kernel->units(launch->problem);
    seen.functions =
        cuda_functions(is_decoding() ? CUDA_DECODE : version() - '0', &seen.function_count);
    seen.all_aligned = true;
    for (uint32_t i = 0; i < launch->problem_count; i++)
        seen.all_aligned = seen.all_aligned && is_aligned(launch->problem, &launch->tensors[i]);
    seen.range_count = 0;
    seen.stage = seen.calls = 0;
    seen.zeroed = seen.relays = 0;
    seen.failing_call = -1;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = ((const struct fa_range *)a)->first, y = ((const struct fa_range *)b)->first;
    return (x > y) - (x < y);
}

int recorder_run(const struct fa_kernel *kernel, const struct fa_launch *launch)
{
    uint64_t next = launch->range.first;

    begin(kernel, launch);
    expect(kernel->launch(launch) == FA_OK, "fails");
    expect(seen.stage == 0, "a group is not ended");
    if (!kernel->in_order)
        qsort(seen.ranges, seen.range_count, sizeof seen.ranges[0], compare);
    for (size_t i = 0; i < seen.range_count; i++) {
        expect(seen.ranges[i].first >= next, "runs units again, or too late");
        expect(seen.ranges[i].first == next, "leaves units out, or for later");
        next += seen.ranges[i].count;
    }
    expect(next == launch->range.first + launch->range.count, "does not end where the range does");
    return seen.calls;
}

uint64_t recorder_relays(void)
{
    return seen.relays;
}

int recorder_run_failing(const struct fa_kernel *kernel, const struct fa_launch *launch, int call,
                         cudaError_t failure, enum fa_status *status)
{
    begin(kernel, launch);
    seen.failing_call = call;
    seen.failure = failure;
    *status = kernel->launch(launch);
    return seen.calls;
}
