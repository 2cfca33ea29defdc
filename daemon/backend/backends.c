#include "daemon/backend/backends.h"

#include "daemon/backend/cpu.h"
#include "daemon/backend/cuda.h"
#include "daemon/util/log.h"

#include <errno.h>
#include <string.h>

#if FA_HAVE_CUDA
#define CUDA (&fad_backend_cuda)
#else
static int no_cuda_probe(const struct fad_backend_config *config,
                         struct fad_completions *completions, struct fad_backend **out,
                         struct fa_error *error)
{
    (void)config;
    (void)completions;
    (void)out;
    fa_error_set(error, FA_UNIMPLEMENTED, "backend", "this fad was built without CUDA");
    return -ENODEV;
}

static const struct fad_backend_ops no_cuda = {.name = "cuda", .probe = no_cuda_probe};
#define CUDA (&no_cuda)
#endif

static int auto_probe(const struct fad_backend_config *config, struct fad_completions *completions,
                      struct fad_backend **out, struct fa_error *error)
{
    const int r = CUDA->probe(config, completions, out, error);

    if (r != -ENODEV)
        return r;
    fad_log(FAD_LOG_INFO, "no CUDA: %s; serving on the CPU", error->text);
    return fad_backend_cpu.probe(config, completions, out, error);
}

static const struct fad_backend_ops automatic = {.name = "auto", .probe = auto_probe};

const struct fad_backend_ops *fad_backend_named(const char *name)
{
    const struct fad_backend_ops *const backends[] = {&automatic, CUDA, &fad_backend_cpu};

    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}
