/* admit.c: from a checked request to a job: device, kernel, charge, memory. */
#include "daemon/connection/job.h"

#include "daemon/connection/events.h"
#include "daemon/connection/region.h"
#include "daemon/connection/staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A unit of work estimated to take longer is refused. */
#define UNIT_SECONDS_MAX 0.25

/* Only memory of a device's fixes it: what is mapped here all of them can be given. */
static bool fixes_device(const struct fad_engine *engine, const struct fad_location *at)
{
    return at->place == FAD_IPC ||
           (at->place == FAD_REGION &&
            !(engine->backend->separate && at->region->region.source.kind == FAD_REGION_MEMFD));
}

static enum fa_status find_device(struct fad_engine *engine, const struct fad_request *request,
                                  uint32_t *device, struct fa_error *error)
{
    bool fixed = false;

    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *at = &request->at[t];
        const char *name = fad_tensor_name((enum fad_tensor)t);
        char field[sizeof error->field];
        uint32_t here = 0;

        if (!fixes_device(engine, at))
            continue;
        snprintf(field, sizeof field, "%s.cuda_ipc", name);
        if (at->place == FAD_REGION)
            here = at->region->region.source.device;
        else if (fad_engine_find_ipc_device(engine, at->ipc.device_uuid, field, &here, error) !=
                 FA_OK)
            return error->status;
        if (fixed && here != *device) {
            snprintf(field, sizeof field, "%s.%s", name,
                     at->place == FAD_IPC ? "cuda_ipc.device_uuid" : "region");
            return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                                "lies on another device than an earlier tensor");
        }
        fixed = true;
        *device = here;
    }
    if (!fixed)
        *device = fad_scheduler_least_loaded(&engine->scheduler);
    return FA_OK;
}

enum fa_status fad_job_place(struct fad_engine *engine, const struct fad_request *request,
                             uint32_t *device, struct fa_choice *choice, struct fa_error *error)
{
    enum fa_status status = find_device(engine, request, device, error);

    if (status != FA_OK)
        return status;
    return fa_choose(request->version, &engine->backend->devices[*device].target, &request->problem,
                     choice, error);
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

/* The job's own memory on the device, besides its clients'. Its index; -1: it needs none. */
static int plan_own(struct fad_job *job, uint64_t size, bool uncleared)
{
    struct fad_job_region *region = &job->regions[job->region_count];

    if (size == 0)
        return -1;
    region->job = job;
    region->region.source = (struct fad_region_source){.kind = FAD_REGION_OWNED,
                                                       .device = job->device,
                                                       .fd = -1,
                                                       .size = size,
                                                       .uncleared = uncleared};
    return (int)job->region_count++;
}

static void plan_regions(struct fad_job *job, const struct fad_memfd *memfd)
{
    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *at = &job->request.at[t];
        struct fad_region_source source = {.device = job->device, .fd = -1};

        job->region_of[t] = -1;
        if (at->place == FAD_MEMFD) {
            source.kind = FAD_REGION_MEMFD;
            source.fd = memfd->fd;
            source.fixed = memfd->fixed;
            source.size = memfd->size;
            source.writable = fad_request_writes_memfd(&job->request);
        } else if (at->place == FAD_IPC) {
            source.kind = FAD_REGION_IPC;
            source.kept = true;
            source.buffer_id = at->ipc.buffer_id;
            memcpy(source.handle, at->ipc.handle, sizeof source.handle);
        } else {
            continue;
        }
        add_region(job, t, &source);
    }
}

/* Every stream of the device may work on the job at once, each with a scratch of its own. On a
 * shared device that is the device's memory, of a launch and not of a job: no number of jobs needs
 * more than one a stream. */
static uint64_t scratch_size(const struct fad_job *job)
{
    const struct fad_device *device = &job->engine->backend->devices[job->device];
    const struct fa_kernel *kernel = job->choice.kernel;
    const struct fa_problem *problem = &job->request.problem;
    uint64_t size = kernel->scratch(problem, kernel->units(problem));

    if (device->shared)
        return 0;
    return __builtin_mul_overflow(size, device->streams, &size) ? UINT64_MAX : size;
}

static enum fa_status charge(struct fad_job *job, uint64_t memfd_size, struct fa_error *error)
{
    const bool runs = job->choice.kernel->units(&job->request.problem) > 0;
    const uint64_t state = runs ? job->choice.kernel->state(&job->request.problem) : 0;
    const uint64_t image = fad_staging_size(job);
    uint64_t staged = runs ? scratch_size(job) : 0;

    if (__builtin_add_overflow(staged, state, &staged) ||
        __builtin_add_overflow(staged, image, &staged) ||
        __builtin_add_overflow(staged, job->payload_size, &staged) ||
        __builtin_add_overflow(staged, job->request.output_size, &staged))
        staged = UINT64_MAX;
    job->state_region = plan_own(job, state, false);
    job->image_region = plan_own(job, image, true);
    job->charge.of[FAD_JOBS] = 1;
    job->charge.of[FAD_STAGED] = staged;
    job->charge.of[FAD_MAPPED] = memfd_size;
    return fad_account_charge(job->account, &job->charge, error);
}

/* The kernel writes the outputs and nothing between them, where another client's bytes may lie. */
static void clear_gap(struct fad_job *job)
{
    const struct fad_location *o = &job->request.at[FAD_O], *lse = &job->request.at[FAD_LSE];
    const uint64_t o_end = o->place == FAD_INLINE ? o->span : 0;

    if (lse->place == FAD_INLINE && lse->offset > o_end)
        memset((char *)job->output + o_end, 0, lse->offset - o_end);
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
    if (job->output)
        clear_gap(job);
    return true;
}

/* A unit is what nobody can interrupt to have a turn. */
static enum fa_status check_units(const struct fa_problem *problem, const struct fa_kernel *kernel,
                                  struct fa_error *error)
{
    const uint64_t units = kernel->units(problem);
    const double seconds = fa_kernel_seconds(kernel, problem) / ((double)units + 1e-300);

    if (units == 0 || seconds <= UNIT_SECONDS_MAX)
        return FA_OK;
    return fa_error_set(error, FA_UNIMPLEMENTED, "kv_len",
                        "with so many query rows and keys a piece of the work would take %.0f ms, "
                        "which all others would wait for (at most %.0f); send fewer query rows or "
                        "keys at a time (lse merges their results)",
                        seconds * 1e3, UNIT_SECONDS_MAX * 1e3);
}

enum fa_status fad_job_new(struct fad_job **out, struct fad_engine *engine,
                           struct fad_account *account, const struct fad_request *request,
                           uint32_t device, const struct fa_choice *choice, uint64_t payload_size,
                           const struct fad_memfd *memfd, struct fa_error *error)
{
    struct fad_job *job;

    if (check_units(&request->problem, choice->kernel, error) != FA_OK)
        return error->status;
    job = calloc(1, sizeof *job);
    if (!job)
        return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "", "the system gives no memory");
    job->engine = engine;
    job->account = account;
    job->request = *request;
    job->device = device;
    job->choice = *choice;
    job->payload_size = payload_size;
    if (!fad_staging_plan(job) || !fad_events_plan(job)) {
        fa_error_set(error, FA_RESOURCE_EXHAUSTED, "", "the system gives no memory");
        goto fail;
    }
    if (charge(job, memfd->size, error) != FA_OK)
        goto fail;
    if (!allocate(job)) {
        fad_account_release(account, &job->charge);
        fa_error_set(error, FA_RESOURCE_EXHAUSTED, "",
                     "the system gives no memory for payload and output");
        goto fail;
    }
    plan_regions(job, memfd);
    for (int t = 0; t < FAD_TENSORS; t++)
        if (request->at[t].place == FAD_REGION)
            fad_region_use(request->at[t].region);
    *out = job;
    return FA_OK;
fail:
    free(job->staging);
    free(job->events);
    free(job);
    return error->status;
}
