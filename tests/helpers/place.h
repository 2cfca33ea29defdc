/* place.h: where the kernels under test run. tests/helpers/place_cpu.c is the one of `make check`,
 * tests/gpu/place_cuda.c that of `make check-gpu`: the same tests are linked with either.
 *
 * A problem's tensors in the test's own memory (attend.h) are the master. A place that runs kernels
 * elsewhere holds mirrors of them: place_begin copies all five there, place_fetch the outputs back.
 * Tests may move attend.tensors about in attend.memory, change its strides and set lse to NULL. */
#ifndef TEST_PLACE_H
#define TEST_PLACE_H

#include "tests/helpers/attend.h"

/* --- What runs there ------------------------------------------------------------------------- */

/* Every kernel that can run. *count entries. Static. */
const struct fa_kernel *const *place_kernels(size_t *count);

/* Whether the kernel is to cover the problem; tests leave it out for others. */
bool place_covers(const struct fa_kernel *kernel, const struct fa_problem *problem);

/* How many of the head_dims of attend_head_dim have code of their own there, for tests that take
 * long to go through all of them. */
extern const int place_head_dims;

/* The longest kv_len over which the kernel is held to the bounds of attend_check. */
uint32_t place_keys_max(const struct fa_kernel *kernel);

/* The relative L2 error that the kernel stays within over so many keys of normal data. */
double place_l2_bound(const struct fa_kernel *kernel, uint32_t kv_len);

/* How far from 1 a mean of ones may come out. */
extern const float place_one_tolerance;

/* --- Running --------------------------------------------------------------------------------- */

/* Allocates attend's state and mirrors, and frees them. */
void place_init(struct attend *attend);
void place_release(struct attend *attend);

/* Zeroes the state and makes the mirrors equal to the tensors; of the outputs only, if the inputs
 * are as they were at the last time. */
void place_begin(const struct attend *attend, bool same_inputs);

/* Runs a range of one or two equal problems in one launch, with the first one's state, and waits
 * for it. The scratch is new and holds NaN. For any thread. */
enum fa_status place_run(const struct attend *const *problems, uint32_t count,
                         const struct fa_kernel *kernel, struct fa_range range);

/* Makes o and lse in the test's memory equal to their mirrors. */
void place_fetch(const struct attend *attend);

/* The oracle: as fa_reference, over all rows. */
bool place_reference(const struct attend *attend, double *o, double *lse);

#endif
