/* place_cuda.c: the current device as the place of the tests. */
#include "kernels/cuda/cuda.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/oracle.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS_MAX 16

const int place_head_dims = ATTEND_ALL_HEAD_DIMS;

/* Those of the device's architecture, and all that v4 has where its large tiles run. */
static void add_kernels(int arch, const struct fa_kernel **kernels, size_t *count)
{
    const struct fa_target target = {FA_CUDA, arch};
    size_t versions, more;
    const struct fa_version *version = fa_versions(&versions);
    const struct fa_kernel *const *v4 = cuda_v4_kernels(&more), *chosen = NULL;

    for (size_t i = 0; i < versions; i++) {
        const struct fa_kernel *kernel = fa_version_kernel(&version[i], &target);
        if (strcmp(version[i].name, "v4") == 0)
            chosen = kernel;
        else if (kernel)
            kernels[(*count)++] = kernel;
    }
    for (size_t i = 0; i < more; i++)
        if (chosen == v4[0] || chosen == v4[i])
            kernels[(*count)++] = v4[i];
}

/* Called before Check runs a test, too, so that it cannot fail one. */
static void prepare(const struct fa_kernel **kernels, size_t *count)
{
    uint64_t kept = (uint64_t)1 << 28;
    struct fa_error error = {0};
    cudaMemPool_t pool;
    int arch;

    if (fa_cuda_prepare(&arch, &error) != FA_OK) {
        fprintf(stderr, "no device to test on: %s\n", error.text);
        exit(EXIT_FAILURE);
    }
    add_kernels(arch, kernels, count);
    /* gpu_run's scratch is allocated again and again. */
    if (cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess)
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
}

const struct fa_kernel *const *place_kernels(size_t *count)
{
    static const struct fa_kernel *kernels[KERNELS_MAX];
    static size_t filled;

    if (!filled)
        prepare(kernels, &filled);
    *count = filled;
    return kernels;
}

static bool is_version(const struct fa_kernel *kernel, const char *name)
{
    return strstr(kernel->name, name) != NULL;
}

/* Weights are summed among lanes, values one after the other: two orders, each of which rounds in
 * each of its steps. They may come to a tenth of what a row's error may be. */
const float place_one_tolerance = 1e-6f;

/* By what each version says of itself. */
bool place_covers(const struct fa_kernel *kernel, const struct fa_problem *problem)
{
    const uint64_t rows = (uint64_t)problem->q_len * problem->heads; /* of all key/value heads */

    if (is_version(kernel, "v3"))
        return problem->head_dim == 64;
    if (is_version(kernel, "v4-small"))
        return problem->head_dim <= 128 || (rows > 0 && rows <= 8 * (uint64_t)problem->kv_heads);
    return true;
}

uint32_t place_keys_max(const struct fa_kernel *kernel)
{
    (void)kernel;
    return UINT32_MAX;
}

double place_l2_bound(const struct fa_kernel *kernel, uint32_t kv_len)
{
    const bool fast = is_version(kernel, "v3") || is_version(kernel, "v4");

    if (kv_len <= 2048)
        return fast ? 5e-7 : 1e-6;
    return is_version(kernel, "v4") ? 1e-6 : 1e-5;
}

/* --- Mirrors --------------------------------------------------------------------------------- */

static void *moved(const struct attend *attend, int index, const void *pointer)
{
    if (!pointer)
        return NULL;
    return (char *)attend->mirror[index] +
           ((const char *)pointer - (const char *)attend->memory[index]);
}

static struct fa_tensors mirrored(const struct attend *attend)
{
    const struct fa_tensors *tensors = &attend->tensors;

    return (struct fa_tensors){
        .q = moved(attend, 0, tensors->q),
        .k = moved(attend, 1, tensors->k),
        .v = moved(attend, 2, tensors->v),
        .o = moved(attend, 3, tensors->o),
        .lse = moved(attend, 4, tensors->lse),
    };
}

/* Copies a tensor whose memory is small with its gaps, of a sparse one the rows. */
static void copy(const struct attend *attend, int index, enum cudaMemcpyKind kind)
{
    const struct fa_problem *problem = &attend->problem;
    const struct fa_tensors *t = &attend->tensors;
    const void *const tensors[5] = {t->q, t->k, t->v, t->o, t->lse};
    const struct fa_strides strides[5] = {problem->q, problem->k, problem->v, problem->o,
                                          problem->lse};
    const struct fa_extents extents = index == 4                 ? fa_lse_extents(problem)
                                      : index == 1 || index == 2 ? fa_kv_extents(problem)
                                                                 : fa_q_extents(problem);
    const bool up = kind == cudaMemcpyHostToDevice;

    if (attend->bytes[index] <= ATTEND_SPARSE_BYTES) {
        GPU(cudaMemcpy(up ? attend->mirror[index] : attend->memory[index],
                       up ? attend->memory[index] : attend->mirror[index], attend->bytes[index],
                       kind));
        return;
    }
    for (uint32_t b = 0; tensors[index] && b < extents.batch; b++)
        for (uint32_t h = 0; h < extents.heads; h++)
            for (uint32_t row = 0; row < extents.rows; row++) {
                void *here = attend_at(tensors[index], strides[index], b, h, row);
                void *there = moved(attend, index, here);
                GPU(cudaMemcpy(up ? there : here, up ? here : there, extents.width * sizeof(float),
                               kind));
            }
}

void place_init(struct attend *attend)
{
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        if (kernels[i]->refuses(&attend->problem))
            continue;
        bytes = 2 * kernels[i]->state(&attend->problem);
        if (attend->state_bytes < bytes)
            attend->state_bytes = bytes;
    }
    attend->state = gpu_alloc(attend->state_bytes);
    for (int i = 0; i < 5; i++)
        attend->mirror[i] = gpu_alloc(attend->bytes[i]);
    place_begin(attend, false);
}

void place_release(struct attend *attend)
{
    gpu_free(attend->state);
    for (int i = 0; i < 5; i++)
        gpu_free(attend->mirror[i]);
}

void place_begin(const struct attend *attend, bool same_inputs)
{
    GPU(cudaMemset(attend->state, 0, attend->state_bytes));
    for (int i = same_inputs ? 3 : 0; i < 5; i++)
        copy(attend, i, cudaMemcpyHostToDevice);
    GPU(cudaDeviceSynchronize());
}

enum fa_status place_run(const struct attend *const *problems, uint32_t count,
                         const struct fa_kernel *kernel, struct fa_range range)
{
    const struct fa_problem *problem = &problems[0]->problem;
    struct fa_tensors tensors[2];
    struct fa_launch launch = {
        .problem = problem,
        .tensors = tensors,
        .problem_count = count,
        .range = range,
        .state = problems[0]->state,
    };

    ck_assert(count <= 2 && count * kernel->state(problem) <= problems[0]->state_bytes);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = mirrored(problems[i]);
    return gpu_run(kernel, launch);
}

/* A kernel that writes past its output does not leave the 0xff there. */
static void expect_pad(const struct attend *attend, int index)
{
    unsigned char pad[GPU_PAD];
    size_t untouched = 0;

    GPU(cudaMemcpy(pad, (char *)attend->mirror[index] + attend->bytes[index], sizeof pad,
                   cudaMemcpyDeviceToHost));
    while (untouched < sizeof pad && pad[untouched] == 0xff)
        untouched++;
    if (untouched < sizeof pad)
        ck_abort_msg("byte %zu past %s is written", untouched, index == 3 ? "o" : "lse");
}

void place_fetch(const struct attend *attend)
{
    for (int i = 3; i < 5; i++) {
        copy(attend, i, cudaMemcpyDeviceToHost);
        if (!gpu_bare)
            expect_pad(attend, i);
    }
}

bool place_reference(const struct attend *attend, double *o, double *lse)
{
    const struct fa_problem *problem = &attend->problem;
    const struct fa_tensors tensors = mirrored(attend);

    place_begin(attend, false);
    GPU(oracle_rows(problem, &tensors, NULL,
                    (uint64_t)problem->batch * problem->heads * problem->q_len, o, lse));
    return true;
}
