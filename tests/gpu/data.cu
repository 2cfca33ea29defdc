#include "tests/gpu/data.h"

namespace
{

constexpr unsigned THREADS = 256;
constexpr unsigned BLOCKS_MAX = 1 << 16;

struct tensor {
    float *first;
    fa_extents extents;
    fa_strides strides;

    __host__ __device__ uint64_t rows() const
    {
        return (uint64_t)extents.batch * extents.heads * extents.rows;
    }

    __device__ float *at(uint64_t row) const
    {
        return first + (int64_t)(row / extents.rows / extents.heads) * strides.batch +
               (int64_t)(row / extents.rows % extents.heads) * strides.head +
               (int64_t)(row % extents.rows) * strides.row;
    }
};

unsigned blocks_for(uint64_t elements)
{
    const uint64_t blocks = (elements + THREADS - 1) / THREADS;
    return blocks < BLOCKS_MAX ? (unsigned)blocks : BLOCKS_MAX;
}

__device__ uint64_t first_index()
{
    return (uint64_t)blockIdx.x * THREADS + threadIdx.x;
}

__device__ uint64_t step()
{
    return (uint64_t)gridDim.x * THREADS;
}

/* In (0, 1): the finaliser of splitmix64. */
__device__ double uniform(uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

__global__ void fill(tensor t, uint64_t seed, float mean, float spread)
{
    const uint64_t elements = t.rows() * t.extents.width;

    for (uint64_t i = first_index(); i < elements; i += step()) {
        float value = mean;
        if (spread != 0) {
            const uint64_t index = 2 * (seed + i);
            value +=
                spread * (float)(sqrt(-2 * log(uniform(index))) * cospi(2 * uniform(index + 1)));
        }
        t.at(i / t.extents.width)[i % t.extents.width] = value;
    }
}

__global__ void gather(tensor t, const uint64_t *rows, uint64_t count, float *out)
{
    for (uint64_t i = first_index(); i < count * t.extents.width; i += step()) {
        const uint64_t row = i / t.extents.width;
        out[i] = t.at(rows ? rows[row] : row)[i % t.extents.width];
    }
}

__global__ void count_nans(tensor t, unsigned long long *count)
{
    const uint64_t elements = t.rows() * t.extents.width;
    unsigned long long nans = 0;

    for (uint64_t i = first_index(); i < elements; i += step())
        nans += isnan(t.at(i / t.extents.width)[i % t.extents.width]);
    if (nans)
        atomicAdd(count, nans);
}

} // namespace

cudaError_t data_fill(void *first, fa_extents extents, fa_strides strides, uint64_t seed,
                      float mean, float spread)
{
    const tensor t = {(float *)first, extents, strides};
    const uint64_t elements = t.rows() * extents.width;

    if (elements)
        fill<<<blocks_for(elements), THREADS>>>(t, seed, mean, spread);
    return cudaDeviceSynchronize();
}

cudaError_t data_rows(const void *first, fa_extents extents, fa_strides strides,
                      const uint64_t *rows, uint64_t count, float *out)
{
    const tensor t = {(float *)first, extents, strides};
    const size_t bytes = count * extents.width * sizeof(float);
    float *packed = nullptr;
    uint64_t *list = nullptr;
    cudaError_t error;

    if (count == 0)
        return cudaSuccess;
    error = cudaMalloc(&packed, bytes);
    if (error == cudaSuccess && rows)
        error = cudaMalloc(&list, count * sizeof *list);
    if (error == cudaSuccess && rows)
        error = cudaMemcpy(list, rows, count * sizeof *list, cudaMemcpyHostToDevice);
    if (error == cudaSuccess) {
        gather<<<blocks_for(count * extents.width), THREADS>>>(t, list, count, packed);
        error = cudaMemcpy(out, packed, bytes, cudaMemcpyDeviceToHost);
    }
    cudaFree(packed);
    cudaFree(list);
    return error;
}

cudaError_t data_nans(const void *first, fa_extents extents, fa_strides strides, uint64_t *count)
{
    const tensor t = {(float *)first, extents, strides};
    unsigned long long nans = 0, *there = nullptr;
    cudaError_t error = cudaMalloc(&there, sizeof *there);

    if (error == cudaSuccess)
        error = cudaMemset(there, 0, sizeof *there);
    if (error == cudaSuccess && t.rows()) {
        count_nans<<<blocks_for(t.rows() * extents.width), THREADS>>>(t, there);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess)
        error = cudaMemcpy(&nans, there, sizeof nans, cudaMemcpyDeviceToHost);
    cudaFree(there);
    *count += nans;
    return error;
}
