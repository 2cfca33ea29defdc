/* recorder.h: replaces what the CUDA runtime has for launches (the Makefile links what uses this
 * with --wrap) by what notes which units each grid runs and checks its parameters. No device is
 * needed, and a launch's pointers need not point anywhere. */
#ifndef TEST_GPU_RECORDER_H
#define TEST_GPU_RECORDER_H

#include "kernels/cuda/cuda.h"

#include <cuda_runtime.h>

/* Launches, and fails the test unless each unit of the range runs once, in order where the kernel
 * says so, with the right parameters, and nothing is allocated or waited for. Returns the number of
 * grids, and of times that memory was zeroed for one. */
int recorder_run(const struct fa_kernel *kernel, const struct fa_launch *launch);

/* How many units of the last launch two blocks share (relay.cuh). */
uint64_t recorder_relays(void);

/* Launches while the call-th of these, counted from 0, fails. Returns how many were tried;
 * what the kernel says goes to *status. */
int recorder_run_failing(const struct fa_kernel *kernel, const struct fa_launch *launch, int call,
                         cudaError_t failure, enum fa_status *status);

#endif
