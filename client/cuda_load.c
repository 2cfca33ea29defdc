#include "client/cuda_load.h"

#include <dlfcn.h>
#include <string.h>

bool fa_cuda_load(void *functions, const struct fa_cuda_symbol *symbols, size_t count,
                  struct fa_cuda_lack *lack)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        *lack = (struct fa_cuda_lack){NULL, dlerror()};
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);

        if (!function) {
            *lack = (struct fa_cuda_lack){symbols[i].name, dlerror()};
            return false;
        }
        memcpy((char *)functions + symbols[i].at, &function, sizeof function);
    }
    return true;
}
