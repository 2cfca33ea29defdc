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

/* A problem with tensors. The contents follow from each element's index alone, so that two layouts
 * of one problem hold equal values. */
struct attend {
    struct fa_problem problem;
    struct fa_tensors tensors; /* const there, but every tensor may be written: see attend_at */
    void *memory[5];
    size_t bytes[5]; /* of a mapping; 0: the memory is malloc's */
    void *state;     /* fa_launch.state, enough for every CPU kernel of this machine */
    size_t state_bytes;
    const bool *stop; /* fa_launch.stop of the ranges to come */
};

/* A packed float problem of the default scale. */
struct fa_problem attend_problem(uint32_t batch, uint32_t heads, uint32_t kv_heads, uint32_t q_len,
                                 uint32_t kv_len, uint32_t head_dim, enum fa_mask mask);

/* Allocates and fills; every tensor starts shift elements past a 64-byte boundary. Tensors that
 * span gigabytes take memory only where they have elements. */
void attend_init(struct attend *attend, const struct fa_problem *problem, struct attend_data data,
                 size_t shift);
void attend_release(struct attend *attend);

/* An element's address by a tensor's first element and strides. */
float *attend_at(const void *tensor, struct fa_strides strides, uint32_t batch, uint32_t head,
                 uint32_t row);

/* Begins a run: attend_clear_state sets the state that a run's ranges share to zeroes,
 * attend_poison all elements of the outputs to NaN as well. */
void attend_clear_state(const struct attend *attend);
void attend_poison(const struct attend *attend);

/* Runs the kernel over one range of the run begun, or poisons and runs it over all units. The
 * scratch is new and holds NaN. */
void attend_run_range(const struct attend *attend, const struct fa_kernel *kernel,
                      struct fa_range range);
void attend_run(const struct attend *attend, const struct fa_kernel *kernel);

/* The outputs as packed copies: o then lse, (head_dim + 1) floats a row. To be freed. */
float *attend_outputs(const struct attend *attend, size_t *count);

/* Runs every kernel of this machine and holds it against the oracle over all rows: the largest
 * error of a row is within 1e-5, LSE within 1e-6 max(1, |LSE|). The plain kernel is left out over
 * more than 32768 keys. */
void attend_check(const struct attend *attend);

/* The same for a problem that attend_init makes of its arguments. */
void attend_check_problem(const struct fa_problem *problem, struct attend_data data);

/* Runs the kernel and returns its deviation from the oracle in the rows [first, first + count) of
 * each head. */
struct fa_deviation attend_deviation(const struct attend *attend, const struct fa_kernel *kernel,
                                     uint32_t first, uint32_t count);

#endif
