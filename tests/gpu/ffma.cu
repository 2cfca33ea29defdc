#include "tests/gpu/ffma.h"

#include <math.h>

/* Eight warps on each quarter of an SM with eight chains each: far more than hide the latency. */
enum { THREADS = 512, BLOCKS = 2, CHAINS = 8, UNROLL = 16, STEPS = 2048 };

static __device__ long long nanoseconds(void)
{
    long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __global__ void __launch_bounds__(THREADS, BLOCKS)
    ffma_kernel(struct ffma_clock *clock, float *never)
{
    const long long time = nanoseconds(), cycle = clock64();
    const float a = 1 - 1e-7f * threadIdx.x, b = 1e-7f * blockIdx.x;
    float x[CHAINS], sum = 0;

    for (int i = 0; i < CHAINS; i++)
        x[i] = i + a;
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int i = 0; i < UNROLL * CHAINS; i++)
            x[i % CHAINS] = fmaf(x[i % CHAINS], a, b);
    }
    for (int i = 0; i < CHAINS; i++)
        sum += x[i];
    if (sum == -1) /* cannot be, which the compiler does not know: it has to compute x */
        *never = sum;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *clock = {clock64() - cycle, nanoseconds() - time};
}

double ffma_launch(struct ffma_clock *clock, cudaStream_t stream)
{
    int device, processors;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    ffma_kernel<<<BLOCKS * processors, THREADS, 0, stream>>>(clock, (float *)clock);
    if (cudaGetLastError() != cudaSuccess)
        return 0;
    return 2.0 * (STEPS * UNROLL * CHAINS) * (THREADS * BLOCKS * processors);
}

/* Each thread has four loads on their way. */
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    read_kernel(const float4 *from, size_t count, float *never)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    float sum = 0;

#pragma unroll 4
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const float4 x = from[i];
        sum += x.x + x.y + x.z + x.w;
    }
    if (sum == -1)
        *never = sum;
}

bool read_launch(void *memory, size_t bytes, cudaStream_t stream)
{
    int device, processors;

    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return false;
    read_kernel<<<2 * BLOCKS * processors, THREADS, 0, stream>>>(
        (const float4 *)memory, bytes / sizeof(float4), (float *)memory);
    return cudaGetLastError() == cudaSuccess;
}
