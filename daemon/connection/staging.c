#include "daemon/connection/staging.h"

#include "daemon/backend/layout.h"
#include "daemon/connection/events.h"
#include "daemon/connection/region.h"

#include <assert.h>
#include <stdlib.h>

/* A payload is copied in steps of at least so many bytes, while more are to come. */
#define STEP ((uint64_t)1 << 20)

/* Steps under way at once: one is copied while the next waits its turn. */
#define STEPS_MAX 2

#define ALIGN 64u

struct copying {
    struct fad_copy copy;
    struct fad_job *job;
    bool begun; /* a payload's step: under way */
};

struct staged {
    uint64_t offset; /* in the image */
    uint64_t size;   /* bytes there; 0: not staged, or an input in the payload */
    bool packed;     /* its elements alone are there; in host memory they lie as layout says */
    struct fad_layout layout;
    struct copying copying;
};

struct period {
    uint64_t began_ns; /* 0: nothing was copied */
    uint64_t ended_ns;
};

struct fad_staging {
    uint64_t size;       /* of the image */
    uint64_t payload;    /* bytes of the payload in it, from its start */
    uint64_t arrived;    /* of those, received */
    uint64_t payload_to; /* and given to the backend */
    struct copying steps[STEPS_MAX];
    struct staged tensors[FAD_TENSORS];
    struct period in, out;
};

/* --- The plan -------------------------------------------------------------------------------- */

static bool in_host_memory(const struct fad_location *at)
{
    if (at->span == 0)
        return false;
    return at->place == FAD_INLINE || at->place == FAD_MEMFD ||
           (at->place == FAD_REGION && at->region->region.source.kind == FAD_REGION_MEMFD);
}

static bool needs_image(const struct fad_job *job)
{
    if (!job->engine->backend->separate || job->choice.kernel->units(&job->request.problem) == 0)
        return false;
    for (int t = 0; t < FAD_TENSORS; t++)
        if (in_host_memory(&job->request.at[t]))
            return true;
    return false;
}

/* Bytes at the image's end, behind the next multiple of ALIGN. Their offset. */
static uint64_t append(struct fad_staging *staging, uint64_t bytes)
{
    uint64_t offset;

    if (__builtin_add_overflow(staging->size, ALIGN - 1, &offset) ||
        __builtin_add_overflow(offset / ALIGN * ALIGN, bytes, &staging->size)) {
        staging->size = UINT64_MAX;
        return 0;
    }
    return offset / ALIGN * ALIGN;
}

static void plan_tensor(struct fad_job *job, enum fad_tensor tensor)
{
    struct fad_staging *staging = job->staging;
    struct staged *staged = &staging->tensors[tensor];
    const uint64_t span = job->request.at[tensor].span;
    const uint64_t element = fad_tensor_element(&job->request.problem, tensor);
    const struct fa_extents extents = fad_tensor_extents(&job->request.problem, tensor);
    struct fa_strides *strides = fad_tensor_strides(&job->request.problem, tensor);
    uint64_t elements;

    staged->size = span;
    if (fa_span(extents, fa_packed_strides(extents), &elements) && elements * element < span) {
        staged->size = elements * element;
        staged->packed = true;
        staged->layout = fad_layout_of(extents, *strides, element);
        *strides = fa_packed_strides(extents);
    }
    staged->copying.job = job;
    staged->offset = append(staging, staged->size);
}

bool fad_staging_plan(struct fad_job *job)
{
    struct fad_staging *staging;

    if (!needs_image(job))
        return true;
    staging = job->staging = calloc(1, sizeof *staging);
    if (!staging)
        return false;
    for (int t = 0; t < FAD_O; t++)
        if (job->request.at[t].place == FAD_INLINE && job->request.at[t].span > 0)
            staging->payload = staging->size = job->payload_size;
    for (int i = 0; i < STEPS_MAX; i++)
        staging->steps[i].job = job;
    for (int t = 0; t < FAD_TENSORS; t++)
        if (in_host_memory(&job->request.at[t]) &&
            (job->request.at[t].place != FAD_INLINE || fad_tensor_is_output((enum fad_tensor)t)))
            plan_tensor(job, (enum fad_tensor)t);
    return true;
}

uint64_t fad_staging_size(const struct fad_job *job)
{
    return job->staging ? job->staging->size : 0;
}

/* --- Places ---------------------------------------------------------------------------------- */

/* NULL: it is not open, or there is none. */
static char *image(const struct fad_job *job)
{
    if (job->image_region < 0 || !job->regions[job->image_region].open)
        return NULL;
    return job->regions[job->image_region].region.base;
}

void *fad_staging_address(const struct fad_job *job, enum fad_tensor tensor)
{
    const struct fad_location *at = &job->request.at[tensor];

    if (!job->staging || !in_host_memory(at))
        return NULL;
    if (at->place == FAD_INLINE && !fad_tensor_is_output(tensor)) {
        assert(job->staging->payload_to == job->staging->payload);
        return image(job) + at->offset;
    }
    assert(fad_tensor_is_output(tensor) || job->staging->tensors[tensor].copying.begun);
    return image(job) + job->staging->tensors[tensor].offset;
}

/* Where the tensor lies in host memory; NULL: that is not open yet. */
static char *host_address(const struct fad_job *job, enum fad_tensor tensor)
{
    const struct fad_location *at = &job->request.at[tensor];
    const struct fad_job_region *region;

    if (at->place == FAD_INLINE)
        return (char *)job->output + at->offset;
    if (at->place == FAD_REGION)
        return (char *)at->region->region.base + at->offset;
    region = &job->regions[job->region_of[tensor]];
    return region->open ? (char *)region->region.base + at->offset : NULL;
}

/* --- Copies ---------------------------------------------------------------------------------- */

/* False: the job has failed by it. */
static bool begin_copy(struct copying *copying, void (*done)(struct fad_op *op),
                       struct period *period)
{
    struct fad_job *job = copying->job;
    struct fad_backend *backend = job->engine->backend;
    int status;

    copying->copy.device = job->device;
    copying->copy.op = (struct fad_op){.done = done};
    status = backend->ops->copy(backend, &copying->copy);
    if (status != 0) {
        fad_job_fail(job, status, "", NULL);
        return false;
    }
    copying->begun = true;
    job->calls++;
    if (period->began_ns == 0)
        period->began_ns = uv_hrtime();
    fad_engine_taken(job->engine);
    return true;
}

static struct fad_job *copy_ended(struct copying *copying, struct period *period)
{
    const struct fad_op *op = &copying->copy.op;

    if (op->status != 0)
        fad_job_fail(copying->job, op->status, "", op->text);
    period->ended_ns = uv_hrtime();
    return copying->job;
}

static void on_step_copied(struct fad_op *op)
{
    struct copying *copying = fad_container_of(op, struct copying, copy.op);
    struct fad_job *job = copy_ended(copying, &copying->job->staging->in);

    copying->begun = false;
    fad_staging_advance(job);
    fad_job_call_ended(job);
}

static void on_input_copied(struct fad_op *op)
{
    struct copying *copying = fad_container_of(op, struct copying, copy.op);
    fad_job_call_ended(copy_ended(copying, &copying->job->staging->in));
}

static void on_output_copied(struct fad_op *op)
{
    struct copying *copying = fad_container_of(op, struct copying, copy.op);
    fad_job_call_ended(copy_ended(copying, &copying->job->staging->out));
}

static void advance_payload(struct fad_job *job)
{
    struct fad_staging *staging = job->staging;

    for (int i = 0; i < STEPS_MAX; i++) {
        const uint64_t size = staging->arrived - staging->payload_to;
        struct copying *step = &staging->steps[i];

        if (size == 0 || (size < STEP && staging->arrived < staging->payload))
            return;
        if (step->begun)
            continue;
        step->copy = (struct fad_copy){.to = image(job) + staging->payload_to,
                                       .from = (char *)job->payload + staging->payload_to,
                                       .size = size};
        if (!begin_copy(step, on_step_copied, &staging->in))
            return;
        staging->payload_to += size;
    }
}

/* Clients' own memory is read when nothing more is to happen to it. */
static void advance_inputs(struct fad_job *job)
{
    for (int t = 0; t < FAD_O && fad_job_goes_on(job); t++) {
        struct staged *staged = &job->staging->tensors[t];
        char *from;

        if (staged->size == 0 || staged->copying.begun ||
            !(from = host_address(job, (enum fad_tensor)t)))
            continue;
        staged->copying.copy = (struct fad_copy){.to = image(job) + staged->offset,
                                                 .from = from,
                                                 .size = staged->size,
                                                 .layout = staged->packed ? &staged->layout : NULL,
                                                 .gathers = true};
        begin_copy(&staged->copying, on_input_copied, &job->staging->in);
    }
}

void fad_staging_advance(struct fad_job *job)
{
    if (!job->staging || !fad_job_goes_on(job) || !image(job))
        return;
    advance_payload(job);
    if (job->state == FAD_JOB_PREPARING && fad_events_happened(job))
        advance_inputs(job);
}

void fad_staging_arrived(struct fad_job *job, uint64_t bytes)
{
    if (!job->staging || job->staging->payload == 0)
        return;
    job->staging->arrived = bytes;
    fad_staging_advance(job);
}

bool fad_staging_return(struct fad_job *job)
{
    bool any = false;

    for (int t = FAD_O; t < FAD_TENSORS && job->staging && fad_job_goes_on(job); t++) {
        struct staged *staged = &job->staging->tensors[t];

        if (staged->size == 0)
            continue;
        staged->copying.copy = (struct fad_copy){.to = host_address(job, (enum fad_tensor)t),
                                                 .from = image(job) + staged->offset,
                                                 .size = staged->size,
                                                 .layout = staged->packed ? &staged->layout : NULL};
        any |= begin_copy(&staged->copying, on_output_copied, &job->staging->out);
    }
    return any;
}

/* --- Times ----------------------------------------------------------------------------------- */

static uint64_t since(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

uint64_t fad_staging_ready_ns(const struct fad_job *job)
{
    return job->ready_ns + (job->staging ? since(job->ready_ns, job->staging->in.ended_ns) : 0);
}

uint64_t fad_staging_copying_ns(const struct fad_job *job)
{
    const struct fad_staging *staging = job->staging;
    uint64_t from_ns;

    if (!staging)
        return 0;
    from_ns = staging->in.began_ns > job->ready_ns ? staging->in.began_ns : job->ready_ns;
    return since(from_ns, staging->in.ended_ns) +
           since(staging->out.began_ns, staging->out.ended_ns);
}
