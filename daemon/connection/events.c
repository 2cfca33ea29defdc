#include "daemon/connection/events.h"

#include "daemon/connection/staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct event {
    struct fad_event_wait wait;
    struct fad_job *job;
    enum fad_tensor tensor; /* the first that names it */
};

struct fad_events {
    uint32_t count;
    uint32_t left; /* have not happened */
    struct event of[FAD_TENSORS];
};

static void add(struct fad_job *job, enum fad_tensor tensor)
{
    struct fad_events *events = job->events;
    const uint8_t *handle = job->request.at[tensor].event;
    struct event *event = &events->of[events->count];

    for (uint32_t i = 0; i < events->count; i++)
        if (memcmp(events->of[i].wait.handle, handle, sizeof event->wait.handle) == 0)
            return;
    event->job = job;
    event->tensor = tensor;
    event->wait.device = job->device;
    memcpy(event->wait.handle, handle, sizeof event->wait.handle);
    events->left = ++events->count;
}

bool fad_events_plan(struct fad_job *job)
{
    for (int t = 0; t < FAD_TENSORS; t++) {
        if (!job->request.at[t].has_event)
            continue;
        if (!job->events && !(job->events = calloc(1, sizeof *job->events)))
            return false;
        add(job, (enum fad_tensor)t);
    }
    return true;
}

bool fad_events_happened(const struct fad_job *job)
{
    return !job->events || job->events->left == 0;
}

static void fail(const struct event *event, int status, const char *text)
{
    char field[sizeof event->job->error.field];

    snprintf(field, sizeof field, "%s.%s.event", fad_tensor_name(event->tensor),
             event->job->request.at[event->tensor].place == FAD_IPC ? "cuda_ipc" : "region");
    fad_job_fail(event->job, status, field, text);
}

static void on_end(struct fad_op *op)
{
    struct event *event = fad_container_of(op, struct event, wait.op);
    struct fad_job *job = event->job;

    if (op->status != 0)
        fail(event, op->status, op->text);
    else
        job->events->left--;
    fad_staging_advance(job);
    fad_job_call_ended(job);
}

void fad_events_begin(struct fad_job *job)
{
    struct fad_backend *backend = job->engine->backend;
    const uint64_t deadline_ns = fad_job_deadline(job);
    const uint64_t patience_ns = job->ready_ns + FAD_EVENT_PATIENCE_NS;
    const bool deadline_first = deadline_ns != 0 && deadline_ns <= patience_ns;

    for (uint32_t i = 0; job->events && i < job->events->count && fad_job_goes_on(job); i++) {
        struct event *event = &job->events->of[i];
        int status;

        event->wait.op.done = on_end;
        event->wait.until_ns = deadline_first ? deadline_ns : patience_ns;
        event->wait.late = deadline_first ? FA_DEADLINE_EXCEEDED : FA_EVENT_TIMEOUT;
        status = backend->ops->event_wait(backend, &event->wait);
        if (status == 0)
            job->calls++;
        else
            fail(event, status, NULL);
        fad_engine_taken(job->engine);
    }
}

void fad_events_give_up(struct fad_job *job)
{
    for (uint32_t i = 0; job->events && i < job->events->count; i++)
        job->events->of[i].wait.given_up = true;
}
