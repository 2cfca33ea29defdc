/* device.h: attention problems whose data exists on the device only: what is too large for the
 * test's memory (attend.h has the others). */
#ifndef TEST_GPU_DEVICE_H
#define TEST_GPU_DEVICE_H

#include "tests/helpers/attend.h"

struct device {
    struct fa_problem problem;
    struct fa_tensors tensors; /* on the device */
    void *memory[5];
};

/* Allocates and fills, by the seed and each element's index, so that layouts do not matter. Every
 * tensor starts shift elements past a 256-byte boundary. */
void device_init(struct device *device, const struct fa_problem *problem, struct attend_data data,
                 uint64_t seed, size_t shift);
void device_release(struct device *device);

/* Sets all elements of the outputs to NaN. */
void device_poison(const struct device *device);

/* Poisons the outputs and runs a kernel over all units. device_run_range poisons nothing and runs a
 * range, of several problems of one shape, with the state (device_state). */
void device_run(const struct device *device, const struct fa_kernel *kernel);
void device_run_range(const struct device *devices, uint32_t count, const struct fa_kernel *kernel,
                      struct fa_range range, void *state);

/* Zeroes for `count` problems; gpu_free it. */
void *device_state(const struct fa_problem *problem, const struct fa_kernel *kernel,
                   uint32_t count);

/* Rows of a problem, counted over (batch, head, row). */
struct device_rows {
    uint64_t *index; /* NULL: the first `count` */
    uint64_t count;
};

/* All rows. */
struct device_rows device_all(const struct fa_problem *problem);

/* Of up to 64 heads, among them the first and the last, up to 64 rows each: the first, the last,
 * and those at the edges of tiles of 64 and 128. Free the index. */
struct device_rows device_sample(const struct fa_problem *problem);

/* The outputs of rows, packed: o, then lse. Free o, which has both. */
struct device_outputs {
    float *o;
    float *lse;
};
struct device_outputs device_outputs(const struct device *device, struct device_rows rows);

/* The oracle's. Free o. */
struct device_reference {
    double *o;
    double *lse;
};
struct device_reference device_reference(const struct device *device, struct device_rows rows);

/* How many elements of the outputs are NaN. */
uint64_t device_nans(const struct device *device);

#endif
