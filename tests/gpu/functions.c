/* functions: lists every __global__ function with the threads and the dynamic shared memory of its
 * blocks, in bytes, for tests/check-budget. Calls no driver, so it runs where there is no GPU. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>

int main(void)
{
    static const struct cuda_function *(*const lists[])(size_t *) = {
        cuda_v0_functions, cuda_v1_functions, cuda_v2_functions,
        cuda_v3_functions, cuda_v4_functions,
    };

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        size_t count;
        const struct cuda_function *functions = lists[i](&count);
        for (size_t j = 0; j < count; j++)
            printf("%s %d %zu\n", functions[j].name, functions[j].threads, functions[j].shared);
    }
    return 0;
}
