#include "client/cuda_load.h"

#include <dlfcn.h>
#include <string.h>

static bool lacks(struct fa_cuda_lack *lack, const char *function)
{
    const char *why = dlerror();

    *lack = (struct fa_cuda_lack){function, why ? why : "unknown error"};
    return false;
}

bool fa_cuda_load(void *functions, const struct fa_cuda_symbol *symbols, size_t count,
                  struct fa_cuda_lack *lack)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return lacks(lack, NULL);
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);

        if (!function)
            return lacks(lack, symbols[i].name);
        memcpy((char *)functions + symbols[i].at, &function, sizeof function);
    }
    return true;
}
