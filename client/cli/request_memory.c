#include "client/cli/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64u

uint64_t request_available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    uint64_t bytes = UINT64_MAX;
    char line[128];

    while (file && fgets(line, sizeof line, file)) {
        uint64_t kib;

        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            bytes = kib * 1024;
    }
    if (file)
        fclose(file);
    return bytes;
}

static enum cli_exit too_large(struct cli_error *error)
{
    return cli_fail(error, CLI_USAGE,
                    "the tensors are too large to be addressed; take a smaller shape");
}

/* Sets the counts, and the places in shared memory, of which *shared_bytes are needed, in a region
 * and in device memory. */
static enum cli_exit lay_out(struct request_tensors *tensors, const struct request_options *options,
                             uint64_t *shared_bytes, struct cli_error *error)
{
    const struct fa_problem *problem = &tensors->problem;
    struct fa_extents q = fa_q_extents(problem), kv = fa_kv_extents(problem);
    const struct fa_extents extents[REQUEST_TENSORS] = {q, kv, kv, q, fa_lse_extents(problem)};
    const struct fa_strides strides[REQUEST_TENSORS] = {problem->q, problem->k, problem->v,
                                                        problem->o, problem->lse};
    uint64_t total = 0, available = request_available_bytes();
    uint64_t *const ends[] = {[REQUEST_MEMFD] = shared_bytes,
                              [REQUEST_REGION] = &tensors->region_bytes,
                              [REQUEST_IPC] = &tensors->device_bytes};

    *shared_bytes = 0;
    for (size_t i = 0; i < REQUEST_TENSORS; i++) {
        if (i == REQUEST_LSE && !options->wants_lse)
            continue;
        if (!fa_span(extents[i], strides[i], &tensors->count[i]))
            return too_large(error);
        /* Never 0: an empty tensor has a place too. */
        tensors->bytes[i] = (tensors->count[i] * sizeof(float) / ALIGN + 1) * ALIGN;
        if (__builtin_add_overflow(total, tensors->bytes[i], &total) || total > INT64_MAX)
            return too_large(error);
        tensors->way[i] = options->ways.of[i];
        if (tensors->way[i] == REQUEST_INLINE)
            continue;
        tensors->offset[i] = *ends[tensors->way[i]];
        *ends[tensors->way[i]] += tensors->bytes[i];
    }
    if (total > available)
        return cli_fail(error, CLI_FAILED,
                        "the tensors need %" PRIu64 " MiB, %" PRIu64
                        " MiB of memory are available; take a smaller shape",
                        total >> 20, available >> 20);
    return CLI_OK;
}

/* Shared memory, and what lies there; data of the others that is not borrowed. NULL, or the name of
 * what there is no memory for. */
static const char *allocate(struct request_tensors *tensors, uint64_t shared_bytes)
{
    if (shared_bytes > 0 && fa_shared_create(&tensors->shared, shared_bytes) != FA_OK)
        return "shared memory";
    for (size_t i = 0; i < REQUEST_TENSORS; i++) {
        if (tensors->bytes[i] == 0 || tensors->borrowed[i])
            continue;
        tensors->data[i] = tensors->way[i] == REQUEST_MEMFD
                               ? (void *)((char *)tensors->shared.data + tensors->offset[i])
                               : aligned_alloc(ALIGN, tensors->bytes[i]);
        if (!tensors->data[i])
            return request_tensor_names[i];
    }
    return NULL;
}

enum cli_exit request_make_room(struct request_tensors *tensors,
                                const struct request_options *options, struct cli_error *error)
{
    uint64_t shared_bytes;
    const char *lacks;

    if (lay_out(tensors, options, &shared_bytes, error) != CLI_OK)
        return error->code;
    lacks = allocate(tensors, shared_bytes);
    if (lacks)
        return cli_fail(error, CLI_FAILED, "no memory for %s: %s; take a smaller shape", lacks,
                        strerror(errno));
    return CLI_OK;
}

bool request_tensors_clone(struct request_tensors *out, const struct request_tensors *from)
{
    *out = *from;
    out->shared = (struct fa_shared){0};
    for (size_t i = 0; i < REQUEST_TENSORS; i++) {
        out->borrowed[i] = i < REQUEST_O && from->way[i] != REQUEST_MEMFD;
        if (!out->borrowed[i])
            out->data[i] = NULL;
    }
    if (allocate(out, from->shared.size))
        return false;
    for (size_t i = 0; i < REQUEST_O; i++)
        if (!out->borrowed[i])
            memcpy(out->data[i], from->data[i], from->count[i] * sizeof(float));
    return true;
}

uint64_t request_clone_bytes(const struct request_tensors *tensors)
{
    uint64_t bytes = tensors->shared.size;

    for (size_t i = REQUEST_O; i < REQUEST_TENSORS; i++)
        if (tensors->way[i] != REQUEST_MEMFD)
            bytes += tensors->bytes[i];
    return bytes;
}

void request_tensors_release(struct request_tensors *tensors)
{
    for (size_t i = 0; i < REQUEST_TENSORS; i++)
        if (tensors->way[i] != REQUEST_MEMFD && !tensors->borrowed[i])
            free(tensors->data[i]);
    fa_shared_destroy(&tensors->shared);
    *tensors = (struct request_tensors){0};
}

/* --- The pass -------------------------------------------------------------------------------- */

static struct fa_tensor tensor(const struct request_tensors *tensors, enum request_tensor which)
{
    if (tensors->bytes[which] == 0)
        return (struct fa_tensor){0};
    if (tensors->way[which] == REQUEST_REGION)
        return (struct fa_tensor){.region = tensors->region,
                                  .region_offset = tensors->region_offset + tensors->offset[which]};
    if (tensors->way[which] == REQUEST_IPC)
        return (struct fa_tensor){.data = tensors->device + tensors->offset[which],
                                  .cuda = FA_CUDA_IPC};
    return (struct fa_tensor){.data = tensors->data[which],
                              .shared =
                                  tensors->way[which] == REQUEST_MEMFD ? &tensors->shared : NULL};
}

struct fa_forward_args request_args(const struct request_tensors *tensors,
                                    const struct request_options *options)
{
    const struct fa_problem *problem = &tensors->problem;

    return (struct fa_forward_args){.batch = problem->batch,
                                    .heads = problem->heads,
                                    .kv_heads = problem->kv_heads,
                                    .q_len = problem->q_len,
                                    .kv_len = problem->kv_len,
                                    .head_dim = problem->head_dim,
                                    .dtype = problem->dtype,
                                    .mask = problem->mask,
                                    .scale = options->scale_given ? &options->scale : NULL,
                                    .version = options->version,
                                    .priority = options->priority,
                                    .deadline_us = options->deadline_us,
                                    .q = tensor(tensors, REQUEST_Q),
                                    .k = tensor(tensors, REQUEST_K),
                                    .v = tensor(tensors, REQUEST_V),
                                    .o = tensor(tensors, REQUEST_O),
                                    .lse = tensor(tensors, REQUEST_LSE)};
}
