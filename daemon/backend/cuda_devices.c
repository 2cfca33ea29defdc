/* cuda_devices.c: which GPUs to serve on, and what each needs before the first request. */
#include "daemon/backend/cuda_parts.h"

#include "daemon/util/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Choosing -------------------------------------------------------------------------------- */

/* "GPU-" and 8-4-4-4-12 hex digits, as nvidia-smi -L prints it. */
#define UUID_TEXT 41

static void format_uuid(const cudaUUID_t *uuid, char out[UUID_TEXT])
{
    size_t length = (size_t)snprintf(out, UUID_TEXT, "GPU-");

    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        length += (size_t)snprintf(out + length, UUID_TEXT - length, "%s%02x",
                                   i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                   (unsigned char)uuid->bytes[i]);
}

static int no_cuda(struct fa_error *error, cudaError_t code)
{
    int driver = 0;

    (void)cudaGetLastError();
    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess) {
        if (driver == 0)
            fa_error_set(error, FA_UNIMPLEMENTED, "backend", "there is no NVIDIA driver");
        else
            fa_error_set(error, FA_UNIMPLEMENTED, "backend",
                         "the NVIDIA driver is for CUDA up to %d.%d, this fad needs %d.%d",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10);
        return -ENODEV;
    }
    fa_error_set(error, FA_UNIMPLEMENTED, "backend", "%s (%s)", cudaGetErrorString(code),
                 cudaGetErrorName(code));
    /* Anything else is a GPU that ought to work. */
    return code == cudaErrorNoDevice || code == cudaErrorStubLibrary ? -ENODEV : -EIO;
}

/* The ordinal that an entry of --device names, -1 for none. */
static int find_device(const char *entry, size_t length, int count)
{
    char *end;
    const long ordinal = strtol(entry, &end, 10);

    if (length > 0 && end == entry + length && ordinal >= 0 && ordinal < count)
        return (int)ordinal;
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp properties;
        char uuid[UUID_TEXT];

        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess)
            continue;
        format_uuid(&properties.uuid, uuid);
        if (length == strlen(uuid) && strncmp(uuid, entry, length) == 0)
            return i;
    }
    return -1;
}

/* Fills ordinals with what the list names. */
static int parse_list(const char *list, int count, int *ordinals, uint32_t *chosen,
                      struct fa_error *error)
{
    for (const char *entry = list;; entry++) {
        const size_t length = strcspn(entry, ",");
        const int ordinal = find_device(entry, length, count);
        bool twice = false;

        for (uint32_t i = 0; i < *chosen; i++)
            twice |= ordinals[i] == ordinal;
        if (ordinal < 0 || twice || *chosen == FAD_DEVICES_MAX) {
            fa_error_set(error, FA_INVALID_ARGUMENT, "device",
                         "'%.*s' %s; there are %d, from 0 on, and nvidia-smi -L lists their UUIDs",
                         (int)length, entry,
                         ordinal < 0 ? "names no GPU here"
                         : twice     ? "is there twice"
                                     : "is one too many",
                         count);
            return -EINVAL;
        }
        ordinals[(*chosen)++] = ordinal;
        entry += length;
        if (!*entry)
            return 0;
    }
}

/* --- Readying -------------------------------------------------------------------------------- */

static void describe(struct fad_device *out, const struct cudaDeviceProp *properties, int arch,
                     uint32_t streams)
{
    out->target = (struct fa_target){FA_CUDA, arch};
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, properties->name);
    memcpy(out->uuid, properties->uuid.bytes, sizeof out->uuid);
    out->memory_bytes = properties->totalGlobalMem;
    out->streams = streams;
    out->shared = true;
    out->express = streams / 2;
}

static int make_pool(struct cuda_device *device)
{
    struct cudaMemPoolProps properties = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = device->ordinal}};
    uint64_t keep_all = UINT64_MAX; /* else every wait for a stream would give memory back */
    int no = 0; /* an allocation waits for no other stream to give memory back */
    void *memory;
    int status =
        cuda_status(device, cudaMemPoolCreate(&device->pool, &properties), "a memory pool");

    if (status == 0)
        status = cuda_status(
            device,
            cudaMemPoolSetAttribute(device->pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
            "a memory pool");
    if (status == 0)
        status = cuda_status(
            device,
            cudaMemPoolSetAttribute(device->pool, cudaMemPoolReuseAllowInternalDependencies, &no),
            "a memory pool");
    /* The first allocation makes the pool grow. */
    if (status == 0)
        status = cuda_status(
            device,
            cudaMallocFromPoolAsync(&memory, CUDA_POOL_KEPT, device->pool, device->memory.stream),
            "device memory");
    if (status == 0)
        status = cuda_status(device, cudaFreeAsync(memory, device->memory.stream), "device memory");
    return status;
}

static int make_streams(struct cuda_device *device, uint32_t count)
{
    const uint32_t express = device->backend->devices[device - device->backend->parts].express;
    int low, high, status;

    if ((status = cuda_status(device, cudaDeviceGetStreamPriorityRange(&low, &high),
                              "stream priorities")) != 0 ||
        (status = cuda_queue_init(&device->in, device, high)) != 0 ||
        (status = cuda_queue_init(&device->out, device, high)) != 0)
        return status;
    device->streams = calloc(count, sizeof *device->streams);
    if (!device->streams)
        return -ENOMEM;
    while (device->stream_count < count) {
        const bool is_express = device->stream_count >= count - express;

        status = cuda_queue_init(&device->streams[device->stream_count], device,
                                 is_express ? high : low);
        if (status != 0)
            return status;
        device->stream_count++;
    }
    return 0;
}

static int begin_device(struct cuda_device *device, struct fad_device *out, uint32_t streams,
                        struct fa_error *error)
{
    struct cudaDeviceProp properties;
    enum fa_status prepared;
    int arch, status;

    if ((prepared = fa_cuda_prepare(&arch, error)) != FA_OK)
        return prepared == FA_UNIMPLEMENTED ? -ENODEV : -EIO;
    if (cudaGetDeviceProperties(&properties, device->ordinal) != cudaSuccess)
        return no_cuda(error, cudaErrorInvalidDevice);
    describe(out, &properties, arch, streams);
    if ((status = cuda_queue_init(&device->memory, device, 0)) == 0 &&
        (status = make_pool(device)) == 0)
        status = make_streams(device, streams);
    if (status == 0 &&
        (status = fad_worker_begin(&device->worker, device->backend->base.completions)) == 0)
        device->worker_started = true;
    if (status == 0)
        return 0;
    fa_error_set(error, FA_RESOURCE_EXHAUSTED, "backend",
                 status == FA_RESOURCE_EXHAUSTED || status == -ENOMEM
                     ? "GPU %d (%s) has no room for streams and memory of fad's"
                     : "GPU %d (%s) makes no streams and memory pool; the log says why",
                 device->ordinal, out->name);
    return status < 0 ? status : -ENOMEM;
}

static void end_device(struct cuda_device *device)
{
    struct cuda_fence *fence;

    (void)cuda_use(device);
    if (device->worker_started)
        fad_worker_end(&device->worker);
    cuda_handles_close(device);
    while ((fence = TAILQ_FIRST(&device->spare))) {
        TAILQ_REMOVE(&device->spare, fence, link);
        (void)cudaEventDestroy(fence->begin);
        (void)cudaEventDestroy(fence->end);
        free(fence);
    }
    for (uint32_t i = 0; i < device->stream_count; i++)
        cuda_queue_deinit(&device->streams[i]);
    free(device->streams);
    cuda_queue_deinit(&device->in);
    cuda_queue_deinit(&device->out);
    if (device->memory.stream)
        (void)cudaStreamSynchronize(device->memory.stream); /* frees what was given back */
    cuda_queue_deinit(&device->memory);
    if (device->pool)
        (void)cudaMemPoolDestroy(device->pool);
}

/* Readies GPU ordinal as the backend's next. On any status but 0 nothing of it is held. */
static int add_device(struct cuda_backend *backend, int ordinal, uint32_t streams,
                      struct fa_error *error)
{
    struct cuda_device *device = &backend->parts[backend->device_count];
    cudaError_t code;
    int status;

    *device = (struct cuda_device){.backend = backend, .ordinal = ordinal};
    TAILQ_INIT(&device->spare);
    TAILQ_INIT(&device->handles);
    if ((code = cuda_use(device)) != cudaSuccess)
        return no_cuda(error, code);
    status = begin_device(device, &backend->devices[backend->device_count], streams, error);
    if (status == 0) {
        backend->device_count++;
        return 0;
    }
    end_device(device);
    (void)cudaDeviceReset(); /* its context would keep memory */
    /* One that was lost so early is no matter to the others. */
    __atomic_store_n(&backend->lost, false, __ATOMIC_RELEASE);
    return status;
}

static int find_driver(struct cuda_backend *backend, struct fa_error *error)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    cudaError_t code = cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000,
                                                        cudaEnableDefault, &found);

    if (code != cudaSuccess)
        return no_cuda(error, code);
    if (found != cudaDriverEntryPointSuccess) {
        fa_error_set(error, FA_UNIMPLEMENTED, "backend", "the driver has no cuMemGetAddressRange");
        return -ENODEV;
    }
    memcpy(&backend->driver.get_address_range, &function, sizeof function);
    return 0;
}

/* Readies all that can be. What keeps one that ought to work from it is told, rather than that
 * another is no GPU for fad. */
static int add_any(struct cuda_backend *backend, int count, uint32_t streams,
                   struct fa_error *error)
{
    struct fa_error here;
    int status = -ENODEV;

    for (int i = 0; i < count && backend->device_count < FAD_DEVICES_MAX; i++) {
        const int r = add_device(backend, i, streams, &here);

        if (r == 0)
            continue;
        fad_log(r == -ENODEV ? FAD_LOG_INFO : FAD_LOG_ERROR, "GPU %d cannot serve: %s", i,
                here.text);
        if (status == -ENODEV) {
            status = r;
            *error = here;
        }
    }
    return backend->device_count > 0 ? 0 : status;
}

/* One that is named and is no GPU for fad is a wrong name. */
static int add_named(struct cuda_backend *backend, const char *list, int count, uint32_t streams,
                     struct fa_error *error)
{
    int ordinals[FAD_DEVICES_MAX] = {0}, status;
    uint32_t chosen = 0;

    status = parse_list(list, count, ordinals, &chosen, error);
    for (uint32_t i = 0; i < chosen && status == 0; i++)
        status = add_device(backend, ordinals[i], streams, error);
    return status == -ENODEV ? -EINVAL : status;
}

int cuda_devices_init(struct cuda_backend *backend, const struct fad_backend_config *config,
                      struct fa_error *error)
{
    int count, status;
    const cudaError_t code = cudaGetDeviceCount(&count);

    if (code != cudaSuccess)
        return no_cuda(error, code);
    status = config->devices ? add_named(backend, config->devices, count, config->streams, error)
                             : add_any(backend, count, config->streams, error);
    if (status != 0)
        return status;
    (void)cuda_use(&backend->parts[0]); /* what follows needs a context: not one given up */
    return find_driver(backend, error);
}

void cuda_devices_deinit(struct cuda_backend *backend)
{
    for (uint32_t i = 0; i < backend->device_count; i++)
        end_device(&backend->parts[i]);
}
