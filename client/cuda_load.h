/* cuda_load.h: functions of the CUDA driver, libcuda.so.1, found at run time, so that nothing here
 * needs CUDA to be built or to start. */
#ifndef FA_CUDA_LOAD_H
#define FA_CUDA_LOAD_H

#include <stdbool.h>
#include <stddef.h>

struct fa_cuda_symbol {
    const char *name;
    size_t at; /* of the function's pointer in the caller's struct */
};

/* What is not there: a function, or, NULL, the library; and why, in the loader's words. */
struct fa_cuda_lack {
    const char *function;
    const char *why;
};

/* Sets the pointers. False: *lack says what is missing. The library stays loaded. */
bool fa_cuda_load(void *functions, const struct fa_cuda_symbol *symbols, size_t count,
                  struct fa_cuda_lack *lack);

#endif
