#include "daemon/backend/cuda.h"

#include <errno.h>

static int cuda_probe(const struct fad_backend_config *config, struct fad_completions *completions,
                      struct fad_backend **out, struct fa_error *error)
{
    (void)config;
    (void)completions;
    (void)out;
    fa_error_set(error, FA_UNIMPLEMENTED, "backend", "not there yet");
    return -ENODEV;
}

const struct fad_backend_ops fad_backend_cuda = {.name = "cuda", .probe = cuda_probe};
