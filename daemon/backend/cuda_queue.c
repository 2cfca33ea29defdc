#include "daemon/backend/cuda_parts.h"

#include "daemon/util/log.h"

#include <errno.h>
#include <stdlib.h>

/* --- Errors ---------------------------------------------------------------------------------- */

cudaError_t cuda_use(const struct cuda_device *device)
{
    static _Thread_local int current = -1;
    cudaError_t error = cudaSuccess;

    if (current != device->ordinal)
        error = cudaSetDevice(device->ordinal);
    current = error == cudaSuccess ? device->ordinal : -1;
    return error;
}

bool cuda_is_lost(const struct cuda_backend *backend)
{
    return __atomic_load_n(&backend->lost, __ATOMIC_ACQUIRE);
}

/* What is found first is logged. */
static int lose(struct cuda_device *device, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* it is told here, not at a later call */
    if (!__atomic_exchange_n(&device->backend->lost, true, __ATOMIC_ACQ_REL))
        fad_log(FAD_LOG_ERROR, "device %d is lost: %s: %s (%s)", device->ordinal, what,
                cudaGetErrorName(error), cudaGetErrorString(error));
    return -EIO;
}

int cuda_status(struct cuda_device *device, cudaError_t error, const char *what)
{
    cudaError_t state;

    if (error == cudaSuccess)
        return cuda_is_lost(device->backend) ? -EIO : 0;
    (void)cudaGetLastError();
    if (cuda_is_lost(device->backend))
        return -EIO;
    /* A fault of the context's shows at every call from then on. */
    state = cudaStreamQuery(device->memory.stream);
    if (state != cudaSuccess && state != cudaErrorNotReady)
        return lose(device, state, what);
    if (error == cudaErrorMemoryAllocation)
        return FA_RESOURCE_EXHAUSTED;
    fad_log(FAD_LOG_ERROR, "device %d: %s: %s (%s)", device->ordinal, what, cudaGetErrorName(error),
            cudaGetErrorString(error));
    return FA_INTERNAL;
}

void cuda_complete(struct cuda_backend *backend, struct fad_op *op, int status, const char *text)
{
    op->status = status;
    op->text = text;
    fad_completions_push(backend->base.completions, op);
}

/* --- Fences ---------------------------------------------------------------------------------- */

int cuda_fence_new(struct cuda_device *device, struct cuda_fence **out)
{
    struct cuda_fence *fence = TAILQ_FIRST(&device->spare);
    cudaError_t error;

    (void)cuda_use(device);
    *out = fence;
    if (fence) {
        TAILQ_REMOVE(&device->spare, fence, link);
        return 0;
    }
    fence = calloc(1, sizeof *fence);
    if (!fence)
        return FA_RESOURCE_EXHAUSTED;
    error = cudaEventCreateWithFlags(&fence->begin, cudaEventDefault);
    if (error == cudaSuccess) {
        error = cudaEventCreateWithFlags(&fence->end, cudaEventBlockingSync);
        if (error != cudaSuccess)
            (void)cudaEventDestroy(fence->begin);
    }
    if (error != cudaSuccess) {
        free(fence);
        return cuda_status(device, error, "making an event");
    }
    *out = fence;
    return 0;
}

void cuda_fence_drop(struct cuda_device *device, struct cuda_fence *fence)
{
    TAILQ_INSERT_HEAD(&device->spare, fence, link);
}

int cuda_fence_put(struct cuda_queue *queue, struct cuda_fence *fence, uint64_t expected_ns)
{
    struct cuda_backend *backend = queue->device->backend;
    const struct cuda_fence *before = TAILQ_LAST(&queue->fences, cuda_fences);
    const cudaError_t error = cudaEventRecord(fence->end, queue->stream);
    const uint64_t now = uv_hrtime();

    if (error != cudaSuccess) {
        cuda_fence_drop(queue->device, fence);
        return lose(queue->device, error, "recording an event");
    }
    fence->due_ns = (before && before->due_ns > now ? before->due_ns : now) + expected_ns;
    fence->brief = expected_ns <= CUDA_BRIEF_NS;
    backend->brief += fence->brief;
    if (!before)
        TAILQ_INSERT_TAIL(&backend->busy, queue, link);
    TAILQ_INSERT_TAIL(&queue->fences, fence, link);
    return 0;
}

/* The queue's first fence is reached: tells its owner. */
static void reach(struct cuda_queue *queue, int status)
{
    struct cuda_backend *backend = queue->device->backend;
    struct cuda_fence *fence = TAILQ_FIRST(&queue->fences);

    TAILQ_REMOVE(&queue->fences, fence, link);
    if (TAILQ_EMPTY(&queue->fences))
        TAILQ_REMOVE(&backend->busy, queue, link);
    backend->brief -= fence->brief;
    fence->reached(backend, fence, status);
    cuda_fence_drop(queue->device, fence);
}

static void look_at(struct cuda_queue *queue)
{
    struct cuda_fence *fence;

    while ((fence = TAILQ_FIRST(&queue->fences))) {
        const cudaError_t error = cudaEventQuery(fence->end);
        int status = 0;

        if (error == cudaErrorNotReady)
            return;
        if (error != cudaSuccess)
            status = lose(queue->device, error, "waiting for a stream");
        reach(queue, status);
    }
}

/* Nothing will be reached any more: all ends at once. */
static void fail_all(struct cuda_backend *backend)
{
    struct cuda_queue *queue;

    while ((queue = TAILQ_FIRST(&backend->busy)))
        reach(queue, -EIO);
}

static void look_at_all(struct cuda_backend *backend, bool at_events)
{
    struct cuda_queue *queue, *next;

    for (queue = TAILQ_FIRST(&backend->busy); queue && !cuda_is_lost(backend); queue = next) {
        next = TAILQ_NEXT(queue, link);
        look_at(queue);
    }
    if (cuda_is_lost(backend))
        fail_all(backend);
    if (at_events || cuda_is_lost(backend))
        cuda_events_poll(backend, uv_hrtime());
}

int cuda_queue_init(struct cuda_queue *queue, struct cuda_device *device, int priority)
{
    queue->device = device;
    TAILQ_INIT(&queue->fences);
    return cuda_status(
        device, cudaStreamCreateWithPriority(&queue->stream, cudaStreamNonBlocking, priority),
        "making a stream");
}

void cuda_queue_deinit(struct cuda_queue *queue)
{
    if (queue->stream)
        (void)cudaStreamDestroy(queue->stream);
    queue->stream = NULL;
}

/* --- Polling and waking up ------------------------------------------------------------------- */

/* The fence that is expected first. */
static struct cuda_fence *next_due(const struct cuda_backend *backend)
{
    const struct cuda_queue *queue;
    struct cuda_fence *first = NULL;

    TAILQ_FOREACH (queue, &backend->busy, link) {
        struct cuda_fence *fence = TAILQ_FIRST(&queue->fences);
        if (!first || fence->due_ns < first->due_ns)
            first = fence;
    }
    return first;
}

void cuda_wake_later(struct cuda_backend *backend)
{
    struct cuda_waiter *waiter = &backend->waiter;
    const struct cuda_fence *fence = next_due(backend);

    if (!fence)
        return;
    cuda_start_timer(backend);
    if (waiter->waiting || backend->brief > 0)
        return;
    waiter->waiting = true;
    uv_mutex_lock(&waiter->lock);
    waiter->event = fence->end;
    uv_cond_signal(&waiter->wake);
    uv_mutex_unlock(&waiter->lock);
}

static bool spins_for_events(const struct cuda_backend *backend)
{
    return !STAILQ_EMPTY(&backend->event_waits) && uv_hrtime() < backend->event_spin_ns;
}

/* Short work is worth a busy loop; what is long wakes it. */
bool cuda_poll(struct fad_backend *base)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    const bool spins = spins_for_events(backend);

    look_at_all(backend, spins);
    if (backend->brief > 0 || spins)
        return true;
    cuda_wake_later(backend);
    return false;
}

void cuda_on_woken(uv_async_t *handle)
{
    struct cuda_backend *backend = handle->data;

    backend->waiter.waiting = false;
    fad_completions_watch(backend->base.completions);
    look_at_all(backend, false);
    cuda_wake_later(backend);
    fad_completions_drain(backend->base.completions);
}

/* The waiter may sleep for a fence that was expected first and comes later than others; events wake
 * nobody. */
#define PERIOD_MS 1u

static void on_timer(uv_timer_t *timer)
{
    struct cuda_backend *backend = fad_container_of(timer, struct cuda_backend, timer);

    fad_completions_watch(backend->base.completions);
    look_at_all(backend, true);
    if (TAILQ_EMPTY(&backend->busy) && STAILQ_EMPTY(&backend->event_waits))
        uv_timer_stop(timer);
    fad_completions_drain(backend->base.completions);
}

void cuda_start_timer(struct cuda_backend *backend)
{
    if (!uv_is_active((uv_handle_t *)&backend->timer))
        uv_timer_start(&backend->timer, on_timer, PERIOD_MS, PERIOD_MS);
}

static void waiter_main(void *argument)
{
    struct cuda_waiter *waiter = argument;

    /* Else the driver would make a context on its first device, which may be none of ours. */
    (void)cuda_use(&fad_container_of(waiter, struct cuda_backend, waiter)->parts[0]);
    uv_mutex_lock(&waiter->lock);
    while (!waiter->stop) {
        cudaEvent_t event = waiter->event;

        if (!event) {
            uv_cond_wait(&waiter->wake, &waiter->lock);
            continue;
        }
        waiter->event = NULL;
        uv_mutex_unlock(&waiter->lock);
        (void)cudaEventSynchronize(event); /* what came of it, look_at() finds out */
        uv_async_send(&waiter->woken);
        uv_mutex_lock(&waiter->lock);
    }
    uv_mutex_unlock(&waiter->lock);
}

int cuda_waiter_begin(struct cuda_backend *backend)
{
    struct cuda_waiter *waiter = &backend->waiter;
    int r;

    if ((r = uv_mutex_init(&waiter->lock)) < 0)
        return r;
    if ((r = uv_cond_init(&waiter->wake)) < 0)
        goto fail_lock;
    if ((r = uv_thread_create(&waiter->thread, waiter_main, waiter)) < 0)
        goto fail_cond;
    waiter->started = true;
    return 0;
fail_cond:
    uv_cond_destroy(&waiter->wake);
fail_lock:
    uv_mutex_destroy(&waiter->lock);
    return r;
}

void cuda_waiter_end(struct cuda_backend *backend)
{
    struct cuda_waiter *waiter = &backend->waiter;

    if (!waiter->started)
        return;
    uv_mutex_lock(&waiter->lock);
    waiter->stop = true;
    uv_cond_signal(&waiter->wake);
    uv_mutex_unlock(&waiter->lock);
    uv_thread_join(&waiter->thread);
    uv_cond_destroy(&waiter->wake);
    uv_mutex_destroy(&waiter->lock);
}
