/* place_cpu.c: the CPU as the place of the tests. Kernels work on the test's own memory. */
#include "tests/helpers/place.h"

#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

const int place_head_dims = 1;

const struct fa_kernel *const *place_kernels(size_t *count)
{
    return fa_cpu_kernels(count);
}

bool place_covers(const struct fa_kernel *kernel, const struct fa_problem *problem)
{
    (void)kernel;
    (void)problem;
    return true;
}

static bool is_plain(const struct fa_kernel *kernel)
{
    return strcmp(kernel->name, "plain") == 0;
}

/* The plain kernel's error grows with the keys (kernels/README.md has it). */
uint32_t place_keys_max(const struct fa_kernel *kernel)
{
    return is_plain(kernel) ? 32768 : UINT32_MAX;
}

/* Weights are summed as the values are, so that both sums are the same. */
const float place_one_tolerance = 0;

double place_l2_bound(const struct fa_kernel *kernel, uint32_t kv_len)
{
    if (is_plain(kernel))
        return kv_len <= 2048 ? 2e-6 : 2e-5;
    return kv_len <= 2048 ? 5e-7 : 6e-7;
}

/* The state of several kernels is never in use at once. To the byte, for the sanitizers. */
void place_init(struct attend *attend)
{
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        const size_t bytes = 2 * kernels[i]->state(&attend->problem);
        if (attend->state_bytes < bytes)
            attend->state_bytes = bytes;
    }
    if (attend->state_bytes)
        ck_assert_int_eq(posix_memalign(&attend->state, 64, attend->state_bytes), 0);
    place_begin(attend, false);
}

void place_release(struct attend *attend)
{
    free(attend->state);
}

void place_begin(const struct attend *attend, bool same_inputs)
{
    (void)same_inputs;
    if (attend->state_bytes)
        memset(attend->state, 0, attend->state_bytes);
}

enum fa_status place_run(const struct attend *const *problems, uint32_t count,
                         const struct fa_kernel *kernel, struct fa_range range)
{
    const struct fa_problem *problem = &problems[0]->problem;
    const size_t bytes = kernel->scratch(problem, range.count);
    struct fa_tensors tensors[2];
    struct fa_launch launch = {
        .problem = problem,
        .tensors = tensors,
        .problem_count = count,
        .range = range,
        .state = problems[0]->state,
        .stop = problems[0]->stop,
    };
    enum fa_status status;

    ck_assert(count <= 2 && count * kernel->state(problem) <= problems[0]->state_bytes);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = problems[i]->tensors;
    ck_assert_int_eq(posix_memalign(&launch.scratch, 64, bytes ? bytes : 1), 0);
    memset(launch.scratch, 0xff, bytes); /* NaN */
    status = kernel->launch(&launch);
    free(launch.scratch);
    return status;
}

void place_fetch(const struct attend *attend)
{
    (void)attend;
}

bool place_reference(const struct attend *attend, double *o, double *lse)
{
    const struct fa_problem *problem = &attend->problem;
    const uint64_t rows = (uint64_t)problem->batch * problem->heads * problem->q_len;

    return fa_reference(problem, &attend->tensors, (struct fa_range){0, rows}, o, lse);
}
