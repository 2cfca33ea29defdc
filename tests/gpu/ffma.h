/* ffma.h: how fast the device multiplies and adds just now, and how fast it reads its memory: the
 * marks that kernels are held to. */
#ifndef TEST_GPU_FFMA_H
#define TEST_GPU_FFMA_H

#include <cuda_runtime.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one thread saw from the loop's start to its end. */
struct ffma_clock {
    long long cycles; /* of its SM */
    long long nanoseconds;
};

/* Enqueues a loop of independent fused multiply-adds on every SM, about a millisecond of them.
 * *clock, on the device, is set. Returns its FLOP; 0 when a call failed. */
double ffma_launch(struct ffma_clock *clock, cudaStream_t stream);

/* Enqueues a loop that reads `bytes` of the device's memory, zeroes, from end to end: they should
 * be many times its L2 cache. False when a call failed. */
bool read_launch(void *memory, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
