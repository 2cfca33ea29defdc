#include "daemon/backend/cuda_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* --- Pinned memory --------------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)

/* Parts of the pinned memory are multiples of this. */
#define PINNED_ALIGN ((size_t)256)

/* Threads that fault new memory in: half the time of pinning it is that. */
#define POPULATORS 8u

struct part {
    uv_thread_t thread;
    char *base;
    size_t size;
};

static void populate(void *argument)
{
    const struct part *part = argument;

    for (size_t i = 0; i < part->size; i += 4096)
        ((volatile char *)part->base)[i] = 0;
}

static void populate_all(char *base, size_t size)
{
    struct part parts[POPULATORS];
    const size_t each = size / POPULATORS / HUGE_PAGE * HUGE_PAGE;
    bool started[POPULATORS];

    for (size_t i = 0; i < POPULATORS; i++) {
        parts[i].base = base + i * each;
        parts[i].size = i == POPULATORS - 1 ? size - i * each : each;
        started[i] = uv_thread_create(&parts[i].thread, populate, &parts[i]) == 0;
    }
    for (size_t i = 0; i < POPULATORS; i++)
        if (started[i]) /* else pinning faults it in */
            uv_thread_join(&parts[i].thread);
}

int cuda_pinned_init(struct cuda_pinned *pinned, size_t size, struct fa_error *error)
{
    void *base;
    cudaError_t code;

    size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || !fad_extents_init(&pinned->extents, size)) {
        if (base != MAP_FAILED)
            munmap(base, size);
        fa_error_set(error, FA_RESOURCE_EXHAUSTED, "pinned", "there is no memory of %zu MiB",
                     size >> 20);
        return -ENOMEM;
    }
    madvise(base, size, MADV_HUGEPAGE); /* a hint: small pages take longer to pin */
    populate_all(base, size);
    code = cudaHostRegister(base, size, cudaHostRegisterPortable);
    if (code != cudaSuccess) {
        fad_extents_deinit(&pinned->extents);
        munmap(base, size);
        fa_error_set(error, FA_RESOURCE_EXHAUSTED, "pinned", "cannot pin %zu MiB: %s (%s)",
                     size >> 20, cudaGetErrorName(code), cudaGetErrorString(code));
        return -ENOMEM;
    }
    pinned->base = base;
    pinned->size = size;
    return 0;
}

void cuda_pinned_deinit(struct cuda_pinned *pinned)
{
    if (!pinned->base)
        return;
    (void)cudaHostUnregister(pinned->base);
    munmap(pinned->base, pinned->size);
    fad_extents_deinit(&pinned->extents);
    pinned->base = NULL;
}

bool cuda_is_pinned(const struct cuda_backend *backend, const void *memory)
{
    const uintptr_t base = (uintptr_t)backend->pinned.base, at = (uintptr_t)memory;

    return at >= base && at - base < backend->pinned.size;
}

static size_t pinned_size(size_t size)
{
    return (size + PINNED_ALIGN - 1) / PINNED_ALIGN * PINNED_ALIGN;
}

void *cuda_host_alloc(struct fad_backend *base, size_t size)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    uint64_t offset;

    if (size > 0 && size <= backend->pinned.size &&
        fad_extents_take(&backend->pinned.extents, pinned_size(size), &offset))
        return backend->pinned.base + offset;
    return fad_host_alloc(size);
}

void cuda_host_free(struct fad_backend *base, void *memory, size_t size)
{
    struct cuda_backend *backend = cuda_backend_of(base);

    if (cuda_is_pinned(backend, memory))
        fad_extents_give(&backend->pinned.extents,
                         (uint64_t)((char *)memory - backend->pinned.base), pinned_size(size));
    else
        fad_host_free(memory, size, &backend->closer);
}

/* --- Regions --------------------------------------------------------------------------------- */

/* More than this is allocated by the device's worker: where the pool must grow for it, that takes
 * longer than the loop is to stand still. Launches beside it are not held up. */
#define LOOP_ALLOC_MAX ((uint64_t)64 << 20)

/* An allocation on the worker. */
struct growth {
    struct fad_op op;
    struct cuda_device *device;
    struct fad_region *region;
    struct fad_op *asked; /* the caller's */
};

/* In the order of the memory stream of the device, which is the thread's current one. Any thread. 0
 * or a status. */
static int alloc(struct cuda_device *device, struct fad_region *region)
{
    return cuda_status(device,
                       cudaMallocFromPoolAsync(&region->base, region->source.size, device->pool,
                                               device->memory.stream),
                       "device memory");
}

static void on_allocated(struct cuda_backend *backend, struct cuda_fence *fence, int status)
{
    cuda_complete(backend, fence->subject, status, NULL);
}

/* The memory is anyone's to use when the allocation's turn on its stream has come, about
 * expected_ns from now. */
static int open_allocated(struct cuda_device *device, struct fad_region *region,
                          uint64_t expected_ns, struct fad_op *op)
{
    cudaStream_t stream = device->memory.stream;
    struct cuda_fence *fence;
    int status = cuda_fence_new(device, &fence);

    region->size = region->source.size;
    if (status == 0 && !region->source.uncleared) {
        status = cuda_status(device, cudaMemsetAsync(region->base, 0, region->size, stream),
                             "clearing device memory");
        if (status != 0)
            cuda_fence_drop(device, fence);
    }
    if (status != 0) {
        (void)cudaFreeAsync(region->base, stream);
        return status;
    }
    fence->reached = on_allocated;
    fence->subject = op;
    return cuda_fence_put(&device->memory, fence, expected_ns);
}

static void unuse(struct cuda_device *device, uint64_t size)
{
    device->used_bytes -= size;
    if (device->used_bytes == 0)
        device->unused_ns = uv_hrtime();
}

static bool run_alloc(struct fad_op *op, void *scratch)
{
    struct growth *growth = op->subject;

    (void)scratch;
    (void)cuda_use(growth->device);
    op->status = alloc(growth->device, growth->region);
    return false;
}

static void on_grown(struct fad_op *op)
{
    struct growth *growth = op->subject;
    struct cuda_device *device = growth->device;
    int status = op->status;

    if (status == 0)
        status = open_allocated(device, growth->region, CUDA_BRIEF_NS + 1, growth->asked);
    if (status == 0) {
        cuda_wake_later(device->backend); /* no call was taken just now: nobody polls */
    } else {
        unuse(device, growth->region->source.size);
        cuda_complete(device->backend, growth->asked, status, NULL);
    }
    free(growth);
}

static int alloc_by_worker(struct cuda_device *device, struct fad_region *region, struct fad_op *op)
{
    struct growth *growth = calloc(1, sizeof *growth);

    if (!growth)
        return FA_RESOURCE_EXHAUSTED;
    *growth = (struct growth){.device = device, .region = region, .asked = op};
    growth->op.done = on_grown;
    fad_op_prepare(&growth->op, run_alloc, growth);
    fad_worker_give(&device->worker, &growth->op);
    return 0;
}

static int open_owned(struct cuda_device *device, struct fad_region *region, struct fad_op *op)
{
    int status;

    if (region->source.size > LOOP_ALLOC_MAX) {
        status = alloc_by_worker(device, region, op);
    } else {
        (void)cuda_use(device);
        if ((status = alloc(device, region)) == 0)
            status = open_allocated(device, region, 0, op);
    }
    if (status != 0)
        return status;
    device->used_bytes += region->source.size;
    cuda_pool_used(device);
    return 0;
}

static void close_owned(struct cuda_device *device, struct fad_region *region, struct fad_op *op)
{
    if (!cuda_is_lost(device->backend)) {
        (void)cuda_use(device);
        (void)cuda_status(device, cudaFreeAsync(region->base, device->memory.stream),
                          "giving device memory back");
    }
    unuse(device, region->size);
    cuda_complete(device->backend, op, 0, NULL);
}

int cuda_region_open(struct fad_backend *base, struct fad_region *region, struct fad_op *op)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_device *device = &backend->parts[region->source.device];
    int status;

    assert(region->source.device < base->device_count);
    if (cuda_is_lost(backend))
        return -EIO;
    switch (region->source.kind) {
    case FAD_REGION_OWNED:
        return open_owned(device, region, op);
    case FAD_REGION_IPC:
        return cuda_ipc_open(device, region, op);
    case FAD_REGION_MEMFD:
        if ((status = fad_host_open(region)) == 0)
            cuda_complete(backend, op, 0, NULL);
        return status;
    }
    return FA_INTERNAL;
}

int cuda_region_close(struct fad_backend *base, struct fad_region *region, struct fad_op *op)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    struct cuda_device *device = &backend->parts[region->source.device];

    switch (region->source.kind) {
    case FAD_REGION_OWNED:
        close_owned(device, region, op);
        break;
    case FAD_REGION_IPC:
        cuda_ipc_close(device, region, op);
        break;
    case FAD_REGION_MEMFD:
        fad_host_close(region, op, &backend->closer);
        break;
    }
    return 0;
}

/* --- What the pool keeps --------------------------------------------------------------------- */

/* All but CUDA_POOL_KEPT goes back when no memory has been used for so long. */
#define POOL_IDLE_NS ((uint64_t)5000000000u)

void cuda_pool_used(struct cuda_device *device)
{
    device->may_trim = true;
    device->unused_ns = uv_hrtime();
}

static bool run_trim(struct fad_op *op, void *scratch)
{
    struct cuda_device *device = op->subject;

    (void)scratch;
    (void)cuda_use(device);
    (void)cudaMemPoolTrimTo(device->pool, CUDA_POOL_KEPT);
    __atomic_store_n(&device->trimming, false, __ATOMIC_RELEASE);
    return false;
}

void cuda_memory_tick(struct cuda_device *device, uint64_t now_ns)
{
    if (!device->may_trim || device->used_bytes > 0 || now_ns < device->unused_ns + POOL_IDLE_NS ||
        __atomic_exchange_n(&device->trimming, true, __ATOMIC_ACQ_REL))
        return;
    device->may_trim = false;
    fad_op_prepare(&device->trim, run_trim, device); /* done stays NULL: nobody waits for it */
    fad_worker_give(&device->worker, &device->trim);
}
