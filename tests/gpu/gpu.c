#include "tests/gpu/gpu.h"

#include "tests/helpers/test.h"

bool gpu_bare;

void gpu_expect(cudaError_t error, const char *call)
{
    /* ck_assert_msg writes to a pipe even when all is well. */
    if (error != cudaSuccess)
        ck_abort_msg("%s: %s", call, cudaGetErrorString(error));
}

void *gpu_alloc(size_t bytes)
{
    const size_t whole = gpu_bare ? bytes : bytes + GPU_PAD;
    void *memory = NULL;

    GPU(cudaMalloc(&memory, whole ? whole : 1));
    if (!gpu_bare)
        GPU(cudaMemset(memory, 0xff, whole));
    return memory;
}

void gpu_free(void *memory)
{
    GPU(cudaFree(memory));
}

enum fa_status gpu_run(const struct fa_kernel *kernel, struct fa_launch launch)
{
    const cudaStream_t stream = cudaStreamPerThread;
    const size_t bytes = kernel->scratch(launch.problem, launch.range.count);
    enum fa_status status;

    launch.stream = stream;
    launch.scratch = NULL;
    if (bytes) {
        GPU(cudaMallocAsync(&launch.scratch, bytes, stream));
        if (!gpu_bare)
            GPU(cudaMemsetAsync(launch.scratch, 0xff, bytes, stream));
    }
    status = kernel->launch(&launch);
    if (bytes)
        GPU(cudaFreeAsync(launch.scratch, stream));
    GPU(cudaStreamSynchronize(stream));
    return status;
}
