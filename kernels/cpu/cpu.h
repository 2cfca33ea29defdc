/* cpu.h: what the CPU kernels share among themselves and with the version table. */
#ifndef FA_KERNELS_CPU_H
#define FA_KERNELS_CPU_H

#include "kernels/fa_attention.h"

extern const struct fa_kernel fa_cpu_plain;

/* tiled.c, once for each instruction set that the compiler was asked for. */
extern const struct fa_kernel fa_cpu_tiled_base;
extern const struct fa_kernel fa_cpu_tiled_avx2;
extern const struct fa_kernel fa_cpu_tiled_avx512;

/* For the version table: the plain kernel, and the tiled one for the best instruction set that this
 * machine has. Never NULL. */
const struct fa_kernel *fa_cpu_plain_kernel(const struct fa_target *target);
const struct fa_kernel *fa_cpu_tiled_kernel(const struct fa_target *target);

/* A unit: a block of up to block_rows query rows of one head, against all keys. Units run over
 * blocks, then heads, then batches, then the launch's problems. (The tiled kernels cut such a unit
 * into several where keys are many.) */
struct fa_cpu_unit {
    uint32_t first_row;
    uint32_t rows;
    const float *q; /* the first row of the block */
    const float *k; /* the first key of the head that it reads */
    const float *v;
    float *o;
    float *lse; /* NULL: not wanted */
};

uint64_t fa_cpu_unit_count(const struct fa_problem *problem, uint32_t block_rows);
struct fa_cpu_unit fa_cpu_unit_at(const struct fa_launch *launch, uint32_t block_rows,
                                  uint64_t unit);

/* fa_kernel.byte_seconds: of memory that is written for the first time, 2 GB/s. */
#define FA_CPU_BYTE_SECONDS 0.5e-9

/* fa_kernel.read_seconds: what a core reads, about 5 GB/s. */
#define FA_CPU_READ_SECONDS 0.2e-9

/* Whether the launch's result is no longer wanted. Kernels look every millisecond or more often. */
static inline bool fa_cpu_stopped(const struct fa_launch *launch)
{
    return launch->stop && __atomic_load_n(launch->stop, __ATOMIC_RELAXED);
}

/* fa_kernel.state of kernels whose ranges share nothing. */
size_t fa_cpu_no_state(const struct fa_problem *problem);

/* fa_kernel.refuses of kernels that cover everything fa_problem_check passes. */
const char *fa_cpu_refuses_nothing(const struct fa_problem *problem);

#endif
