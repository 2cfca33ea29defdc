#include "tests/helpers/attend.h"

#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct fa_problem attend_problem(uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t q_len,
                                 uint32_t kv_len, uint32_t head_dim, enum fa_mask mask)
{
    struct fa_problem problem = {
        .batch = batch,
        .heads = heads,
        .kv_heads = kv_heads,
        .q_len = q_len,
        .kv_len = kv_len,
        .head_dim = head_dim,
        .dtype = FA_DTYPE_FLOAT32,
        .mask = mask,
        .scale = fa_default_scale(head_dim),
    };
    fa_set_packed(&problem);
    return problem;
}

uint32_t attend_head_dim(int index, uint32_t own)
{
    const uint32_t widths[ATTEND_ALL_HEAD_DIMS] = {own, 64, 128, 200};
    return widths[index];
}

/* A number in (0, 1) that follows from the seed alone (the finaliser of splitmix64). */
static double uniform(uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

static float normal(uint64_t seed)
{
    return (float)(sqrt(-2 * log(uniform(2 * seed))) * cos(2 * M_PI * uniform(2 * seed + 1)));
}

float *attend_at(const void *tensor, struct fa_strides strides, uint32_t batch, uint32_t head,
                 uint32_t row)
{
    return (float *)tensor + (int64_t)batch * strides.batch + (int64_t)head * strides.head +
           (int64_t)row * strides.row;
}

static void fill(void *tensor, struct fa_extents extents, struct fa_strides strides, uint64_t seed,
                 float mean, float spread)
{
    for (uint32_t b = 0; b < extents.batch; b++)
        for (uint32_t h = 0; h < extents.heads; h++)
            for (uint32_t row = 0; row < extents.rows; row++) {
                float *elements = attend_at(tensor, strides, b, h, row);
                for (uint32_t d = 0; d < extents.width; d++)
                    elements[d] = spread == 0 ? mean : mean + spread * normal(seed++);
            }
}

static float *allocate(struct attend *attend, int index, struct fa_extents extents,
                       struct fa_strides strides, size_t shift)
{
    uint64_t span;
    size_t bytes;

    ck_assert(fa_span(extents, strides, &span));
    bytes = ((size_t)span + shift) * sizeof(float);
    attend->bytes[index] = bytes;
    if (bytes > ATTEND_SPARSE_BYTES) {
        attend->memory[index] = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        ck_assert_ptr_ne(attend->memory[index], MAP_FAILED);
    } else {
        ck_assert_int_eq(posix_memalign(&attend->memory[index], 64, bytes ? bytes : 1), 0);
        memset(attend->memory[index], 0xff, bytes); /* gaps hold NaN */
    }
    return (float *)attend->memory[index] + shift;
}

void attend_init(struct attend *attend, const struct fa_problem *problem, struct attend_data data,
                 size_t shift)
{
    const struct fa_extents q = fa_q_extents(problem), kv = fa_kv_extents(problem);
    const uint64_t apart = (uint64_t)1 << 40; /* seeds of different tensors never meet */
    float *first[5];

    *attend = (struct attend){.problem = *problem};
    first[0] = allocate(attend, 0, q, problem->q, shift);
    first[1] = allocate(attend, 1, kv, problem->k, shift);
    first[2] = allocate(attend, 2, kv, problem->v, shift);
    first[3] = allocate(attend, 3, q, problem->o, shift);
    first[4] = allocate(attend, 4, fa_lse_extents(problem), problem->lse, shift);
    fill(first[0], q, problem->q, apart, 0, data.q_spread);
    fill(first[1], kv, problem->k, 2 * apart, 0, 1);
    fill(first[2], kv, problem->v, 3 * apart, data.v_mean, data.v_spread);
    attend->tensors = (struct fa_tensors){first[0], first[1], first[2], first[3], first[4]};
    place_init(attend);
}

void attend_release(struct attend *attend)
{
    place_release(attend);
    for (int i = 0; i < 5; i++) {
        if (attend->bytes[i] > ATTEND_SPARSE_BYTES)
            munmap(attend->memory[i], attend->bytes[i]);
        else
            free(attend->memory[i]);
    }
}

bool attend_covers(const struct fa_kernel *kernel, const struct fa_problem *problem)
{
    const bool covers = place_covers(kernel, problem);
    const char *reason = kernel->refuses(problem);

    ck_assert_msg(covers == !reason, "%s: %s", kernel->name, reason ? reason : "should refuse");
    return covers;
}

void attend_begin(const struct attend *attend)
{
    place_begin(attend, false);
}

static void poison_outputs(const struct attend *attend)
{
    const struct fa_problem *problem = &attend->problem;

    fill(attend->tensors.o, fa_q_extents(problem), problem->o, 0, NAN, 0);
    if (attend->tensors.lse)
        fill(attend->tensors.lse, fa_lse_extents(problem), problem->lse, 0, NAN, 0);
}

void attend_poison(const struct attend *attend)
{
    poison_outputs(attend);
    place_begin(attend, false);
}

void attend_poison_again(const struct attend *attend)
{
    poison_outputs(attend);
    place_begin(attend, true);
}

void attend_run_range(const struct attend *attend, const struct fa_kernel *kernel,
                      struct fa_range range)
{
    ck_assert_int_eq(place_run(&attend, 1, kernel, range), FA_OK);
}

void attend_run_both(const struct attend *const both[2], const struct fa_kernel *kernel,
                     struct fa_range range)
{
    ck_assert_int_eq(place_run(both, 2, kernel, range), FA_OK);
}

void attend_fetch(const struct attend *attend)
{
    place_fetch(attend);
}

void attend_run(const struct attend *attend, const struct fa_kernel *kernel)
{
    attend_poison(attend);
    attend_run_range(attend, kernel, (struct fa_range){0, kernel->units(&attend->problem)});
    attend_fetch(attend);
}

float *attend_outputs(const struct attend *attend, size_t *count)
{
    const struct fa_problem *problem = &attend->problem;
    const size_t rows = (size_t)problem->batch * problem->heads * problem->q_len;
    float *copy, *next;

    *count = rows * (problem->head_dim + 1);
    next = copy = malloc(*count * sizeof *copy + 1);
    ck_assert_ptr_nonnull(copy);
    attend_fetch(attend);
    for (uint32_t b = 0; b < problem->batch; b++)
        for (uint32_t h = 0; h < problem->heads; h++)
            for (uint32_t row = 0; row < problem->q_len; row++) {
                memcpy(next, attend_at(attend->tensors.o, problem->o, b, h, row),
                       problem->head_dim * sizeof *next);
                next += problem->head_dim;
                *next++ = *attend_at(attend->tensors.lse, problem->lse, b, h, row);
            }
    return copy;
}

/* The oracle's rows, as attend_outputs orders them. */
struct oracle {
    double *o;
    double *lse;
};

static struct oracle run_oracle(const struct attend *attend)
{
    const struct fa_problem *problem = &attend->problem;
    const uint64_t rows = (uint64_t)problem->batch * problem->heads * problem->q_len;
    struct oracle oracle = {
        .o = malloc(rows * problem->head_dim * sizeof(double) + 1),
        .lse = malloc(rows * sizeof(double) + 1),
    };

    ck_assert(oracle.o && oracle.lse);
    ck_assert(place_reference(attend, oracle.o, oracle.lse));
    return oracle;
}

static struct fa_deviation compare(const struct attend *attend, const struct oracle *oracle,
                                   uint32_t first, uint32_t count)
{
    const struct fa_problem *problem = &attend->problem;
    struct fa_deviation deviation = {0};

    for (uint32_t b = 0; b < problem->batch; b++)
        for (uint32_t h = 0; h < problem->heads; h++) {
            size_t row = ((size_t)b * problem->heads + h) * problem->q_len + first;
            fa_deviation_add(
                &deviation, attend_at(attend->tensors.o, problem->o, b, h, first), problem->o.row,
                attend_at(attend->tensors.lse, problem->lse, b, h, first), problem->lse.row,
                oracle->o + row * problem->head_dim, oracle->lse + row, count, problem->head_dim);
        }
    return deviation;
}

static void free_oracle(struct oracle *oracle)
{
    free(oracle->o);
    free(oracle->lse);
}

struct fa_deviation attend_deviation(const struct attend *attend, const struct fa_kernel *kernel,
                                     uint32_t first, uint32_t count)
{
    struct oracle oracle = run_oracle(attend);
    struct fa_deviation deviation;

    attend_run(attend, kernel);
    deviation = compare(attend, &oracle, first, count);
    free_oracle(&oracle);
    return deviation;
}

void attend_check(const struct attend *attend)
{
    const struct fa_problem *problem = &attend->problem;
    struct oracle oracle = run_oracle(attend);
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        struct fa_deviation deviation;

        if (!attend_covers(kernels[i], problem) || problem->kv_len > place_keys_max(kernels[i]))
            continue;
        attend_run(attend, kernels[i]);
        deviation = compare(attend, &oracle, 0, problem->q_len);
        ck_assert_msg(deviation.max_row <= 1e-5 && deviation.max_lse <= 1e-6,
                      "%s at (%u,%u/%u,%u,%u,%u) %s, scale %g: row error %g, LSE error %g",
                      kernels[i]->name, problem->batch, problem->heads, problem->kv_heads,
                      problem->q_len, problem->kv_len, problem->head_dim,
                      fa_mask_name(problem->mask), problem->scale, deviation.max_row,
                      deviation.max_lse);
    }
    free_oracle(&oracle);
}

void attend_check_problem(const struct fa_problem *problem, struct attend_data data)
{
    struct attend attend;

    attend_init(&attend, problem, data, 0);
    attend_check(&attend);
    attend_release(&attend);
}
