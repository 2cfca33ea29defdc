/* functions: lists every __global__ function with the threads and the dynamic shared memory of its
 * blocks, in bytes, for tests/check-budget. Calls no driver, so it runs where there is no GPU. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>

int main(void)
{
    for (int i = 0; i < CUDA_LISTS; i++) {
        size_t count;
        const struct cuda_function *functions = cuda_functions(i, &count);
        for (size_t j = 0; j < count; j++)
            printf("%s %d %zu\n", functions[j].name, functions[j].threads, functions[j].shared);
    }
    return 0;
}
