#include "daemon/connection/job.h"

#include "daemon/connection/discard.h"
#include "daemon/connection/events.h"
#include "daemon/connection/region.h"
#include "daemon/connection/staging.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_state(struct fad_job *job, enum fad_job_state next)
{
#define EDGE(from, to) [FAD_JOB_##from][FAD_JOB_##to] = true
    static const bool allowed[FAD_JOB_DONE + 1][FAD_JOB_DONE + 1] = {
        EDGE(RECEIVING, PREPARING), EDGE(RECEIVING, CLOSING), EDGE(PREPARING, RUNNING),
        EDGE(PREPARING, CLOSING),   EDGE(RUNNING, RETURNING), EDGE(RUNNING, CLOSING),
        EDGE(RETURNING, CLOSING),   EDGE(CLOSING, DONE),
    };
#undef EDGE
    assert(allowed[job->state][next]);
    job->state = next;
}

void fad_job_fail(struct fad_job *job, int status, const char *field, const char *text)
{
    if (status < 0) {
        fad_engine_fatal(job->engine, status);
        status = FA_DEVICE_LOST;
    }
    fad_events_give_up(job);
    if (job->error.status == FA_OK)
        fa_error_set(&job->error, (enum fa_status)status, field, "%s",
                     text ? text : fa_status_text((enum fa_status)status));
}

/* --- The end --------------------------------------------------------------------------------- */

/* Its connection's regions are let go last: the reply to a release comes after this job's own. */
static void all_closed(struct fad_job *job)
{
    set_state(job, FAD_JOB_DONE);
    job->done_ns = uv_hrtime();
    for (int t = 0; t < FAD_TENSORS; t++)
        if (job->request.at[t].place == FAD_REGION)
            fad_region_unuse(job->request.at[t].region);
    if (job->abandoned != FA_OK)
        fa_error_set(&job->error, job->abandoned, "", "%s", fa_status_text(job->abandoned));
    job->done(job);
}

static void on_closed(struct fad_op *op)
{
    fad_job_call_ended(fad_container_of(op, struct fad_job_region, op)->job);
}

/* Everything but the output is given back before anyone hears of the end: whoever has a reply may
 * use all of its limits again. */
static void finish(struct fad_job *job)
{
    struct fad_backend *backend = job->engine->backend;

    assert(job->calls == 0);
    set_state(job, FAD_JOB_CLOSING);
    if (job->payload)
        backend->ops->host_free(backend, job->payload, job->payload_size);
    job->payload = NULL;
    job->calls = 1; /* this function's own, so that no call ends the phase early */
    for (uint32_t i = 0; i < job->region_count; i++) {
        struct fad_job_region *region = &job->regions[i];
        int status;

        if (!region->given && region->region.source.fd >= 0)
            fad_discard_fd(job->pending.connection, region->region.source.fd);
        if (!region->open)
            continue;
        region->op.done = on_closed;
        status = backend->ops->region_close(backend, &region->region, &region->op);
        if (status == 0)
            job->calls++;
        else if (status < 0)
            fad_engine_fatal(job->engine, status);
    }
    fad_engine_taken(job->engine);
    fad_job_call_ended(job);
}

void *fad_job_take_output(struct fad_job *job, struct fad_amounts *taken)
{
    void *output = job->output;

    assert(job->state == FAD_JOB_DONE);
    *taken = (struct fad_amounts){{[FAD_JOBS] = 1}};
    if (output)
        taken->of[FAD_STAGED] = job->request.output_size;
    for (int r = 0; r < FAD_RESOURCES; r++)
        job->charge.of[r] -= taken->of[r];
    job->output = NULL;
    return output;
}

void fad_job_free(struct fad_job *job)
{
    struct fad_backend *backend = job->engine->backend;

    assert(job->state == FAD_JOB_DONE);
    if (job->output)
        backend->ops->host_free(backend, job->output, job->request.output_size);
    fad_account_release(job->account, &job->charge);
    free(job->staging);
    free(job->events);
    free(job);
}

/* --- Running --------------------------------------------------------------------------------- */

static void on_work_finished(struct fad_work *work)
{
    struct fad_job *job = fad_container_of(work, struct fad_job, work);

    if (work->status != 0)
        fad_job_fail(job, work->status, "", work->text);
    if (fad_job_goes_on(job) && fad_staging_return(job))
        set_state(job, FAD_JOB_RETURNING);
    else
        finish(job);
}

/* The scheduler watches a deadline over the ranges only. */
static void returned(struct fad_job *job)
{
    const uint64_t deadline_ns = fad_job_deadline(job);

    if (deadline_ns != 0 && deadline_ns <= uv_hrtime())
        fad_job_fail(job, FA_DEADLINE_EXCEEDED, "", NULL);
    finish(job);
}

/* The tensor's first element; NULL when it has none. An inline output's buffer is the reply's
 * payload. */
static void *address(const struct fad_job *job, enum fad_tensor tensor)
{
    const struct fad_location *at = &job->request.at[tensor];
    char *base = fad_staging_address(job, tensor);

    if (base)
        return base;
    if (at->place == FAD_NOWHERE || at->span == 0)
        return NULL;
    if (at->place == FAD_REGION)
        base = at->region->region.base;
    else if (at->place != FAD_INLINE)
        base = job->regions[job->region_of[tensor]].region.base;
    else if (tensor == FAD_O || tensor == FAD_LSE)
        base = job->output;
    else
        base = job->payload;
    return base + at->offset;
}

uint64_t fad_job_deadline(const struct fad_job *job)
{
    uint64_t ns = job->request.deadline_us;

    if (ns == 0)
        return 0;
    if (__builtin_mul_overflow(ns, 1000, &ns) || __builtin_add_overflow(ns, job->ready_ns, &ns))
        return UINT64_MAX;
    return ns;
}

static void run(struct fad_job *job)
{
    set_state(job, FAD_JOB_RUNNING);
    job->work = (struct fad_work){
        .flow = job->flow,
        .priority = job->request.priority,
        .deadline_ns = fad_job_deadline(job),
        .device = job->device,
        .kernel = job->choice.kernel,
        .problem = &job->request.problem,
        .tensors = {.q = address(job, FAD_Q),
                    .k = address(job, FAD_K),
                    .v = address(job, FAD_V),
                    .o = address(job, FAD_O),
                    .lse = address(job, FAD_LSE)},
        .state = job->state_region < 0 ? NULL : job->regions[job->state_region].region.base,
        .finished = on_work_finished};
    fad_scheduler_submit(&job->engine->scheduler, &job->work);
    fad_engine_dispatch(job->engine);
}

/* Only now is the real size of an IPC allocation known. */
static void check_ipc_bounds(struct fad_job *job)
{
    for (int t = 0; t < FAD_TENSORS && job->error.status == FA_OK; t++) {
        const struct fad_location *at = &job->request.at[t];
        char field[sizeof job->error.field];

        if (at->place != FAD_IPC ||
            fad_inside(at->offset, at->span, job->regions[job->region_of[t]].region.size))
            continue;
        snprintf(field, sizeof field, "%s.cuda_ipc.offset", fad_tensor_name((enum fad_tensor)t));
        fad_job_fail(job, FA_INVALID_ARGUMENT, field,
                     "offset and span reach past the allocation's real end");
    }
}

static void prepared(struct fad_job *job)
{
    if (fad_job_goes_on(job))
        check_ipc_bounds(job);
    if (fad_job_goes_on(job))
        run(job);
    else
        finish(job);
}

void fad_job_call_ended(struct fad_job *job)
{
    assert(job->calls > 0);
    if (--job->calls > 0)
        return;
    switch (job->state) {
    case FAD_JOB_RECEIVING: /* and goes on so */
        break;
    case FAD_JOB_PREPARING:
        prepared(job);
        break;
    case FAD_JOB_RETURNING:
        returned(job);
        break;
    case FAD_JOB_CLOSING:
        all_closed(job);
        break;
    case FAD_JOB_RUNNING:
    case FAD_JOB_DONE:
        assert(!"no call is under way in this state");
    }
}

/* --- Preparing ------------------------------------------------------------------------------- */

static void open_failed(struct fad_job_region *region, int status, const char *text)
{
    struct fad_job *job = region->job;
    char field[sizeof job->error.field] = "";

    for (int t = FAD_TENSORS - 1; t >= 0; t--)
        if (job->region_of[t] >= 0 && &job->regions[job->region_of[t]] == region)
            snprintf(field, sizeof field, "%s.%s", fad_tensor_name((enum fad_tensor)t),
                     region->region.source.kind == FAD_REGION_IPC ? "cuda_ipc" : "memfd");
    fad_job_fail(job, status, field, text ? text : "the memory could not be opened");
}

static void on_opened(struct fad_op *op)
{
    struct fad_job_region *region = fad_container_of(op, struct fad_job_region, op);
    struct fad_job *job = region->job;

    if (op->status == 0) {
        region->open = true;
    } else {
        open_failed(region, op->status, op->text);
    }
    fad_staging_advance(job);
    fad_job_call_ended(job);
}

static void open_region(struct fad_job_region *region)
{
    struct fad_job *job = region->job;
    struct fad_backend *backend = job->engine->backend;
    int status;

    region->op.done = on_opened;
    status = backend->ops->region_open(backend, &region->region, &region->op);
    if (status == 0) {
        region->given = true;
        job->calls++;
        fad_engine_taken(job->engine);
    } else {
        open_failed(region, status, NULL);
    }
}

void fad_job_begin(struct fad_job *job)
{
    if (job->image_region >= 0)
        open_region(&job->regions[job->image_region]);
}

void fad_job_progress(struct fad_job *job, uint64_t bytes)
{
    fad_staging_arrived(job, bytes);
}

void fad_job_start(struct fad_job *job, struct fad_flow *flow)
{
    job->flow = flow;
    job->ready_ns = uv_hrtime();
    if (job->choice.kernel->units(&job->request.problem) == 0) {
        finish(job);
        return;
    }
    set_state(job, FAD_JOB_PREPARING);
    job->calls++; /* this function's own, so that no call ends the phase early */
    for (uint32_t i = 0; i < job->region_count; i++)
        if ((int)i != job->image_region && fad_job_goes_on(job))
            open_region(&job->regions[i]);
    fad_events_begin(job);
    fad_staging_arrived(job, job->payload_size);
    fad_staging_advance(job);
    fad_job_call_ended(job);
}

void fad_job_abandon(struct fad_job *job, enum fa_status status)
{
    job->abandoned = status;
    switch (job->state) {
    case FAD_JOB_RECEIVING:
        if (job->calls == 0)
            finish(job);
        else
            set_state(job, FAD_JOB_PREPARING);
        break;
    case FAD_JOB_PREPARING: /* prepared() sees it, */
        fad_events_give_up(job);
        break;
    case FAD_JOB_RETURNING: /* or returned(), */
    case FAD_JOB_CLOSING:   /* or all_closed() */
        break;
    case FAD_JOB_RUNNING:
        fad_scheduler_abandon(&job->engine->scheduler, &job->work, (int)status);
        break;
    case FAD_JOB_DONE:
        assert(!"a job that is done cannot be abandoned");
    }
}
