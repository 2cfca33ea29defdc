/* plain.c: attention written down as it is defined, in float, with sums in the order of the keys.
 *
 * One row at a time: its scores into memory, their maximum, their exponentials and the sum of
 * these, then the weighted sum of the values. Nothing is fused, nothing reordered: this is the
 * version that the others are measured against, and the one to read first. */
#include "kernels/cpu/cpu.h"
#include "kernels/mask.h"

#include <float.h>
#include <math.h>

/* Rows of a unit: few, so that a unit of this slow kernel is not much longer than another's. */
#define BLOCK_ROWS 16u

/* Keys between two looks at the stop flag. */
#define STOP_KEYS 1024u

static uint64_t units(const struct fa_problem *problem)
{
    return fa_cpu_unit_count(problem, BLOCK_ROWS);
}

/* One row's scores, then one row of output: the output tensor itself is written once. */
static size_t scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)units;
    return ((size_t)problem->kv_len + problem->head_dim) * sizeof(float);
}

/* The scores q k^T with the sign of the scale, which leaves |scale| for later; returns the largest,
 * -inf without keys. */
static float score_row(const struct fa_launch *launch, const float *q, const float *k,
                       uint32_t keys, float *scores)
{
    const struct fa_problem *problem = launch->problem;
    const float sign = (float)((problem->scale > 0) - (problem->scale < 0));
    float top = -INFINITY;

    for (uint32_t j = 0; j < keys; j++) {
        const float *key = k + (int64_t)j * problem->k.row;
        float dot = 0;
        if (j % STOP_KEYS == 0 && fa_cpu_stopped(launch))
            break;
        for (uint32_t d = 0; d < problem->head_dim; d++)
            dot += q[d] * key[d];
        scores[j] = sign * dot;
        top = fmaxf(top, scores[j]);
    }
    return top;
}

static void run_row(const struct fa_launch *launch, const float *q, const float *k, const float *v,
                    uint32_t keys, float *o, float *lse)
{
    const struct fa_problem *problem = launch->problem;
    /* Not cut to 0, which would make NaN of a score of -inf. */
    const float magnitude = (float)fmax(fabs(problem->scale), FLT_TRUE_MIN);
    float *weights = launch->scratch, *sums = weights + problem->kv_len, total = 0;
    const float top = score_row(launch, q, k, keys, weights);
    const float base = top == -INFINITY ? 0 : top; /* no visible score above -inf: all weights 0 */

    /* The difference before the product: a huge scale then cannot overflow what is about 0. */
    for (uint32_t j = 0; j < keys; j++) {
        if (j % STOP_KEYS == 0 && fa_cpu_stopped(launch))
            return;
        weights[j] = expf((weights[j] - base) * magnitude);
        total += weights[j];
    }
    for (uint32_t d = 0; d < problem->head_dim; d++)
        sums[d] = 0;
    for (uint32_t j = 0; j < keys; j++) {
        const float *value = v + (int64_t)j * problem->v.row;
        if (j % STOP_KEYS == 0 && fa_cpu_stopped(launch))
            return;
        for (uint32_t d = 0; d < problem->head_dim; d++)
            sums[d] += weights[j] * value[d];
    }
    for (uint32_t d = 0; d < problem->head_dim; d++)
        o[d] = total == 0 ? 0 : sums[d] / total;
    if (lse)
        *lse = total == 0 ? -INFINITY : (float)(fabs(problem->scale) * top + log((double)total));
}

static enum fa_status run(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;

    for (uint64_t i = 0; i < launch->range.count; i++) {
        const struct fa_cpu_unit unit = fa_cpu_unit_at(launch, BLOCK_ROWS, launch->range.first + i);
        for (uint32_t row = 0; row < unit.rows; row++) {
            float *lse = unit.lse ? unit.lse + (int64_t)row * problem->lse.row : NULL;
            if (fa_cpu_stopped(launch))
                return FA_OK;
            run_row(launch, unit.q + (int64_t)row * problem->q.row, unit.k, unit.v,
                    mask_visible_keys(problem, unit.first_row + row),
                    unit.o + (int64_t)row * problem->o.row, lse);
        }
    }
    return FA_OK;
}

const struct fa_kernel fa_cpu_plain = {
    .name = "plain",
    .refuses = fa_cpu_refuses_nothing,
    .units = units,
    .state = fa_cpu_no_state,
    .scratch = scratch,
    .launch = run,
    .rate = 5.5e9,          /* of one core at (4,12,2048,64), AMD EPYC (Zen 4), 2026-11-29 */
    .unit_seconds = 0.1e-6, /* as in tiled.c */
    .byte_seconds = FA_CPU_BYTE_SECONDS,
    .read_seconds = FA_CPU_READ_SECONDS,
};
