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

/* Memory of the device, NULL for no bytes. Never freed. */
void *bench_allocate(size_t bytes);

/* Packed tensors of normally distributed elements, the outputs unset, on the device. */
struct fa_tensors bench_data_make(struct fa_problem *problem, cudaStream_t stream);

/* Sets the outputs to NaN. */
void bench_data_poison(cudaStream_t stream);

/* Once the outputs are computed: how far some rows are from the oracle, and how many elements of
 * all are NaN. */
struct fa_deviation bench_data_deviation(size_t *nans);

#endif
