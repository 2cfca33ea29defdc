#include "client/cuda_memory.h"

/* --- Finding memory -------------------------------------------------------------------------- */

/* A pointer's attribute; 0 when it has none. Attributes have one to eight bytes, of which a zeroed
 * number takes any on a little-endian host, and there are no others with CUDA. */
static uint64_t attribute(const struct fa_cuda_driver *driver, int which, const void *pointer)
{
    uint64_t value = 0;
    int result = driver->pointer_attribute(&value, which, (uintptr_t)pointer);

    return result == FA_CU_SUCCESS ? value : 0;
}

enum fa_status fa_cuda_find(const void *pointer, struct fa_cuda_home *out, struct fa_error *error)
{
    const struct fa_cuda_driver *driver = fa_cuda_driver(error);
    uint64_t type, ordinal = 0;

    if (!driver)
        return error->status;
    type = attribute(driver, FA_CU_MEMORY_TYPE, pointer);
    if (type == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, NULL,
                            "is no pointer to device memory: the CUDA driver does not know it");
    if (type == FA_CU_HOST && !attribute(driver, FA_CU_IS_MANAGED, pointer))
        return fa_error_set(error, FA_INVALID_ARGUMENT, NULL,
                            "points to host memory, which FA_CUDA_NO is for");
    out->driver = driver;
    if (driver->pointer_attribute(&ordinal, FA_CU_DEVICE_ORDINAL, (uintptr_t)pointer) !=
            FA_CU_SUCCESS ||
        driver->device_get(&out->device, (int)ordinal) != FA_CU_SUCCESS)
        return fa_error_set(error, FA_INVALID_ARGUMENT, NULL, "is on no device");
    out->context = (void *)(uintptr_t)attribute(driver, FA_CU_CONTEXT, pointer);
    return FA_OK;
}

uint64_t fa_cuda_memory_id(const void *pointer)
{
    struct fa_error error;
    const struct fa_cuda_driver *driver = fa_cuda_driver(&error);

    return driver ? attribute(driver, FA_CU_BUFFER_ID, pointer) : 0;
}

/* What of memory cannot be shared, or NULL. */
static const char *unshareable(const struct fa_cuda_driver *driver, const void *pointer)
{
    if (attribute(driver, FA_CU_IS_MANAGED, pointer))
        return "managed memory (cudaMallocManaged)";
    if (attribute(driver, FA_CU_MEMPOOL_HANDLE, pointer))
        return "pool memory (cudaMallocAsync)";
    if (!attribute(driver, FA_CU_IS_LEGACY_IPC_CAPABLE, pointer))
        return "memory of the virtual memory management (cuMemCreate; PyTorch's expandable "
               "segments), or another process's";
    return NULL;
}

enum fa_status fa_cuda_export(const void *pointer, struct fa_cuda_memory *out,
                              struct fa_error *error)
{
    enum fa_status status = fa_cuda_find(pointer, &out->home, error);
    const struct fa_cuda_driver *driver;
    const char *what;
    char text[128];
    size_t size = 0;
    int result;

    if (status != FA_OK)
        return status;
    driver = out->home.driver;
    what = unshareable(driver, pointer);
    if (what)
        return fa_error_set(error, FA_IPC_REFUSED, NULL,
                            "is %s, which CUDA IPC cannot share; allocate with cudaMalloc, use "
                            "FA_CUDA_COPY, or copy it to a region",
                            what);
    out->id = attribute(driver, FA_CU_BUFFER_ID, pointer);
    result = fa_cuda_enter(&out->home);
    if (result == FA_CU_SUCCESS) {
        result = driver->address_range(&out->base, &size, (uintptr_t)pointer);
        if (result == FA_CU_SUCCESS)
            result = driver->device_uuid(out->uuid, out->home.device);
        if (result == FA_CU_SUCCESS)
            result = driver->memory_handle(&out->handle, out->base);
        fa_cuda_leave(&out->home);
    }
    if (result != FA_CU_SUCCESS)
        return fa_error_set(
            error, FA_IPC_REFUSED, NULL,
            "the CUDA driver gives no IPC handle of it: %s; use FA_CUDA_COPY, or copy "
            "it to a region",
            fa_cuda_text(result, text, sizeof text));
    out->size = size;
    return FA_OK;
}

/* --- Events ---------------------------------------------------------------------------------- */

enum fa_status fa_cuda_export_event(void *event, const struct fa_cuda_home *home,
                                    struct fa_cuda_handle *out, struct fa_error *error)
{
    char text[128];
    int result = fa_cuda_enter(home);

    if (result == FA_CU_SUCCESS) {
        result = home->driver->event_handle(out, event);
        fa_cuda_leave(home);
    }
    if (result != FA_CU_SUCCESS)
        return fa_error_set(error, FA_IPC_REFUSED, NULL,
                            "the CUDA driver gives no IPC handle of it: %s; make it with "
                            "cudaEventInterprocess | cudaEventDisableTiming",
                            fa_cuda_text(result, text, sizeof text));
    return FA_OK;
}

enum fa_status fa_cuda_await_event(void *event, const struct fa_cuda_home *home,
                                   struct fa_error *error)
{
    int result = fa_cuda_enter(home);

    if (result == FA_CU_SUCCESS) {
        result = home->driver->event_wait(event);
        fa_cuda_leave(home);
    }
    return fa_cuda_failed(error, result, "wait for it");
}

/* --- Copying --------------------------------------------------------------------------------- */

static int copy_bytes(const struct fa_cuda_driver *driver, char *device, char *host, size_t size,
                      bool gather)
{
    const uint64_t d = (uintptr_t)device, h = (uintptr_t)host;

    return gather ? driver->copy(h, d, size) : driver->copy(d, h, size);
}

/* The rows of one (batch, head). Those of an input may overlap, which no driver's copy can do. */
static int copy_head(const struct fa_copy *copy, char *first, char *packed, bool gather)
{
    const struct fa_cuda_driver *driver = copy->home.driver;
    const size_t width = copy->extents.width * copy->element, count = copy->extents.rows;
    const size_t pitch = (size_t)copy->strides.row * copy->element;
    struct fa_cuda_side device = {.type = FA_CU_DEVICE, .device = (uintptr_t)first, .pitch = pitch};
    struct fa_cuda_side host = {.type = FA_CU_HOST, .host = packed, .pitch = width};
    int result = FA_CU_SUCCESS;

    if (count == 1 || pitch == width)
        return copy_bytes(driver, first, packed, count * width, gather);
    if (pitch > width)
        return driver->copy_2d(&(struct fa_cuda_copy_2d){gather ? device : host,
                                                         gather ? host : device, width, count});
    for (size_t i = 0; i < count && result == FA_CU_SUCCESS; i++)
        result = copy_bytes(driver, first + i * pitch, packed + i * width, width, gather);
    return result;
}

static int copy_heads(const struct fa_copy *copy, bool gather)
{
    const struct fa_extents e = copy->extents;
    const size_t head_bytes = (size_t)e.rows * e.width * copy->element;
    char *packed = copy->packed;
    int result = FA_CU_SUCCESS;

    for (uint32_t b = 0; b < e.batch && result == FA_CU_SUCCESS; b++) {
        for (uint32_t h = 0; h < e.heads && result == FA_CU_SUCCESS; h++) {
            int64_t first = b * copy->strides.batch + h * copy->strides.head;

            result = copy_head(copy, copy->data + (uint64_t)first * copy->element, packed, gather);
            packed += head_bytes;
        }
    }
    /* A copy from pageable memory returns before its last bytes are there. */
    return result == FA_CU_SUCCESS && !gather ? copy->home.driver->stream_wait(NULL) : result;
}

enum fa_status fa_cuda_copy_rows(const struct fa_copy *copy, bool gather, struct fa_error *error)
{
    int result = fa_cuda_enter(&copy->home);

    if (result == FA_CU_SUCCESS) {
        result = copy_heads(copy, gather);
        fa_cuda_leave(&copy->home);
    }
    return fa_cuda_failed(error, result,
                          gather ? "copy it to host memory" : "copy it to the device");
}
