/* versions.c: the ladder of versions, and how a request finds its kernel. */
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/fa_attention.h"

#include <string.h>

#if FA_HAVE_CUDA
#define KERNELS(cpu, cuda) [FA_CPU] = fa_cpu_##cpu##_kernel, [FA_CUDA] = fa_cuda_##cuda##_kernel
#else
#define KERNELS(cpu, cuda) [FA_CPU] = fa_cpu_##cpu##_kernel
#endif

/* On the CPU v0 is the plain kernel and every later version the tiled one: what sets those apart
 * from each other is where a GPU keeps its state, which has no counterpart here. */
static const struct fa_version versions[] = {
    {"v0", "Naive", NULL, {KERNELS(plain, v0)}},
    {"v1", "FlashAttention-1", "v0", {KERNELS(tiled, v1)}},
    {"v2", "Simplified FlashAttention-2", "v1", {KERNELS(tiled, v2)}},
    {"v3", "Warp-local FlashAttention-2", "v2", {KERNELS(tiled, v3)}},
    {"v4", "Optimised v3", "v3", {KERNELS(tiled, v4)}},
};

/* What "auto" starts from: the fastest on every platform, at every shape it covers. */
#define AUTO_VERSION "v4"

const struct fa_version *fa_versions(size_t *count)
{
    *count = sizeof versions / sizeof versions[0];
    return versions;
}

static const struct fa_version *find_version(const char *name)
{
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        if (strcmp(versions[i].name, name) == 0)
            return &versions[i];
    return NULL;
}

const struct fa_kernel *fa_version_kernel(const struct fa_version *version,
                                          const struct fa_target *target)
{
    const struct fa_kernel *(*find)(const struct fa_target *) = version->kernel[target->platform];
    return find ? find(target) : NULL;
}

enum fa_status fa_choose(const char *version, const struct fa_target *target,
                         const struct fa_problem *problem, struct fa_choice *out,
                         struct fa_error *error)
{
    const bool automatic = strcmp(version, "auto") == 0;
    const char *name = automatic ? AUTO_VERSION : version;
    const struct fa_version *row = find_version(name);
    const char *reason = NULL; /* why the version asked for does not run: the first refusal */

    if (!row)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "version",
                            "\"%s\" is neither \"auto\" nor one of v0 to v4", version);
    while (row) {
        const struct fa_kernel *kernel = fa_version_kernel(row, target);
        const char *refusal = kernel ? kernel->refuses(problem) : "there is no kernel for it here";
        if (!refusal) {
            *out = (struct fa_choice){
                .version = row, .kernel = kernel, .reason = automatic ? NULL : reason};
            return FA_OK;
        }
        if (!reason)
            reason = refusal;
        row = row->fallback ? find_version(row->fallback) : NULL;
    }
    return fa_error_set(error, FA_UNIMPLEMENTED, "version",
                        "neither %s nor a version it falls back to runs this: %s", name, reason);
}
