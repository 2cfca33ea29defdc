/* The host's side of launches: which units each grid runs, and with which parameters. */
#include "tests/gpu/recorder.h"
#include "tests/helpers/test.h"

#include <string.h>

enum { KERNELS = 7, COUNT_MAX = 150 };

/* v0 to v3, and all of v4. */
static const struct fa_kernel *kernel_of(int index)
{
    const struct fa_target target = {FA_CUDA, 90};
    size_t count;
    const struct fa_kernel *const *v4 = cuda_v4_kernels(&count);
    const struct fa_version *versions = fa_versions(&count);

    return index < 4 ? fa_version_kernel(&versions[index], &target) : v4[index - 4];
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

static uint64_t number_below(uint64_t limit)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 16) % limit;
}

/* All units of `count` problems, cut into consecutive ranges: none, of any length, of less than two
 * problems, or the first short and then of whole problems. Returns how many of them two blocks
 * share. */
enum cutting { WHOLE, LONG, SHORT, PROBLEMS, CUTTINGS };

static uint64_t run_all(const struct fa_kernel *kernel, const struct fa_problem *problem,
                        uint32_t count, const struct fa_tensors *tensors, enum cutting cutting)
{
    const uint64_t units = kernel->units(problem), all = count * units;
    uint64_t relays = 0;
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
        recorder_run(kernel, &launch);
        relays += recorder_relays();
        launch.range.first += launch.range.count;
    }
    return relays;
}

static const uint32_t shapes[][6] = {
    {1, 1, 1, 1, 1, 1},        {2, 3, 1, 70, 90, 40},     {1, 2, 2, 200, 300, 64},
    {3, 4, 2, 130, 5000, 128}, {1, 2, 1, 4, 70000, 64},   {2, 2, 1, 3, 0, 64},
    {1, 8, 8, 5, 9000, 256},   {4, 12, 12, 300, 300, 64}, {2, 5, 5, 1000, 100, 128},
    {1, 1, 1, 129, 65, 65},    {40, 16, 4, 1, 4000, 64},  {3, 16, 2, 1, 300, 40},
    {1, 6, 3, 4, 40000, 200},
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
        {{65537, 65536, 1, 1, 1, 1}, 1},        {{65537, 65536, 1, 1, 1, 64}, 1},
        {{65537, 65536, 1, 1, 200, 64}, 2},     {{2048, 65536, 1, 1, 1, 1}, 33},
        {{2048, 65536, 1, 1, 1, 64}, 33},       {{2048, 65536, 1, 2, 200, 128}, 33},
        {{32768, 65536, 1, 1, 1, 64}, 2}, /* a grid's blocks and one more */
        {{65537, 65536, 65536, 1, 300, 80}, 2},
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
            ck_assert_int_eq(recorder_run(kernel, &launch), 0);
        }
    }
}
END_TEST

static void expect_failures(const struct fa_kernel *kernel, const struct fa_launch *launch,
                            int calls)
{
    for (int i = 0; i < calls; i++) {
        const bool memory = i % 2 == 0;
        const cudaError_t failure = memory ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure;
        enum fa_status status;
        ck_assert_int_eq(recorder_run_failing(kernel, launch, i, failure, &status), i + 1);
        ck_assert_int_eq(status, memory ? FA_RESOURCE_EXHAUSTED : FA_INTERNAL);
    }
}

/* Whichever grid it is that cannot be launched, or whose memory cannot be zeroed. */
START_TEST(a_failure_ends_the_launch)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    const struct fa_problem several = problem_of({2, 2, 1, 70, 90, 64}, FA_MASK_NONE);
    const struct fa_problem shared = problem_of({4, 12, 12, 2048, 2048, 64}, FA_MASK_NONE);
    struct fa_tensors tensors[COUNT_MAX];
    struct fa_launch launch = {.problem = &several, .tensors = tensors};
    int calls;

    place(tensors, 0);
    launch.problem_count = COUNT_MAX;
    launch.range = {1, COUNT_MAX * kernel->units(&several) - 2};
    calls = recorder_run(kernel, &launch);
    ck_assert_int_ge(calls, 3);
    expect_failures(kernel, &launch, calls);
    launch.problem = &shared;
    launch.problem_count = 1;
    launch.range = {0, kernel->units(&shared)};
    calls = recorder_run(kernel, &launch);
    ck_assert_int_ge(calls, recorder_relays() > 0 ? 2 : 1);
    expect_failures(kernel, &launch, calls);
}
END_TEST

/* Which kernel a version's name comes to, and why. */
START_TEST(choice_by_architecture)
{
    static const struct {
        const char *version;
        int arch;
        uint32_t head_dim;
        const char *kernel, *reason;
        uint32_t q_len; /* 0: 1000 */
    } choices[] = {
        {"v0", 80, 5, "cuda-v0", NULL},
        {"v1", 90, 256, "cuda-v1", NULL},
        {"v2", 90, 64, "cuda-v2", NULL},
        {"v3", 90, 64, "cuda-v3", NULL},
        {"v3", 90, 80, "cuda-v2", "head_dim is not 64"},
        {"v4", 90, 64, "cuda-v4", NULL},
        {"v4", 100, 128, "cuda-v4", NULL},
        {"v4", 80, 64, "cuda-v4-small", NULL},
        {"v4", 86, 128, "cuda-v4-small", NULL},
        {"v4", 120, 64, "cuda-v4-small", NULL},
        {"v4", 90, 1, "cuda-v4", NULL},
        {"v4", 90, 256, "cuda-v4", NULL},
        {"v4", 89, 129, "cuda-v2", "head_dim is over 128", 9},
        {"v4", 89, 129, "cuda-v4-small", NULL, 8},
        {"auto", 90, 96, "cuda-v4", NULL},
        {"auto", 86, 200, "cuda-v2", NULL},
    };

    for (const auto &it : choices) {
        const struct fa_problem problem =
            problem_of({1, 1, 1, it.q_len ? it.q_len : 1000, 1000, it.head_dim}, FA_MASK_NONE);
        const struct fa_target target = {FA_CUDA, it.arch};
        struct fa_choice choice;
        struct fa_error error;
        ck_assert_int_eq(fa_choose(it.version, &target, &problem, &choice, &error), FA_OK);
        ck_assert_str_eq(choice.kernel->name, it.kernel);
        ck_assert_pstr_eq(choice.reason, it.reason);
    }
}
END_TEST

/* Units are cut in two where a grid would leave much of an H200 idle at its end, and they are equal
 * and long. */
START_TEST(units_that_two_blocks_share)
{
    enum { BEST = 4, SMALL, LARGE }; /* kernel_of */
    static const struct {
        int kernel;
        uint32_t extents[6];
        enum fa_mask mask;
        uint64_t relays;
    } grids[] = {
        {BEST, {4, 12, 12, 2048, 2048, 64}, FA_MASK_NONE, 264},
        {BEST, {4, 12, 12, 2048, 2048, 64}, FA_MASK_CAUSAL_BOTTOM_RIGHT, 0},
        {BEST, {4, 12, 12, 2048, 2048, 128}, FA_MASK_NONE, 132},
        {BEST, {4, 12, 12, 2048, 448, 64}, FA_MASK_NONE, 0},  /* seven tiles of keys */
        {BEST, {22, 12, 12, 256, 2048, 64}, FA_MASK_NONE, 0}, /* 528 units, which fill two rounds */
        {BEST, {11, 12, 12, 256, 2048, 64}, FA_MASK_NONE, 396}, /* 528 small ones */
        {BEST, {11, 12, 12, 128, 2048, 64}, FA_MASK_NONE, 0},   /* 264 of them */
        {BEST, {1, 16, 16, 16384, 16384, 64}, FA_MASK_NONE, 264},
        {BEST, {65, 1, 1, 9, 9000, 64}, FA_MASK_NONE, 264}, /* five spans of each */
        {SMALL, {4, 12, 12, 2048, 2048, 64}, FA_MASK_NONE, 396},
        {LARGE, {11, 12, 12, 128, 2048, 64}, FA_MASK_NONE, 0}, /* 132 units */
        {LARGE, {12, 12, 12, 256, 2048, 64}, FA_MASK_NONE, 264},
    };
    struct fa_tensors tensors[COUNT_MAX];

    place(tensors, 0);
    for (const auto &it : grids) {
        const struct fa_problem problem = problem_of(it.extents, it.mask);
        const struct fa_kernel *kernel = kernel_of(it.kernel);
        ck_assert_uint_eq(run_all(kernel, &problem, 1, tensors, WHOLE), it.relays);
        ck_assert_uint_eq(run_all(kernel, &problem, 2, tensors, WHOLE), 0);
        ck_assert_uint_eq(run_all(kernel, &problem, 1, tensors, PROBLEMS), 0);
    }
}
END_TEST

/* Memory that nothing has is asked for as what nothing has. */
START_TEST(sizes_saturate)
{
    const uint32_t most = INT32_MAX;
    const struct fa_kernel *kernel = kernel_of(_i);
    const struct fa_problem problem = problem_of({most, most, most, most, most, 64}, FA_MASK_NONE);
    const struct fa_problem rows = problem_of({1, 1, 1, most, most, 64}, FA_MASK_NONE);

    ck_assert_uint_eq(kernel->units(&problem), UINT64_MAX);
    ck_assert(kernel->state(&problem) == SIZE_MAX || kernel->state(&problem) == 0);
    ck_assert_uint_lt(kernel->scratch(&rows, kernel->units(&rows)), (size_t)1 << 42);
    ck_assert_uint_lt(kernel->state(&rows), (size_t)1 << 42);
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
    tcase_add_test(tests, choice_by_architecture);
    tcase_add_test(tests, units_that_two_blocks_share);
    tcase_add_loop_test(tests, sizes_saturate, 0, KERNELS);
    return suite;
}
