/* bench_data.h: what bench runs the kernels on, and whether their results are right. A CUDA call
 * that fails ends the program, with a line that names it. */
#ifndef TEST_GPU_BENCH_DATA_H
#define TEST_GPU_BENCH_DATA_H

#include "kernels/fa_attention.h"

#include <cuda_runtime.h>

#define CUDA(call) bench_cuda(call, #call)
void bench_cuda(cudaError_t code, const char *what);

/* "bench: what: detail", and the program's end. */
void bench_die(const char *what, const char *detail);

/* Memory of the device, NULL for no bytes. cudaFree it, or leave it to the program's end. */
void *bench_allocate(size_t bytes);

/* Tensors of normally distributed elements, the outputs 0, on the device. The strides are
 * packed ones. unaligned: they begin one element beyond a multiple of 16 bytes. Once for each
 * process. */
struct fa_tensors bench_data_make(const struct fa_problem *problem, bool unaligned);

/* Sets the outputs to NaN. */
void bench_data_poison(void);

/* Once the outputs are computed: how far the first, middle and last rows of the first and the last
 * head are from the oracle, and how many elements of all are NaN. */
struct fa_deviation bench_data_deviation(uint64_t *nans);

#endif
