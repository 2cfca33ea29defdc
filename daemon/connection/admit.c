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
                                "device_uuid names no device of this daemon");
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
static uint64_t scratch_size(const struct fa_choice *choice, const struct fad_request *request,
                             const struct fad_device *device)
{
    uint64_t total;
    if (choice->kernel->units(&request->problem) == 0)
        return 0;
    return __builtin_mul_overflow((uint64_t)choice->kernel->workspace(&request->problem),
                                  device->streams, &total)
               ? UINT64_MAX
               : total;
}

static enum fa_status charge(struct fad_job *job, uint64_t memfd_size, struct fa_error *error)
{
    uint64_t staged =
        scratch_size(&job->choice, &job->request, &job->engine->backend->devices[job->device]);

    if (__builtin_add_overflow(staged, job->payload_size, &staged) ||
        __builtin_add_overflow(staged, job->request.output_size, &staged))
        staged = UINT64_MAX;
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
        (status = fa_choose(request->version, engine->backend->platform, &request->problem,
                            &job->choice, error)) != FA_OK ||
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
