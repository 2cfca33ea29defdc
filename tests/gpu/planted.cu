/* planted write|race|uninit|sync: a kernel with the fault that one of compute-sanitizer's tools is
 * to find. Ends well in any case, so that the exit status is the tool's. */
#include "tests/helpers/test.h"

#include <cstring>
#include <cuda_runtime_api.h>

namespace
{

constexpr int COUNT = 64;

/* memcheck: one element past the last. */
__global__ void write_past(int *data)
{
    data[threadIdx.x + 1] = 1;
}

/* racecheck: another warp's element, without a barrier in between. */
__global__ void race(int *data)
{
    __shared__ int shared[COUNT];

    shared[threadIdx.x] = data[threadIdx.x];
    data[threadIdx.x] = shared[COUNT - 1 - threadIdx.x];
}

/* initcheck, over memory that nobody wrote. */
__global__ void read_first(int *data)
{
    data[threadIdx.x] += 1;
}

/* synccheck: threads that are not of the part of a warp that they wait for. */
__global__ void part_waits(int *data)
{
    __shared__ int shared[COUNT];

    shared[threadIdx.x] = data[threadIdx.x];
    __syncwarp(0xffff);
    data[threadIdx.x] = shared[threadIdx.x ^ 16];
}

struct fault {
    const char *name;
    void (*kernel)(int *);
    int threads;
    bool initialised;
};

const fault faults[] = {
    {"write", write_past, COUNT, true},
    {"race", race, COUNT, true},
    {"uninit", read_first, COUNT, false},
    {"sync", part_waits, 32, true},
};

/* What CUDA says is of no interest: the tool may stop the kernel. */
void run(const fault &fault)
{
    int *data = nullptr;

    cudaMalloc(&data, COUNT * sizeof *data);
    if (fault.initialised)
        cudaMemset(data, 0, COUNT * sizeof *data);
    fault.kernel<<<1, fault.threads>>>(data);
    cudaDeviceSynchronize();
    cudaFree(data);
}

} // namespace

START_TEST(planted)
{
    for (const fault &fault : faults)
        if (test_argument() && strcmp(fault.name, test_argument()) == 0) {
            run(fault);
            return;
        }
    ck_abort_msg("usage: planted write|race|uninit|sync");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("planted");
    TCase *tests = tcase_create("planted");

    suite_add_tcase(suite, tests);
    tcase_add_test(tests, planted);
    return suite;
}
