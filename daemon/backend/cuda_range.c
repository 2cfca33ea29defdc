#include "daemon/backend/cuda_parts.h"

#include <assert.h>
#include <errno.h>

/* How long the range took the device's clock tells. That is put where the range began by ours: when
 * it was launched (as op.started_ns says so far), or when its stream was done with the one before.
 * What is seen of its end is some wake-up later. */
static void set_times(struct cuda_queue *queue, const struct cuda_fence *fence, struct fad_op *op)
{
    const uint64_t now = uv_hrtime();
    float milliseconds = 0;
    uint64_t took_ns;

    if (cudaEventElapsedTime(&milliseconds, fence->begin, fence->end) != cudaSuccess)
        milliseconds = 0;
    took_ns = (uint64_t)(milliseconds * 1e6);
    if (op->started_ns < queue->ended_ns)
        op->started_ns = queue->ended_ns;
    if (op->started_ns + took_ns > now)
        op->started_ns = now - took_ns;
    op->finished_ns = queue->ended_ns = op->started_ns + took_ns;
}

static void on_reached(struct cuda_backend *backend, struct cuda_fence *fence, int status)
{
    struct fad_range_op *range = fence->subject;
    struct cuda_queue *queue = &backend->parts[range->device].streams[range->stream];

    range->op.finished_ns = range->op.started_ns;
    if (status == 0)
        set_times(queue, fence, &range->op);
    cuda_complete(backend, &range->op, status != 0 ? status : range->op.status, range->op.text);
}

/* A kernel's scratch is the launch's alone: it comes and goes in the stream's order. */
static int launch(struct cuda_device *device, struct fad_range_op *range, cudaStream_t stream)
{
    const size_t scratch = range->kernel->scratch(range->launch.problem, range->launch.range.count);
    enum fa_status status;

    range->launch.stream = stream;
    range->launch.scratch = NULL;
    if (scratch > 0) {
        const int r = cuda_status(
            device, cudaMallocFromPoolAsync(&range->launch.scratch, scratch, device->pool, stream),
            "memory for a kernel's scratch");
        if (r != 0)
            return r;
        cuda_pool_used(device);
    }
    status = range->kernel->launch(&range->launch);
    if (scratch > 0)
        (void)cudaFreeAsync(range->launch.scratch, stream);
    /* A launch that fails because of an earlier fault says so. */
    return status == FA_INTERNAL ? cuda_status(device, cudaErrorUnknown, "a launch") : (int)status;
}

int cuda_launch_range(struct fad_backend *base, struct fad_range_op *range)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_device *device = &backend->parts[range->device];
    struct cuda_queue *queue = &device->streams[range->stream];
    struct cuda_fence *fence;
    int status;

    assert(range->device < base->device_count && range->stream < device->stream_count);
    if (cuda_is_lost(backend))
        return -EIO;
    if ((status = cuda_fence_new(device, &fence)) != 0)
        return status;
    fence->reached = on_reached;
    fence->subject = range;
    status = cuda_status(device, cudaEventRecord(fence->begin, queue->stream), "a launch");
    if (status != 0) {
        cuda_fence_drop(device, fence);
        return status;
    }
    range->op.started_ns = uv_hrtime();
    range->op.text = NULL;
    range->op.status = launch(device, range, queue->stream);
    /* Some of it may have been launched: what failed ends when that has. */
    if (range->op.status == FA_RESOURCE_EXHAUSTED)
        range->op.text = "the device has no memory for the kernel's scratch";
    return cuda_fence_put(queue, fence, range->expected_ns);
}
