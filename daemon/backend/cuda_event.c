/* cuda_event.c: waiting for clients' events. They are asked again and again; no stream waits for
 * one, so one that never happens holds up nobody. */
#include "daemon/backend/cuda_parts.h"

#include <errno.h>

/* A wait is polled for at every turn of the loop for so long, and from then on by the timer. */
#define SPIN_NS 2000000u

static struct fad_event_wait *wait_of(struct fad_op *op)
{
    return fad_container_of(op, struct fad_event_wait, op);
}

/* INT32_MAX: it goes on. */
static int outcome(const struct fad_event_wait *wait, struct cuda_handle *handle, uint64_t now_ns)
{
    const struct cuda_backend *backend = handle->device->backend;

    if (cuda_is_lost(backend))
        return -EIO;
    if (wait->given_up)
        return FA_CANCELLED;
    if (handle->pass != backend->event_pass) { /* once, however many wait for it */
        handle->pass = backend->event_pass;
        handle->answer = cudaEventQuery(handle->event);
    }
    if (handle->answer != cudaSuccess && handle->answer != cudaErrorNotReady)
        return cuda_status(handle->device, handle->answer, "a client's event");
    if (handle->answer == cudaErrorNotReady)
        return now_ns < wait->until_ns ? INT32_MAX : wait->late;
    return 0;
}

void cuda_events_poll(struct cuda_backend *backend, uint64_t now_ns)
{
    struct fad_op *op, *next;

    backend->event_pass++;
    for (op = STAILQ_FIRST(&backend->event_waits); op; op = next) {
        struct cuda_handle *handle = op->subject;
        const int status = outcome(wait_of(op), handle, now_ns);

        next = STAILQ_NEXT(op, link);
        if (status == INT32_MAX)
            continue;
        STAILQ_REMOVE(&backend->event_waits, op, fad_op, link);
        cuda_handle_unuse(handle);
        cuda_complete(backend, op, status, NULL);
    }
}

void cuda_event_opened(struct cuda_handle *handle, struct fad_op *op)
{
    struct cuda_backend *backend = handle->device->backend;

    op->subject = handle;
    STAILQ_INSERT_TAIL(&backend->event_waits, op, link);
    backend->event_spin_ns = uv_hrtime() + SPIN_NS;
    cuda_start_timer(backend);
}

int cuda_event_wait(struct fad_backend *base, struct fad_event_wait *wait)
{
    struct cuda_backend *backend = cuda_backend_of(base);

    return cuda_handle_use(&backend->parts[wait->device], true, wait->handle, 0, &wait->op);
}
