/* fault.cu: how fad-faulty (tests/faulty) loses a real device: a kernel writes where nothing is,
 * which ends the process's context with a sticky error. */
#include <cstdint>
#include <cuda_runtime.h>

namespace
{

__global__ void write_nowhere(uintptr_t where)
{
    *reinterpret_cast<volatile int *>(where) = 1;
}

} // namespace

struct fad_range_op;

/* Declared in tests/faulty/faulty.h. On a stream of its own: the range's is not known yet, and all
 * streams of a context fail together, when the fault has been noticed: awaited here, lest the range
 * end before. */
extern "C" void faulty_hurt_cuda(const struct fad_range_op *range);

void faulty_hurt_cuda(const struct fad_range_op *)
{
    cudaStream_t stream = nullptr;

    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    write_nowhere<<<1, 1, 0, stream>>>(sizeof(int));
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    }
    (void)cudaGetLastError();
}
