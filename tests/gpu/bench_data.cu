#include "tests/gpu/bench_data.h"

#include "tests/gpu/data.h"
#include "tests/gpu/oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STRETCH = 4, STRETCHES = 6, ROWS = STRETCH * STRETCHES };

static struct fa_problem problem;
static struct fa_tensors tensors;
static uint64_t rows[ROWS];
static uint64_t row_count;
static double o_reference[ROWS * FA_HEAD_DIM_MAX], lse_reference[ROWS];

void bench_cuda(cudaError_t code, const char *what)
{
    if (code != cudaSuccess)
        bench_die(what, cudaGetErrorString(code));
}

void bench_die(const char *what, const char *detail)
{
    fprintf(stderr, "bench: %s%s%s\n", what, *detail ? ": " : "", detail);
    exit(EXIT_FAILURE);
}

void *bench_allocate(size_t bytes)
{
    void *out = NULL;
    if (bytes > 0)
        CUDA(cudaMalloc(&out, bytes));
    return out;
}

static void *make(struct fa_extents extents, uint64_t seed, float spread, bool unaligned)
{
    const uint64_t elements =
        (uint64_t)extents.batch * extents.heads * extents.rows * extents.width;
    float *tensor = (float *)bench_allocate((elements + unaligned) * sizeof(float));

    tensor += unaligned;
    CUDA(data_fill(tensor, extents, fa_packed_strides(extents), seed << 40, 0, spread));
    return tensor;
}

struct fa_tensors bench_data_make(const struct fa_problem *given, bool unaligned)
{
    const uint64_t last_head = (uint64_t)given->batch * given->heads - 1;
    const uint32_t length = given->q_len, most = STRETCH, stretch = length < most ? length : most;
    const uint32_t firsts[] = {0, (length - stretch) / 2, length - stretch};

    problem = *given;
    tensors.q = make(fa_q_extents(&problem), 1, 1, unaligned);
    tensors.k = make(fa_kv_extents(&problem), 2, 1, unaligned);
    tensors.v = make(fa_kv_extents(&problem), 3, 1, unaligned);
    tensors.o = make(fa_q_extents(&problem), 0, 0, unaligned);
    tensors.lse = make(fa_lse_extents(&problem), 0, 0, unaligned);
    for (int i = 0; i < STRETCHES; i++)
        for (uint32_t row = 0; row < stretch; row++)
            rows[row_count++] = i % 2 * last_head * length + firsts[i / 2] + row;
    CUDA(oracle_rows(&problem, &tensors, rows, row_count, o_reference, lse_reference));
    return tensors;
}

void bench_data_poison(void)
{
    CUDA(data_fill(tensors.o, fa_q_extents(&problem), problem.o, 0, NAN, 0));
    CUDA(data_fill(tensors.lse, fa_lse_extents(&problem), problem.lse, 0, NAN, 0));
}

struct fa_deviation bench_data_deviation(uint64_t *nans)
{
    static float o[ROWS * FA_HEAD_DIM_MAX], lse[ROWS];
    struct fa_deviation deviation = {};

    *nans = 0;
    CUDA(data_nans(tensors.o, fa_q_extents(&problem), problem.o, nans));
    CUDA(data_nans(tensors.lse, fa_lse_extents(&problem), problem.lse, nans));
    CUDA(data_rows(tensors.o, fa_q_extents(&problem), problem.o, rows, row_count, o));
    CUDA(data_rows(tensors.lse, fa_lse_extents(&problem), problem.lse, rows, row_count, lse));
    fa_deviation_add(&deviation, o, problem.head_dim, lse, 1, o_reference, lse_reference, row_count,
                     problem.head_dim);
    return deviation;
}
