/* cuda_ipc.c: handles of clients' memory and events, opened once for all who name them and kept
 * open for a while: opening and closing take up to half a millisecond, on the device's worker. */
#include "daemon/backend/cuda_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With so many open on a device those that nobody uses are closed, the one used last last. The
 * limits on requests and regions bound those in use. */
#define HANDLES_KEPT 256u

/* How long a handle stays open that nobody uses: it keeps memory alive that the client may have
 * freed. */
#define IDLE_NS ((uint64_t)5000000000u)

/* Of cudaMalloc's memory, at least. */
#define ALLOCATION_ALIGN 256u

#define CAUSES                                                                                     \
    ": freed memory, a pool's (cudaMallocAsync), managed or virtual memory, another GPU's or MIG " \
    "instance's, this process's own, or a system without CUDA IPC (WSL); use inline, memfd or a "  \
    "region"

/* --- On the worker --------------------------------------------------------------------------- */

static const char *refusal(cudaError_t error)
{
    switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
        return "the driver knows no such handle" CAUSES;
    case cudaErrorMapBufferObjectFailed:
        return "the driver cannot map what the handle names" CAUSES;
    case cudaErrorDeviceUninitialized:
        return "the driver does not open a handle of its own process" CAUSES;
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
        return "there is no CUDA IPC here" CAUSES;
    default:
        return "the driver refuses the handle" CAUSES;
    }
}

static void refuse(struct fad_op *op, const char *text)
{
    op->status = FA_IPC_REFUSED;
    op->text = text;
}

/* False: the op says why. */
static bool succeeded(struct cuda_device *device, struct fad_op *op, cudaError_t error)
{
    const cudaError_t state =
        error == cudaSuccess ? cudaSuccess : cudaStreamQuery(device->memory.stream);

    if (error == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    if (state != cudaSuccess && state != cudaErrorNotReady)
        op->status = cuda_status(device, state, "opening a handle");
    else
        refuse(op, refusal(error));
    return false;
}

static bool run_open_event(struct fad_op *op, void *scratch)
{
    struct cuda_handle *handle = op->subject;
    cudaIpcEventHandle_t bytes;

    (void)scratch;
    (void)cuda_use(handle->device);
    memcpy(&bytes, handle->bytes, sizeof bytes);
    (void)succeeded(handle->device, op, cudaIpcOpenEventHandle(&handle->event, bytes));
    return false;
}

/* Only what lies on the device that the client named, whose real size is known, is of use. */
static bool run_open_memory(struct fad_op *op, void *scratch)
{
    struct cuda_handle *handle = op->subject;
    struct cuda_device *device = handle->device;
    const struct cuda_driver *driver = &device->backend->driver;
    struct cudaPointerAttributes attributes;
    cudaIpcMemHandle_t bytes;
    CUdeviceptr base;

    (void)scratch;
    (void)cuda_use(device);
    memcpy(&bytes, handle->bytes, sizeof bytes);
    if (cuda_is_forged(device->backend, handle->bytes)) {
        refuse(op,
               "the handle's bytes contradict each other: they are not as the driver gave them");
        return false;
    }
    if (!succeeded(device, op,
                   cudaIpcOpenMemHandle(&handle->base, bytes, cudaIpcMemLazyEnablePeerAccess)))
        return false;
    if (cudaPointerGetAttributes(&attributes, handle->base) != cudaSuccess ||
        attributes.device != device->ordinal)
        refuse(op, "the memory is not on the GPU that device_uuid names");
    else if (driver->get_address_range(&base, &handle->size, (CUdeviceptr)handle->base) !=
             CUDA_SUCCESS)
        refuse(op, "the driver does not tell the allocation's real size");
    else if (base != (CUdeviceptr)handle->base || base % ALLOCATION_ALIGN != 0)
        refuse(op, "no allocation begins where the handle says: it is not as the driver gave it");
    if (op->status != 0) {
        (void)cudaGetLastError();
        (void)cudaIpcCloseMemHandle(handle->base);
    }
    return false;
}

static bool run_close(struct fad_op *op, void *scratch)
{
    struct cuda_handle *handle = op->subject;

    (void)scratch;
    (void)cuda_use(handle->device);
    if (handle->is_event)
        (void)cudaEventDestroy(handle->event);
    else
        (void)cudaIpcCloseMemHandle(handle->base);
    (void)cudaGetLastError();
    free(handle);
    return false;
}

/* --- The table ------------------------------------------------------------------------------- */

static void forget(struct cuda_handle *handle)
{
    TAILQ_REMOVE(&handle->device->handles, handle, link);
    handle->device->handle_count--;
}

/* op: whoever waits for it; NULL: nobody. */
static void close_handle(struct cuda_handle *handle, struct fad_op *op)
{
    assert(handle->open && handle->uses == 0);
    forget(handle);
    if (!op) {
        op = &handle->op;
        op->done = NULL;
    }
    fad_op_prepare(op, run_close, handle);
    fad_worker_give(&handle->device->worker, op);
}

static struct cuda_handle *find(const struct cuda_device *device, bool is_event,
                                const uint8_t bytes[64], uint64_t buffer_id)
{
    struct cuda_handle *handle;

    TAILQ_FOREACH (handle, &device->handles, link)
        if (handle->is_event == is_event && handle->buffer_id == buffer_id &&
            memcmp(handle->bytes, bytes, sizeof handle->bytes) == 0)
            return handle;
    return NULL;
}

/* Closes the handle that has been idle longest, if there is one. */
static void make_room(struct cuda_device *device)
{
    struct cuda_handle *handle = TAILQ_LAST(&device->handles, cuda_handles);

    while (handle && handle->uses > 0)
        handle = TAILQ_PREV(handle, cuda_handles, link);
    if (handle)
        close_handle(handle, NULL);
}

void cuda_handle_unuse(struct cuda_handle *handle)
{
    assert(handle->uses > 0);
    if (--handle->uses == 0)
        handle->idle_ns = uv_hrtime();
}

void cuda_handles_tick(struct cuda_device *device, uint64_t now_ns)
{
    struct cuda_handle *handle, *next;

    for (handle = TAILQ_FIRST(&device->handles); handle; handle = next) {
        next = TAILQ_NEXT(handle, link);
        if (handle->uses == 0 && now_ns > handle->idle_ns + IDLE_NS)
            close_handle(handle, NULL);
    }
}

void cuda_handles_close(struct cuda_device *device)
{
    struct cuda_handle *handle, *next;

    for (handle = TAILQ_FIRST(&device->handles); handle; handle = next) {
        next = TAILQ_NEXT(handle, link);
        assert(handle->open && handle->uses == 0);
        forget(handle);
        handle->op.subject = handle;
        run_close(&handle->op, NULL);
    }
}

/* --- Using one ------------------------------------------------------------------------------- */

/* What op waited for is there. */
static void go_on(struct cuda_handle *handle, struct fad_op *op)
{
    struct fad_region *region;

    if (handle->is_event) {
        cuda_event_opened(handle, op);
        return;
    }
    region = op->subject;
    region->base = handle->base;
    region->size = handle->size;
    cuda_complete(handle->device->backend, op, 0, NULL);
}

static void on_opened(struct fad_op *opening)
{
    struct cuda_handle *handle = fad_container_of(opening, struct cuda_handle, op);
    struct cuda_backend *backend = handle->device->backend;
    struct fad_op *op;

    handle->open = opening->status == 0;
    while ((op = STAILQ_FIRST(&handle->waits))) {
        STAILQ_REMOVE_HEAD(&handle->waits, link);
        if (handle->open)
            go_on(handle, op);
        else
            cuda_complete(backend, op, opening->status, opening->text);
    }
    if (handle->open)
        return;
    forget(handle);
    free(handle);
}

static struct cuda_handle *begin(struct cuda_device *device, bool is_event, const uint8_t bytes[64],
                                 uint64_t buffer_id)
{
    struct cuda_handle *handle;

    if (device->handle_count >= HANDLES_KEPT)
        make_room(device);
    handle = calloc(1, sizeof *handle);
    if (!handle)
        return NULL;
    handle->device = device;
    handle->is_event = is_event;
    memcpy(handle->bytes, bytes, sizeof handle->bytes);
    handle->buffer_id = buffer_id;
    STAILQ_INIT(&handle->waits);
    TAILQ_INSERT_HEAD(&device->handles, handle, link);
    device->handle_count++;
    handle->op.done = on_opened;
    fad_op_prepare(&handle->op, is_event ? run_open_event : run_open_memory, handle);
    fad_worker_give(&device->worker, &handle->op);
    return handle;
}

int cuda_handle_use(struct cuda_device *device, bool is_event, const uint8_t bytes[64],
                    uint64_t buffer_id, struct fad_op *op)
{
    struct cuda_handle *handle = find(device, is_event, bytes, buffer_id);

    if (cuda_is_lost(device->backend))
        return -EIO;
    if (!handle && !(handle = begin(device, is_event, bytes, buffer_id)))
        return FA_RESOURCE_EXHAUSTED;
    TAILQ_REMOVE(&device->handles, handle, link);
    TAILQ_INSERT_HEAD(&device->handles, handle, link);
    handle->uses++;
    if (handle->open)
        go_on(handle, op);
    else
        STAILQ_INSERT_TAIL(&handle->waits, op, link);
    return 0;
}

int cuda_ipc_open(struct cuda_device *device, struct fad_region *region, struct fad_op *op)
{
    op->subject = region;
    return cuda_handle_use(device, false, region->source.handle, region->source.buffer_id, op);
}

void cuda_ipc_close(struct cuda_device *device, struct fad_region *region, struct fad_op *op)
{
    struct cuda_handle *handle =
        find(device, false, region->source.handle, region->source.buffer_id);

    assert(handle && handle->open);
    cuda_handle_unuse(handle);
    if (handle->uses == 0 && !region->source.kept)
        close_handle(handle, op);
    else
        cuda_complete(device->backend, op, 0, NULL);
}
