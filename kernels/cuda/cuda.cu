/* cuda.cu: the functions of every version, and readying a device for them. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/decode.h"

#include <cuda_runtime.h>

const struct cuda_function *cuda_functions(int list, size_t *count)
{
    static const struct cuda_function *(*const lists[CUDA_LISTS])(size_t *) = {
        cuda_v0_functions, cuda_v1_functions, cuda_v2_functions,
        cuda_v3_functions, cuda_v4_functions, decode_functions,
    };
    return lists[list](count);
}

/* Takes the error from the thread, too, lest a later call report it. */
static enum fa_status failed(struct fa_error *error, cudaError_t code, const char *what)
{
    enum fa_status status = FA_INTERNAL;

    (void)cudaGetLastError();
    if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver ||
        code == cudaErrorStubLibrary || code == cudaErrorNoKernelImageForDevice ||
        code == cudaErrorUnsupportedPtxVersion)
        status = FA_UNIMPLEMENTED; /* no GPU here, no driver new enough, or not built for it */
    else if (code == cudaErrorMemoryAllocation)
        status = FA_RESOURCE_EXHAUSTED;
    return fa_error_set(error, status, "", "%s: %s (%s)", what, cudaGetErrorName(code),
                        cudaGetErrorString(code));
}

/* A function that needs more shared memory than a block can have here is left as it is: its kernel
 * is not chosen for this architecture. */
static enum fa_status prepare_function(const struct cuda_function *function, int shared_limit,
                                       struct fa_error *error)
{
    cudaFuncAttributes attributes;
    /* Functions are loaded lazily; asking for attributes loads one. */
    cudaError_t code = cudaFuncGetAttributes(&attributes, function->entry);

    if (code != cudaSuccess)
        return failed(error, code, function->name);
    if (attributes.sharedSizeBytes + function->shared > (size_t)shared_limit)
        return FA_OK;
    if (function->shared > 0)
        code = cudaFuncSetAttribute(function->entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)function->shared);
    /* One division between cache and shared memory for all: an SM must run dry to change it. */
    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(function->entry, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared);
    return code == cudaSuccess ? FA_OK : failed(error, code, function->name);
}

enum fa_status fa_cuda_prepare(int *arch, struct fa_error *error)
{
    int device, major, minor, shared_limit;
    cudaError_t code = cudaGetDevice(&device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (code == cudaSuccess)
        code =
            cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code != cudaSuccess)
        return failed(error, code, "the CUDA device");
    *arch = 10 * major + minor;
    if (*arch < CUDA_ARCH_MIN)
        return fa_error_set(error, FA_UNIMPLEMENTED, "",
                            "the device has compute capability %d.%d; the kernels need %d.%d",
                            major, minor, CUDA_ARCH_MIN / 10, CUDA_ARCH_MIN % 10);
    for (int i = 0; i < CUDA_LISTS; i++) {
        size_t count;
        const struct cuda_function *list = cuda_functions(i, &count);
        for (size_t j = 0; j < count; j++) {
            enum fa_status status = prepare_function(&list[j], shared_limit, error);
            if (status != FA_OK)
                return status;
        }
    }
    return FA_OK;
}
