/* attend.h: attention problems with data, for the tests of kernels/: memory laid out by any
 * strides, reproducible contents, runs of a kernel over any ranges, and the comparison with the
 * oracle. */
#ifndef TEST_ATTEND_H
#define TEST_ATTEND_H

#include "kernels/fa_attention.h"

/* What the tensors hold: normally distributed elements. */
struct attend_data {
    float q_spread; /* standard deviation of q; k's is 1 */
    float v_mean;
    float v_spread;
};

#define ATTEND_NORMAL ((struct attend_data){.q_spread = 1, .v_mean = 0, .v_spread = 1})

/* Above this many bytes a tensor takes memory only where it has elements. */
#define ATTEND_SPARSE_BYTES ((size_t)1 << 28)

/* A problem with tensors. The contents follow from each element's index alone, so that two layouts
 * of one problem hold equal values. */
struct attend {
    struct fa_problem problem;
    struct fa_tensors tensors; /* const there, but every tensor may be written: see attend_at */
    void *memory[5];           /* q, k, v, o, lse; gaps hold NaN, of sparse ones 0 */
    size_t bytes[5];
    void *mirror[5]; /* the place's copies of memory, if it needs them (place.h) */
    void *state;     /* fa_launch.state, enough for two problems and every kernel of the place */
    size_t state_bytes;
    const bool *stop; /* fa_launch.stop of the ranges to come */
};

/* A packed float problem of the default scale. */
struct fa_problem attend_problem(uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t q_len,
                                 uint32_t kv_len, uint32_t head_dim, enum fa_mask mask);

/* The head_dims that a test tries: one of its own, then those for which fast kernels have code; and
 * for tests of bits and of NaN, a large one: the bounds of other tests are for up to 128. */
enum { ATTEND_HEAD_DIMS = 3, ATTEND_ALL_HEAD_DIMS = 4 };
uint32_t attend_head_dim(int index, uint32_t own);

/* Allocates and fills; every tensor starts shift elements past a 64-byte boundary. */
void attend_init(struct attend *attend, const struct fa_problem *problem, struct attend_data data,
                 size_t shift);
void attend_release(struct attend *attend);

/* An element's address by a tensor's first element and strides. */
float *attend_at(const void *tensor, struct fa_strides strides, uint32_t batch, uint32_t head,
                 uint32_t row);

/* Whether the kernel covers the problem. Fails the test when it covers what it is not to, or the
 * other way round. */
bool attend_covers(const struct fa_kernel *kernel, const struct fa_problem *problem);

/* Begins a run: attend_begin with the tensors as they are, and zeroes in the state that a run's
 * ranges share; attend_poison sets all elements of the outputs to NaN before that. */
void attend_begin(const struct attend *attend);
void attend_poison(const struct attend *attend);

/* attend_poison with q, k and v as they were at the last run's beginning. */
void attend_poison_again(const struct attend *attend);

/* Runs the kernel over one range of the run begun; or over one of both problems in one launch,
 * begun each. The outputs may be read after attend_fetch. */
void attend_run_range(const struct attend *attend, const struct fa_kernel *kernel,
                      struct fa_range range);
void attend_run_both(const struct attend *const both[2], const struct fa_kernel *kernel,
                     struct fa_range range);
void attend_fetch(const struct attend *attend);

/* Poisons, runs the kernel over all units, fetches. */
void attend_run(const struct attend *attend, const struct fa_kernel *kernel);

/* The outputs as packed copies: o then lse, (head_dim + 1) floats a row. To be freed. */
float *attend_outputs(const struct attend *attend, size_t *count);

/* Runs every kernel of the place that covers the problem and holds it against the oracle over all
 * rows: the largest error of a row is within 1e-5, LSE within 1e-6 max(1, |LSE|). A kernel is left
 * out over more keys than place_keys_max. */
void attend_check(const struct attend *attend);

/* The same for a problem that attend_init makes of its arguments. */
void attend_check_problem(const struct fa_problem *problem, struct attend_data data);

/* Runs the kernel and returns its deviation from the oracle in the rows [first, first + count) of
 * each head. */
struct fa_deviation attend_deviation(const struct attend *attend, const struct fa_kernel *kernel,
                                     uint32_t first, uint32_t count);

#endif
