/* admit.c: from a checked request to a job: device, kernel, charge, memory. */
#include "daemon/connection/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum fa_status find_device(const struct fad_backend *backend,
                                  const struct fad_request *request, uint32_t *device,
                                  struct fa_error *error)
{
    const struct fad_location *first = NULL;

    *device = 0;
    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *at = &request->at[t];
        char field[sizeof error->field];

        if (at->place != FAD_IPC)
            continue;
        snprintf(field, sizeof field, "%s.cuda_ipc", fad_tensor_name((enum fad_tensor)t));
        if (!backend->opens_ipc)
            return fa_error_set(error, FA_UNIMPLEMENTED, field,
                                "the %s backend opens no CUDA IPC handles; send the tensor inline "
                                "or in a memfd",
                                backend->ops->name);
        snprintf(field, sizeof field, "%s.cuda_ipc.device_uuid",
                 fad_tensor_name((enum fad_tensor)t));
        if (first) {
            if (memcmp(first->ipc.device_uuid, at->ipc.device_uuid, 16) != 0)
                return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                                    "lies on another device than an earlier tensor");
            continue;
        }
        first = at;
        while (*device < backend->device_count &&
               memcmp(backend->devices[*device].uuid, at->ipc.device_uuid, 16) != 0)
            ++*device;
        if (*device == backend->device_count)
            return fa_error_set(error, FA_NOT_FOUND, field,
                                "it names none of this daemon's devices (fa-cli info lists them)");
    }
    return FA_OK;
}

static void add_region(struct fad_job *job, int tensor, const struct fad_region_source *source)
{
    for (uint32_t i = 0; i < job->region_count; i++) {
        const struct fad_region_source *have = &job->regions[i].region.source;
        if (have->kind == source->kind &&
            (source->kind == FAD_REGION_MEMFD ||
             (have->buffer_id == source->buffer_id &&
              memcmp(have->handle, source->handle, sizeof have->handle) == 0))) {
            job->region_of[tensor] = (int)i;
            return;
        }
    }
    job->regions[job->region_count].job = job;
    job->regions[job->region_count].region.source = *source;
    job->region_of[tensor] = (int)job->region_count++;
}

/* The job's own memory, besides its clients'. */
static void plan_state(struct fad_job *job, uint64_t size)
{
    struct fad_job_region *region = &job->regions[job->region_count];

    job->state_region = size > 0 ? (int)job->region_count++ : -1;
    region->job = job;
    region->region.source = (struct fad_region_source){
        .kind = FAD_REGION_OWNED, .device = job->device, .fd = -1, .size = size};
}

static void plan_regions(struct fad_job *job, int fd, uint64_t memfd_size)
{
    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *at = &job->request.at[t];
        struct fad_region_source source = {.device = job->device, .fd = -1};

        job->region_of[t] = -1;
        if (at->place == FAD_MEMFD) {
            source.kind = FAD_REGION_MEMFD;
            source.fd = fd;
            source.size = memfd_size;
            source.writable = fad_request_writes_memfd(&job->request);
        } else if (at->place == FAD_IPC) {
            source.kind = FAD_REGION_IPC;
            source.buffer_id = at->ipc.buffer_id;
            memcpy(source.handle, at->ipc.handle, sizeof source.handle);
        } else {
            continue;
        }
        add_region(job, t, &source);
    }
}

/* Every stream of the device may work on the job at once, each with a scratch of its own. */
static uint64_t scratch_size(const struct fad_job *job)
{
    const uint32_t streams = job->engine->backend->devices[job->device].streams;
    uint64_t size = job->choice.kernel->scratch(&job->request.problem);
    return __builtin_mul_overflow(size, streams, &size) ? UINT64_MAX : size;
}

static enum fa_status charge(struct fad_job *job, uint64_t memfd_size, struct fa_error *error)
{
    const bool runs = job->choice.kernel->units(&job->request.problem) > 0;
    const uint64_t state = runs ? job->choice.kernel->state(&job->request.problem) : 0;
    uint64_t staged = runs ? scratch_size(job) : 0;

    if (__builtin_add_overflow(staged, state, &staged) ||
        __builtin_add_overflow(staged, job->payload_size, &staged) ||
        __builtin_add_overflow(staged, job->request.output_size, &staged))
        staged = UINT64_MAX;
    plan_state(job, state);
    job->charge.of[FAD_JOBS] = 1;
    job->charge.of[FAD_STAGED] = staged;
    job->charge.of[FAD_MAPPED] = memfd_size;
    return fad_account_charge(job->account, &job->charge, error);
}

static bool allocate(struct fad_job *job)
{
    struct fad_backend *backend = job->engine->backend;

    if (job->payload_size > 0 &&
        !(job->payload = backend->ops->host_alloc(backend, job->payload_size)))
        return false;
    if (job->request.output_size > 0 &&
        !(job->output = backend->ops->host_alloc(backend, job->request.output_size))) {
        if (job->payload)
            backend->ops->host_free(backend, job->payload, job->payload_size);
        return false;
    }
    return true;
}

enum fa_status fad_job_new(struct fad_job **out, struct fad_engine *engine,
                           struct fad_account *account, const struct fad_request *request,
                           uint64_t payload_size, int fd, uint64_t memfd_size,
                           struct fa_error *error)
{
    struct fad_job *job = calloc(1, sizeof *job);
    enum fa_status status;

    if (!job)
        return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "", "the system gives no memory");
    job->engine = engine;
    job->account = account;
    job->request = *request;
    job->payload_size = payload_size;
    if ((status = find_device(engine->backend, request, &job->device, error)) != FA_OK ||
        (status = fa_choose(request->version, &engine->backend->devices[job->device].target,
                            &request->problem, &job->choice, error)) != FA_OK ||
        (status = charge(job, memfd_size, error)) != FA_OK) {
        free(job);
        return status;
    }
    if (!allocate(job)) {
        fad_account_release(account, &job->charge);
        free(job);
        return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "",
                            "the system gives no memory for payload and output");
    }
    plan_regions(job, fd, memfd_size);
    *out = job;
    return FA_OK;
}
