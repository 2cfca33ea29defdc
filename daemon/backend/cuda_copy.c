/* cuda_copy.c: copies between host and device memory.
 *
 * Pinned memory is copied by the GPU's engines. What lies elsewhere, clients' shared memory most of
 * all, goes through bounce buffers by threads, several at once: pinning it instead costs four times
 * as much as copying it (README.md has the figures), and holds up every launch meanwhile.
 * All copies advance piece by piece, in turns. */
#include "daemon/backend/cuda_parts.h"

#include "daemon/backend/layout.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* What an engine is given at once: about 80 us of its time. */
#define ENGINE_PIECE  ((size_t)4 << 20)
#define ENGINE_PER_NS 50u /* bytes, about */

/* What a thread takes at once. */
#define PIECE ((size_t)1 << 20)

/* Up to this size CUDA takes bytes on their way to the device from any memory at once, by a copy of
 * its own, if it need not wait for copies before. */
#define TAKEN_AT_ONCE ((size_t)64 << 10)

enum way { TO_DEVICE, FROM_DEVICE, ON_HOST };

/* Sets copy->way. 0 or a status. */
static int find_way(struct cuda_device *device, struct fad_copy *copy)
{
    struct cudaPointerAttributes to, from;
    int status;

    status = cuda_status(device, cudaPointerGetAttributes(&to, copy->to), "a copy");
    if (status == 0)
        status = cuda_status(device, cudaPointerGetAttributes(&from, copy->from), "a copy");
    if (status != 0)
        return status;
    if (to.type == cudaMemoryTypeDevice)
        copy->way = TO_DEVICE;
    else
        copy->way = from.type == cudaMemoryTypeDevice ? FROM_DEVICE : ON_HOST;
    assert(copy->way != ON_HOST || !copy->layout);
    return 0;
}

static struct fad_copy *copy_of(struct fad_op *op)
{
    return fad_container_of(op, struct fad_copy, op);
}

/* --- By engines ------------------------------------------------------------------------------ */

static int give_engine(struct cuda_backend *backend, struct fad_copy *copy);

static void on_piece_copied(struct cuda_backend *backend, struct cuda_fence *fence, int status)
{
    struct fad_copy *copy = fence->subject;

    if (status == 0 && copy->given < copy->size && (status = give_engine(backend, copy)) == 0)
        return;
    cuda_complete(backend, &copy->op, status, NULL);
}

static int give_engine(struct cuda_backend *backend, struct fad_copy *copy)
{
    struct cuda_device *device = &backend->parts[copy->device];
    struct cuda_queue *queue = copy->way == TO_DEVICE ? &device->in : &device->out;
    const size_t left = copy->size - copy->given, size = left < ENGINE_PIECE ? left : ENGINE_PIECE;
    struct cuda_fence *fence;
    int status;

    if ((status = cuda_fence_new(device, &fence)) != 0)
        return status;
    status = cuda_status(
        device,
        cudaMemcpyAsync((char *)copy->to + copy->given, (const char *)copy->from + copy->given,
                        size,
                        copy->way == TO_DEVICE ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                        queue->stream),
        "a copy");
    if (status != 0) {
        cuda_fence_drop(device, fence);
        return status;
    }
    copy->given += size;
    fence->reached = on_piece_copied;
    fence->subject = copy;
    return cuda_fence_put(queue, fence, size / ENGINE_PER_NS);
}

/* --- By threads ------------------------------------------------------------------------------ */

/* [first, first + size) of the packed side's bytes. */
static int copy_piece(struct cuda_copier *copier, const struct fad_copy *copy, uint64_t first,
                      size_t size)
{
    struct cuda_device *device = &copier->all->backend->parts[copy->device];
    cudaStream_t stream = copier->streams[copy->device];
    char *to = (char *)copy->to + first;
    const char *from = (const char *)copy->from + first;
    int status = 0;

    if (copy->way == ON_HOST) {
        memcpy(to, from, size);
        return 0;
    }
    (void)cuda_use(device);
    if (copy->way == TO_DEVICE && copy->layout)
        fad_layout_copy(copy->layout, (void *)(uintptr_t)copy->from, copier->bounce, first, size,
                        true);
    else if (copy->way == TO_DEVICE)
        memcpy(copier->bounce, from, size);
    status = cuda_status(
        device,
        copy->way == TO_DEVICE
            ? cudaMemcpyAsync(to, copier->bounce, size, cudaMemcpyHostToDevice, stream)
            : cudaMemcpyAsync(copier->bounce, from, size, cudaMemcpyDeviceToHost, stream),
        "a copy");
    if (status == 0)
        status = cuda_status(device, cudaStreamSynchronize(stream), "a copy");
    if (status != 0 || copy->way == TO_DEVICE)
        return status;
    if (copy->layout)
        fad_layout_copy(copy->layout, copy->to, copier->bounce, first, size, false);
    else
        memcpy(to, copier->bounce, size);
    return 0;
}

/* With the lock held: takes a piece of the first copy, which then goes behind the others. */
static size_t take_piece(struct cuda_copiers *all, struct fad_copy *copy, uint64_t *first)
{
    const size_t left = copy->size - copy->given, size = left < PIECE ? left : PIECE;

    STAILQ_REMOVE_HEAD(&all->copies, link);
    *first = copy->given;
    copy->given += size;
    copy->pieces++;
    if (copy->given < copy->size)
        STAILQ_INSERT_TAIL(&all->copies, &copy->op, link);
    return size;
}

/* With the lock held. True: that was the copy's last piece. */
static bool end_piece(struct cuda_copiers *all, struct fad_copy *copy, int status)
{
    if (status != 0 && copy->op.status == 0)
        copy->op.status = status;
    if (status != 0 && copy->given < copy->size) { /* the rest is not worth copying */
        copy->given = copy->size;
        STAILQ_REMOVE(&all->copies, &copy->op, fad_op, link);
    }
    return --copy->pieces == 0 && copy->given == copy->size;
}

static void copier_main(void *argument)
{
    struct cuda_copier *copier = argument;
    struct cuda_copiers *all = copier->all;
    struct fad_op *op;

    fad_worker_be_nice();
    uv_mutex_lock(&all->lock);
    for (;;) {
        uint64_t first;
        size_t size;
        int status;

        if (!(op = STAILQ_FIRST(&all->copies))) {
            if (all->stop)
                break;
            uv_cond_wait(&all->wake, &all->lock);
            continue;
        }
        size = take_piece(all, copy_of(op), &first);
        uv_mutex_unlock(&all->lock);
        status = copy_piece(copier, copy_of(op), first, size);
        uv_mutex_lock(&all->lock);
        if (end_piece(all, copy_of(op), status))
            fad_completions_push(all->backend->base.completions, op);
    }
    uv_mutex_unlock(&all->lock);
}

static void give_threads(struct cuda_copiers *all, struct fad_copy *copy)
{
    uv_mutex_lock(&all->lock);
    STAILQ_INSERT_TAIL(&all->copies, &copy->op, link);
    if (copy->size > PIECE)
        uv_cond_broadcast(&all->wake);
    else
        uv_cond_signal(&all->wake);
    uv_mutex_unlock(&all->lock);
}

int cuda_copy(struct fad_backend *base, struct fad_copy *copy)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_device *device = &backend->parts[copy->device];
    bool engine;
    int status;

    if (cuda_is_lost(backend))
        return -EIO;
    if ((status = find_way(device, copy)) != 0)
        return status;
    copy->op.status = 0;
    copy->op.text = NULL;
    copy->given = 0;
    copy->pieces = 0;
    if (copy->way == TO_DEVICE)
        engine = cuda_is_pinned(backend, copy->from) ||
                 (copy->size <= TAKEN_AT_ONCE && TAILQ_EMPTY(&device->in.fences));
    else
        engine = copy->way == FROM_DEVICE && cuda_is_pinned(backend, copy->to);
    if (engine && !copy->layout)
        return give_engine(backend, copy);
    give_threads(&backend->copiers, copy);
    return 0;
}

/* --- Begin and end --------------------------------------------------------------------------- */

static int begin_copier(struct cuda_backend *backend, struct cuda_copier *copier)
{
    copier->all = &backend->copiers;
    copier->bounce = cuda_host_alloc(&backend->base, PIECE);
    if (!copier->bounce)
        return -ENOMEM;
    for (uint32_t d = 0; d < backend->device_count; d++) {
        (void)cuda_use(&backend->parts[d]);
        if (cudaStreamCreateWithFlags(&copier->streams[d], cudaStreamNonBlocking) != cudaSuccess)
            return -EIO;
    }
    return uv_thread_create(&copier->thread, copier_main, copier);
}

static void end_copier(struct cuda_backend *backend, struct cuda_copier *copier)
{
    for (uint32_t d = 0; d < backend->device_count; d++)
        if (copier->streams[d])
            (void)cudaStreamDestroy(copier->streams[d]);
    if (copier->bounce)
        cuda_host_free(&backend->base, copier->bounce, PIECE);
}

uint32_t cuda_copiers_wanted(void)
{
    const uint32_t half = uv_available_parallelism() / 2;

    return half < 1 ? 1 : half > CUDA_COPIERS_MAX ? CUDA_COPIERS_MAX : half;
}

int cuda_copiers_begin(struct cuda_backend *backend)
{
    struct cuda_copiers *all = &backend->copiers;
    const uint32_t wanted = cuda_copiers_wanted();
    int r;

    STAILQ_INIT(&all->copies);
    if ((r = uv_mutex_init(&all->lock)) < 0)
        return r;
    if ((r = uv_cond_init(&all->wake)) < 0) {
        uv_mutex_destroy(&all->lock);
        return r;
    }
    all->backend = backend;
    while (all->count < wanted) {
        if ((r = begin_copier(backend, &all->copier[all->count])) < 0) {
            end_copier(backend, &all->copier[all->count]);
            break;
        }
        all->count++;
    }
    return all->count > 0 ? 0 : r;
}

void cuda_copiers_end(struct cuda_backend *backend)
{
    struct cuda_copiers *all = &backend->copiers;

    if (!all->backend)
        return;
    uv_mutex_lock(&all->lock);
    all->stop = true;
    uv_cond_broadcast(&all->wake);
    uv_mutex_unlock(&all->lock);
    for (uint32_t i = 0; i < all->count; i++) {
        uv_thread_join(&all->copier[i].thread);
        end_copier(backend, &all->copier[i]);
    }
    uv_cond_destroy(&all->wake);
    uv_mutex_destroy(&all->lock);
}
