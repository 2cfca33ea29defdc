#include "client/cuda.h"
#include "client/cuda_load.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define OLDEST "470" /* the first driver that has all of these functions */

static const struct fa_cuda_symbol functions[] = {
    {"cuInit", offsetof(struct fa_cuda_driver, init)},
    {"cuGetErrorName", offsetof(struct fa_cuda_driver, error_name)},
    {"cuGetErrorString", offsetof(struct fa_cuda_driver, error_text)},
    {"cuDeviceGetCount", offsetof(struct fa_cuda_driver, device_count)},
    {"cuDeviceGet", offsetof(struct fa_cuda_driver, device_get)},
    {"cuDeviceGetUuid_v2", offsetof(struct fa_cuda_driver, device_uuid)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct fa_cuda_driver, primary_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(struct fa_cuda_driver, primary_release)},
    {"cuCtxPushCurrent_v2", offsetof(struct fa_cuda_driver, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(struct fa_cuda_driver, context_pop)},
    {"cuPointerGetAttribute", offsetof(struct fa_cuda_driver, pointer_attribute)},
    {"cuMemGetAddressRange_v2", offsetof(struct fa_cuda_driver, address_range)},
    {"cuIpcGetMemHandle", offsetof(struct fa_cuda_driver, memory_handle)},
    {"cuIpcGetEventHandle", offsetof(struct fa_cuda_driver, event_handle)},
    {"cuEventSynchronize", offsetof(struct fa_cuda_driver, event_wait)},
    {"cuMemAlloc_v2", offsetof(struct fa_cuda_driver, alloc)},
    {"cuMemFree_v2", offsetof(struct fa_cuda_driver, free)},
    {"cuMemcpy", offsetof(struct fa_cuda_driver, copy)},
    {"cuMemcpy2DUnaligned_v2", offsetof(struct fa_cuda_driver, copy_2d)},
    {"cuStreamSynchronize", offsetof(struct fa_cuda_driver, stream_wait)},
};

/* --- Loading --------------------------------------------------------------------------------- */

static struct fa_cuda_driver driver;
static struct fa_error load_error; /* status FA_OK: it is loaded and initialised */
static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *fa_cuda_text(int result, char *out, size_t size)
{
    const char *name = NULL, *text = NULL;

    driver.error_name(result, &name);
    driver.error_text(result, &text);
    if (name && text)
        snprintf(out, size, "%s (%s)", name, text);
    else
        snprintf(out, size, "CUDA error %d", result);
    return out;
}

static void load(void)
{
    struct fa_cuda_lack lack;
    char text[128];
    int result;

    if (!fa_cuda_load(&driver, functions, sizeof functions / sizeof functions[0], &lack)) {
        if (lack.function)
            fa_error_set(&load_error, FA_UNAVAILABLE, NULL,
                         "the CUDA driver here has no %s; install version " OLDEST " or later",
                         lack.function);
        else
            fa_error_set(&load_error, FA_UNAVAILABLE, NULL,
                         "no CUDA driver here: %s; install NVIDIA's driver, or use host memory",
                         lack.why);
        return;
    }
    result = driver.init(0);
    if (result != FA_CU_SUCCESS)
        fa_error_set(&load_error, FA_UNAVAILABLE, NULL,
                     "the CUDA driver here does not start: %s; see nvidia-smi, or use host memory",
                     fa_cuda_text(result, text, sizeof text));
}

const struct fa_cuda_driver *fa_cuda_driver(struct fa_error *error)
{
    pthread_once(&once, load);
    if (load_error.status == FA_OK)
        return &driver;
    *error = load_error;
    return NULL;
}

enum fa_status fa_cuda_failed(struct fa_error *error, int result, const char *wanted)
{
    enum fa_status status = FA_INTERNAL;
    char text[128];

    if (result == FA_CU_SUCCESS)
        return FA_OK;
    if (result == FA_CU_INVALID_VALUE)
        status = FA_INVALID_ARGUMENT;
    else if (result == FA_CU_OUT_OF_MEMORY)
        status = FA_RESOURCE_EXHAUSTED;
    return fa_error_set(error, status, NULL, "the CUDA driver cannot %s: %s", wanted,
                        fa_cuda_text(result, text, sizeof text));
}

/* --- Contexts -------------------------------------------------------------------------------- */

int fa_cuda_enter(const struct fa_cuda_home *home)
{
    void *context = home->context;
    int result = context ? FA_CU_SUCCESS : home->driver->primary_retain(&context, home->device);

    if (result != FA_CU_SUCCESS)
        return result;
    result = home->driver->context_push(context);
    if (result != FA_CU_SUCCESS && !home->context)
        home->driver->primary_release(home->device);
    return result;
}

void fa_cuda_leave(const struct fa_cuda_home *home)
{
    void *context;

    home->driver->context_pop(&context);
    if (!home->context)
        home->driver->primary_release(home->device);
}
