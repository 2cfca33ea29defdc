/* The host's side of launches: which units each grid runs, with which parameters. The CUDA runtime's
 * cudaLaunchKernel is replaced by a recorder (the Makefile links this with --wrap), so that no
 * device is needed and pointers need not point anywhere. */
#include "kernels/cuda/launch.cuh"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

enum { KERNELS = 6, COUNT_MAX = 150, RANGES_MAX = 4096 };

/* --- The recorder ---------------------------------------------------------------------------- */

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
    expect(count * scores <= seen.kernel->scratch(problem), "a group does not fit the scratch");
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

/* How the blocks of each version find their units: v0's by unit_count, v1's as above, the others'
 * unit is first_unit + blockIdx.x. Returns the number of units past the base-th problem's first
 * that the grid reaches. */
static uint64_t note_units(const struct args *args, uint64_t base, const void *entry,
                           uint64_t blocks)
{
    uint64_t count = blocks;

    if (version() == '1') {
        const uint64_t problems = count_problems(args, blocks);
        for (uint64_t p = 0; p < problems; p++)
            note(base + p, args->first_unit, args->unit_count);
        return (problems - 1) * seen.units + args->first_unit + args->unit_count;
    }
    if (version() == '0') {
        const uint64_t ended = note_group(args, entry, blocks);
        count = args->unit_count;
        if (ended > 0)
            note(base, args->first_unit, ended);
    } else {
        note(base, args->first_unit, blocks);
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
    const uint64_t heads = (uint64_t)launch->problem->batch * launch->problem->heads;
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

/* --- Launches -------------------------------------------------------------------------------- */

/* Those of an H200, and v4 for a small shared memory. */
static const struct fa_kernel *kernel_of(int index)
{
    const struct fa_kernel *kernels[FA_CUDA_KERNELS_MAX];
    const size_t count = fa_cuda_kernels(index == KERNELS - 1 ? 86 : 90, kernels);

    ck_assert_uint_eq(count, KERNELS - 1);
    return kernels[index == KERNELS - 1 ? count - 1 : index];
}

static struct fa_problem problem_of(const uint32_t (&extents)[6], enum fa_mask mask)
{
    struct fa_problem problem;

    memset(&problem, 0, sizeof problem);
    problem.batch = extents[0];
    problem.heads = extents[1];
    problem.kv_heads = extents[2];
    problem.q_len = extents[3];
    problem.kv_len = extents[4];
    problem.head_dim = extents[5];
    problem.dtype = FA_DTYPE_FLOAT32;
    problem.mask = mask;
    problem.scale = fa_default_scale(problem.head_dim);
    fa_set_packed(&problem);
    return problem;
}

/* Each tensor elsewhere; with a shift, those of every third problem are not aligned. */
static void place(struct fa_tensors (&tensors)[COUNT_MAX], int shift)
{
    for (int i = 0; i < COUNT_MAX; i++) {
        char *first = (char *)((uint64_t)(i + 1) << 32) + (i % 3 == 1 ? shift : 0);
        tensors[i] = {first, first + (1 << 20), first + (2 << 20), first + (3 << 20),
                      shift ? NULL : first + (4 << 20)};
    }
}

static void begin(const struct fa_kernel *kernel, const struct fa_launch *launch)
{
    static const struct cuda_function *(*const lists[])(size_t *) = {
        cuda_v0_functions, cuda_v1_functions, cuda_v2_functions,
        cuda_v3_functions, cuda_v4_functions,
    };

    seen.kernel = kernel;
    seen.launch = launch;
    seen.units = kernel->units(launch->problem);
    seen.functions = lists[version() - '0'](&seen.function_count);
    seen.all_aligned = true;
    for (uint32_t i = 0; i < launch->problem_count; i++)
        seen.all_aligned = seen.all_aligned && is_aligned(launch->problem, &launch->tensors[i]);
    seen.range_count = 0;
    seen.stage = seen.calls = 0;
    seen.failing_call = -1;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = ((const struct fa_range *)a)->first, y = ((const struct fa_range *)b)->first;
    return (x > y) - (x < y);
}

/* Launches; each unit of the range must have run once, in order where the kernel says so. */
static void run(const struct fa_kernel *kernel, const struct fa_launch *launch)
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
}

static uint64_t number_below(uint64_t limit)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 16) % limit;
}

/* All units of `count` problems, cut into consecutive ranges: none, of any length, of less than two
 * problems, or the first short and then of whole problems. */
enum cutting { WHOLE, LONG, SHORT, PROBLEMS, CUTTINGS };

static void run_all(const struct fa_kernel *kernel, const struct fa_problem *problem,
                    uint32_t count, const struct fa_tensors *tensors, enum cutting cutting)
{
    const uint64_t units = kernel->units(problem), all = count * units;
    struct fa_launch launch = {.problem = problem, .tensors = tensors, .problem_count = count};

    launch.state = (void *)((uint64_t)1 << 52);
    launch.scratch = (void *)((uint64_t)1 << 50);
    launch.stream = (void *)64;
    while (launch.range.first < all) {
        const uint64_t left = all - launch.range.first;
        uint64_t length = left;
        if (cutting == LONG)
            length = 1 + number_below(left);
        if (cutting == SHORT)
            length = 1 + number_below(2 * units);
        if (cutting == PROBLEMS)
            length = launch.range.first == 0 ? units / 2 + 1 : 3 * units;
        launch.range.count = length < left ? length : left;
        run(kernel, &launch);
        launch.range.first += launch.range.count;
    }
}

static const uint32_t shapes[][6] = {
    {1, 1, 1, 1, 1, 1},        {2, 3, 1, 70, 90, 40},     {1, 2, 2, 200, 300, 64},
    {3, 4, 2, 130, 5000, 128}, {1, 2, 1, 4, 70000, 64},   {2, 2, 1, 3, 0, 64},
    {1, 8, 8, 5, 9000, 256},   {4, 12, 12, 300, 300, 64}, {2, 5, 5, 1000, 100, 128},
    {1, 1, 1, 129, 65, 65},    {40, 16, 4, 1, 4000, 64},
};

START_TEST(every_unit_runs_once)
{
    static const uint32_t counts[] = {1, 2, 5, 64, 65, 150};
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_tensors tensors[COUNT_MAX];
    int number = 0;

    for (const auto &shape : shapes)
        for (const uint32_t count : counts)
            for (int cutting = 0; cutting < CUTTINGS; cutting++) {
                const struct fa_problem problem = problem_of(shape, (enum fa_mask)(number % 3));
                place(tensors, number++ % 2 * 4);
                if (!kernel->refuses(&problem))
                    run_all(kernel, &problem, count, tensors, (enum cutting)cutting);
            }
}
END_TEST

/* More heads than a grid has blocks, and than 32 bits count: of one problem, and of several. */
START_TEST(more_heads_than_a_grid_has_blocks)
{
    static const struct {
        uint32_t extents[6], count;
    } large[] = {
        {{65537, 65536, 1, 1, 1, 1}, 1},    {{65537, 65536, 1, 1, 1, 64}, 1},
        {{65537, 65536, 1, 1, 200, 64}, 2}, {{2048, 65536, 1, 1, 1, 1}, 33},
        {{2048, 65536, 1, 1, 1, 64}, 33},   {{2048, 65536, 1, 2, 200, 128}, 33},
        {{32768, 65536, 1, 1, 1, 64}, 2}, /* a grid's blocks and one more */
    };
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_tensors tensors[COUNT_MAX];

    place(tensors, 0);
    for (const auto &it : large) {
        const struct fa_problem problem = problem_of(it.extents, FA_MASK_NONE);
        struct fa_error error;
        ck_assert_int_eq(fa_problem_check(&problem, &error), FA_OK);
        for (int cutting = 0; cutting < CUTTINGS && !kernel->refuses(&problem); cutting++)
            run_all(kernel, &problem, it.count, tensors, (enum cutting)cutting);
    }
}
END_TEST

START_TEST(an_empty_range_launches_nothing)
{
    static const uint32_t extents[][6] = {
        {2, 2, 2, 100, 100, 64}, {2, 2, 2, 0, 100, 64}, {0, 2, 2, 10, 100, 64}};
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_tensors tensors[COUNT_MAX];

    place(tensors, 0);
    for (const auto &shape : extents) {
        const struct fa_problem problem = problem_of(shape, FA_MASK_NONE);
        struct fa_launch launch = {.problem = &problem, .tensors = tensors, .problem_count = 2};
        ck_assert(kernel->units(&problem) > 0 || &shape != &extents[0]);
        for (uint64_t first = 0; first <= 2; first++) {
            launch.range.first = first * kernel->units(&problem);
            run(kernel, &launch);
            ck_assert_int_eq(seen.calls, 0);
        }
    }
}
END_TEST

/* Whichever grid it is that cannot be launched. */
START_TEST(a_failure_ends_the_launch)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    const struct fa_problem problem = problem_of({2, 2, 1, 70, 90, 64}, FA_MASK_NONE);
    struct fa_tensors tensors[COUNT_MAX];
    struct fa_launch launch = {.problem = &problem, .tensors = tensors};
    int calls;

    place(tensors, 0);
    launch.problem_count = COUNT_MAX;
    launch.range = {1, COUNT_MAX * kernel->units(&problem) - 2};
    run(kernel, &launch);
    calls = seen.calls;
    ck_assert_int_ge(calls, 3);
    for (int i = 0; i < calls; i++) {
        begin(kernel, &launch);
        seen.failing_call = i;
        seen.failure = i % 2 == 0 ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
        ck_assert_int_eq(kernel->launch(&launch), i % 2 == 0 ? FA_RESOURCE_EXHAUSTED : FA_INTERNAL);
        ck_assert_int_eq(seen.calls, i + 1);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("grids");
    TCase *tests = tcase_create("grids");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, every_unit_runs_once, 0, KERNELS);
    tcase_add_loop_test(tests, more_heads_than_a_grid_has_blocks, 0, KERNELS);
    tcase_add_loop_test(tests, an_empty_range_launches_nothing, 0, KERNELS);
    tcase_add_loop_test(tests, a_failure_ends_the_launch, 0, KERNELS);
    return suite;
}
