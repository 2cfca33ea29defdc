#include "kernels/fa_attention.h"

#include <math.h>

double fa_default_scale(uint32_t head_dim)
{
    return 1.0 / sqrt((double)head_dim);
}

struct fa_extents fa_q_extents(const struct fa_problem *problem)
{
    return (struct fa_extents){problem->batch, problem->heads, problem->q_len, problem->head_dim};
}

struct fa_extents fa_kv_extents(const struct fa_problem *problem)
{
    return (struct fa_extents){problem->batch, problem->kv_heads, problem->kv_len,
                               problem->head_dim};
}

struct fa_extents fa_lse_extents(const struct fa_problem *problem)
{
    return (struct fa_extents){problem->batch, problem->heads, problem->q_len, 1};
}

void fa_set_packed(struct fa_problem *problem)
{
    problem->q = problem->o = fa_packed_strides(fa_q_extents(problem));
    problem->k = problem->v = fa_packed_strides(fa_kv_extents(problem));
    problem->lse = fa_packed_strides(fa_lse_extents(problem));
}

static enum fa_status check_extents(const struct fa_problem *problem, struct fa_error *error)
{
    const struct {
        const char *name;
        uint32_t value;
    } extents[] = {
        {"batch", problem->batch}, {"heads", problem->heads},   {"kv_heads", problem->kv_heads},
        {"q_len", problem->q_len}, {"kv_len", problem->kv_len},
    };

    for (size_t i = 0; i < sizeof extents / sizeof extents[0]; i++)
        if (extents[i].value > INT32_MAX)
            return fa_error_set(error, FA_INVALID_ARGUMENT, extents[i].name,
                                "%u is too large: extents are below 2^31", extents[i].value);
    if (problem->head_dim < 1 || problem->head_dim > FA_HEAD_DIM_MAX)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "head_dim", "%u is not within 1..%u",
                            problem->head_dim, FA_HEAD_DIM_MAX);
    if (problem->heads > 0 && (problem->kv_heads == 0 || problem->heads % problem->kv_heads != 0))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "kv_heads",
                            "%u does not divide the %u query heads", problem->kv_heads,
                            problem->heads);
    return FA_OK;
}

enum fa_status fa_problem_check(const struct fa_problem *problem, struct fa_error *error)
{
    const char *dtype = fa_dtype_name(problem->dtype);
    enum fa_status status = check_extents(problem, error);

    if (status != FA_OK)
        return status;
    if (!dtype)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "dtype", "%d is no known data type",
                            (int)problem->dtype);
    if (problem->dtype != FA_DTYPE_FLOAT32)
        return fa_error_set(error, FA_UNIMPLEMENTED, "dtype",
                            "no kernel takes %s yet: convert to float32", dtype);
    if (!fa_mask_name(problem->mask))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "mask", "%d is no known mask",
                            (int)problem->mask);
    if (!isfinite((float)problem->scale))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "scale", "%g is not a finite float",
                            problem->scale);
    return FA_OK;
}

/* Pairs (row, key) of one head in which the row sees the key; below 2^62. Of a causal mask's rows,
 * `slope` see between 1 and slope keys short of the rest: a triangle beside a rectangle. */
static uint64_t visible_pairs(const struct fa_problem *problem)
{
    const uint64_t rows = problem->q_len, keys = problem->kv_len;
    const uint64_t slope = rows < keys ? rows : keys;

    if (slope == 0)
        return 0;
    switch (problem->mask) {
    case FA_MASK_CAUSAL_TOP_LEFT: /* rows see 1, 2, .. slope keys; those below see all keys */
        return slope * (slope + 1) / 2 + (rows - slope) * keys;
    case FA_MASK_CAUSAL_BOTTOM_RIGHT: /* from the last row up: keys, keys - 1, ..; then none */
        return slope * keys - slope * (slope - 1) / 2;
    case FA_MASK_NONE:
        break;
    }
    return rows * keys;
}

uint64_t fa_problem_flops(const struct fa_problem *problem)
{
    const uint64_t pairs = visible_pairs(problem);
    uint64_t flops = (uint64_t)problem->batch * problem->heads; /* extents are below 2^31 */

    if (pairs == 0)
        return 0;
    if (__builtin_mul_overflow(flops, 4 * (uint64_t)problem->head_dim, &flops) ||
        __builtin_mul_overflow(flops, pairs, &flops))
        return UINT64_MAX;
    return flops;
}

double fa_kernel_seconds(const struct fa_kernel *kernel, const struct fa_problem *problem)
{
    const double outputs = (double)problem->batch * problem->heads * problem->q_len;
    const double bytes = outputs * (problem->head_dim + 1) * sizeof(float);
    const double keys = (double)problem->batch * problem->kv_heads * problem->kv_len;
    const double read = keys * 2 * problem->head_dim * sizeof(float) * kernel->read_seconds;
    const double work = (double)fa_problem_flops(problem) / kernel->rate;

    return (work > read ? work : read) + bytes * kernel->byte_seconds +
           (double)kernel->units(problem) * kernel->unit_seconds;
}
