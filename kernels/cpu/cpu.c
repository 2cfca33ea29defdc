/* cpu.c: which CPU kernels this machine can run, and where a unit of work lies. */
#include "kernels/cpu/cpu.h"

/* The kernels that the machine runs, the fastest last. Bits are equal under an equal name only, so
 * the choice depends on the machine alone. */
const struct fa_kernel *const *fa_cpu_kernels(size_t *count)
{
    static const struct fa_kernel *const kernels[] = {
        &fa_cpu_plain,
        &fa_cpu_tiled_base,
#if FA_HAVE_ISA_avx2
        &fa_cpu_tiled_avx2,
#endif
#if FA_HAVE_ISA_avx512
        &fa_cpu_tiled_avx512,
#endif
    };

    *count = 2;
#if FA_HAVE_ISA_avx2
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2"))
        return kernels;
    ++*count;
#endif
#if FA_HAVE_ISA_avx512
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return kernels;
    ++*count;
#endif
    return kernels;
}

const struct fa_kernel *fa_cpu_plain_kernel(const struct fa_target *target)
{
    (void)target;
    return &fa_cpu_plain;
}

const struct fa_kernel *fa_cpu_tiled_kernel(const struct fa_target *target)
{
    size_t count;
    const struct fa_kernel *const *kernels = fa_cpu_kernels(&count);
    (void)target;
    return kernels[count - 1];
}

static uint64_t blocks_of(const struct fa_problem *problem, uint32_t block_rows)
{
    return ((uint64_t)problem->q_len + block_rows - 1) / block_rows;
}

uint64_t fa_cpu_unit_count(const struct fa_problem *problem, uint32_t block_rows)
{
    uint64_t units = (uint64_t)problem->batch * problem->heads; /* extents are below 2^31 */

    if (__builtin_mul_overflow(units, blocks_of(problem, block_rows), &units))
        return UINT64_MAX;
    return units;
}

static int64_t offset_of(struct fa_strides strides, uint64_t batch, uint64_t head, uint64_t row)
{
    return (int64_t)batch * strides.batch + (int64_t)head * strides.head +
           (int64_t)row * strides.row;
}

struct fa_cpu_unit fa_cpu_unit_at(const struct fa_launch *launch, uint32_t block_rows,
                                  uint64_t unit)
{
    const struct fa_problem *problem = launch->problem;
    const uint64_t blocks = blocks_of(problem, block_rows);
    const uint64_t block = unit % blocks;
    const uint64_t head = unit / blocks % problem->heads;
    const uint64_t batch = unit / blocks / problem->heads % problem->batch;
    const struct fa_tensors *tensors =
        &launch->tensors[unit / blocks / problem->heads / problem->batch];
    const uint64_t kv_head = head / (problem->heads / problem->kv_heads);
    const uint64_t row = block * block_rows;
    const uint64_t left = problem->q_len - row;
    float *lse = tensors->lse;

    return (struct fa_cpu_unit){
        .first_row = (uint32_t)row,
        .rows = (uint32_t)(left < block_rows ? left : block_rows),
        .q = (const float *)tensors->q + offset_of(problem->q, batch, head, row),
        .k = (const float *)tensors->k + offset_of(problem->k, batch, kv_head, 0),
        .v = (const float *)tensors->v + offset_of(problem->v, batch, kv_head, 0),
        .o = (float *)tensors->o + offset_of(problem->o, batch, head, row),
        .lse = lse ? lse + offset_of(problem->lse, batch, head, row) : NULL,
    };
}

const char *fa_cpu_refuses_nothing(const struct fa_problem *problem)
{
    (void)problem;
    return NULL;
}

size_t fa_cpu_no_state(const struct fa_problem *problem)
{
    (void)problem;
    return 0;
}
