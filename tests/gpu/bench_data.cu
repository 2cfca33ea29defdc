/* bench_data.cu: tensors for bench, and the oracle's answer for a sample of rows: the first, middle
 * and last ones of the first and the last head. */
#include "tests/gpu/bench_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 6 };
static const uint32_t sample_rows = 4;

struct sample {
    uint64_t first, rows;
    double *o, *lse;
};

static struct fa_tensors device, host;
static size_t q_count, lse_count, head_dim;
static struct sample samples[SAMPLES];

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

static void *allocate_here(size_t bytes)
{
    void *out = malloc(bytes);
    if (!out)
        bench_die("out of memory", "");
    return out;
}

static __device__ uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Normally distributed, each element by its index alone. */
static __global__ void fill_kernel(float *out, uint64_t count, uint64_t seed)
{
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;

    for (; i < count; i += gridDim.x * (uint64_t)blockDim.x) {
        const uint64_t bits = mix((seed << 48) + (i + 1) * 0x9e3779b97f4a7c15u);
        const float u = ((bits >> 40) + 0.5f) * 0x1p-24f;
        const float angle = (bits & 0xffffff) * 0x1p-23f;
        out[i] = sqrtf(-2 * logf(u)) * cospif(angle);
    }
}

static float *input(size_t count, uint64_t seed, const void **copy, cudaStream_t stream)
{
    float *out = (float *)bench_allocate(count * sizeof *out);
    void *here = allocate_here(count * sizeof *out);

    fill_kernel<<<1024, 256, 0, stream>>>(out, count, seed);
    CUDA(cudaGetLastError());
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(here, out, count * sizeof *out, cudaMemcpyDefault));
    *copy = here;
    return out;
}

static void make_samples(const struct fa_problem *problem)
{
    const uint64_t rows = problem->q_len < sample_rows ? problem->q_len : sample_rows;
    const uint64_t last_head = (uint64_t)problem->batch * problem->heads - 1;

    for (int i = 0; i < SAMPLES; i++) {
        struct sample *sample = &samples[i];
        sample->rows = rows;
        sample->first =
            (i % 2) * last_head * problem->q_len + (problem->q_len - rows) * (i / 2) / 2;
        sample->o = (double *)allocate_here(rows * head_dim * sizeof(double));
        sample->lse = (double *)allocate_here(rows * sizeof(double));
        if (!fa_reference(problem, &host, {sample->first, rows}, sample->o, sample->lse))
            bench_die("out of memory", "");
    }
}

struct fa_tensors bench_data_make(struct fa_problem *problem, cudaStream_t stream)
{
    size_t kv_count;

    fa_set_packed(problem);
    head_dim = problem->head_dim;
    lse_count = (size_t)problem->batch * problem->heads * problem->q_len;
    q_count = lse_count * head_dim;
    kv_count = (size_t)problem->batch * problem->kv_heads * problem->kv_len * head_dim;
    device.q = input(q_count, 1, &host.q, stream);
    device.k = input(kv_count, 2, &host.k, stream);
    device.v = input(kv_count, 3, &host.v, stream);
    device.o = bench_allocate(q_count * sizeof(float));
    device.lse = bench_allocate(lse_count * sizeof(float));
    host.o = allocate_here(q_count * sizeof(float));
    host.lse = allocate_here(lse_count * sizeof(float));
    make_samples(problem);
    return device;
}

void bench_data_poison(cudaStream_t stream)
{
    CUDA(cudaMemsetAsync(device.o, 0xff, q_count * sizeof(float), stream));
    CUDA(cudaMemsetAsync(device.lse, 0xff, lse_count * sizeof(float), stream));
}

struct fa_deviation bench_data_deviation(size_t *nans)
{
    struct fa_deviation deviation = {};
    const float *o = (const float *)host.o, *lse = (const float *)host.lse;

    CUDA(cudaMemcpy(host.o, device.o, q_count * sizeof(float), cudaMemcpyDefault));
    CUDA(cudaMemcpy(host.lse, device.lse, lse_count * sizeof(float), cudaMemcpyDefault));
    *nans = 0;
    for (size_t i = 0; i < q_count; i++)
        *nans += isnan(o[i]);
    for (size_t i = 0; i < lse_count; i++)
        *nans += isnan(lse[i]);
    for (const struct sample &sample : samples)
        fa_deviation_add(&deviation, o + sample.first * head_dim, (int64_t)head_dim,
                         lse + sample.first, 1, sample.o, sample.lse, sample.rows,
                         (uint32_t)head_dim);
    return deviation;
}
