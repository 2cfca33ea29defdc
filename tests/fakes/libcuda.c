/* libcuda.c: a libcuda.so.1 that plays a machine, for the tests of fa-cli doctor. $FAKE_CUDA says
 * which: words separated by spaces, "init=803" (what cuInit returns), "version=13000", and for each
 * GPU "gpu=ID,ARCH,MODE,CONTEXT,EXPORT": the first byte of its UUID, its compute capability as 90,
 * its compute mode, and what making a context and an IPC handle return. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL __attribute__((visibility("default"))) int

struct gpu {
    int id, arch, mode, context, export;
};

static int setting(const char *name, int otherwise)
{
    const char *machine = getenv("FAKE_CUDA");
    const char *found = machine ? strstr(machine, name) : NULL;

    return found ? (int)strtol(found + strlen(name), NULL, 10) : otherwise;
}

/* How many there are; the one at index, if it is among them, goes to *out. */
static int find_gpu(int index, struct gpu *out)
{
    const char *next = getenv("FAKE_CUDA");
    int count = 0;

    while (next && (next = strstr(next, "gpu="))) {
        struct gpu gpu;

        if (sscanf(next, "gpu=%d,%d,%d,%d,%d", &gpu.id, &gpu.arch, &gpu.mode, &gpu.context,
                   &gpu.export) != 5)
            abort();
        if (count++ == index)
            *out = gpu;
        next++;
    }
    return count;
}

/* Of the context that is pushed: contexts are told apart by their addresses. */
static char contexts[16];
static int current;

static struct gpu gpu_at(int device)
{
    struct gpu gpu = {0};

    find_gpu(device, &gpu);
    return gpu;
}

CALL cuInit(unsigned flags);
CALL cuInit(unsigned flags)
{
    (void)flags;
    return setting("init=", 0);
}

CALL cuDriverGetVersion(int *out);
CALL cuDriverGetVersion(int *out)
{
    *out = setting("version=", 13000);
    return 0;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CALL cuGetErrorName(int code, const char **out);
CALL cuGetErrorName(int code, const char **out)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == code)
            return *out = errors[i].name, 0;
    return 1;
}

CALL cuGetErrorString(int code, const char **out);
CALL cuGetErrorString(int code, const char **out)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == code)
            return *out = errors[i].text, 0;
    return 1;
}

CALL cuDeviceGetCount(int *out);
CALL cuDeviceGetCount(int *out)
{
    struct gpu gpu;

    *out = find_gpu(-1, &gpu);
    return 0;
}

CALL cuDeviceGet(int *out, int index);
CALL cuDeviceGet(int *out, int index)
{
    *out = index;
    return 0;
}

CALL cuDeviceGetName(char *out, int size, int device);
CALL cuDeviceGetName(char *out, int size, int device)
{
    snprintf(out, (size_t)size, "Fake GPU %d", gpu_at(device).id);
    return 0;
}

CALL cuDeviceGetUuid_v2(void *out, int device);
CALL cuDeviceGetUuid_v2(void *out, int device)
{
    memset(out, 0, 16);
    *(unsigned char *)out = (unsigned char)gpu_at(device).id;
    return 0;
}

CALL cuDeviceTotalMem_v2(size_t *out, int device);
CALL cuDeviceTotalMem_v2(size_t *out, int device)
{
    (void)device;
    *out = (size_t)80 << 30;
    return 0;
}

CALL cuDeviceGetAttribute(int *out, int which, int device);
CALL cuDeviceGetAttribute(int *out, int which, int device)
{
    const struct gpu gpu = gpu_at(device);

    *out = which == 20 ? gpu.mode : which == 75 ? gpu.arch / 10 : which == 76 ? gpu.arch % 10 : 1;
    return 0;
}

CALL cuDevicePrimaryCtxRetain(void **out, int device);
CALL cuDevicePrimaryCtxRetain(void **out, int device)
{
    *out = &contexts[device];
    return gpu_at(device).context;
}

CALL cuDevicePrimaryCtxRelease_v2(int device);
CALL cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return 0;
}

CALL cuCtxPushCurrent_v2(void *context);
CALL cuCtxPushCurrent_v2(void *context)
{
    current = (int)((char *)context - contexts);
    return 0;
}

CALL cuCtxPopCurrent_v2(void **out);
CALL cuCtxPopCurrent_v2(void **out)
{
    *out = &contexts[current];
    return 0;
}

CALL cuMemGetInfo_v2(size_t *left, size_t *total);
CALL cuMemGetInfo_v2(size_t *left, size_t *total)
{
    *total = (size_t)80 << 30;
    *left = (size_t)79 << 30;
    return 0;
}

CALL cuMemAlloc_v2(unsigned long long *out, size_t size);
CALL cuMemAlloc_v2(unsigned long long *out, size_t size)
{
    *out = size;
    return 0;
}

CALL cuMemFree_v2(unsigned long long memory);
CALL cuMemFree_v2(unsigned long long memory)
{
    (void)memory;
    return 0;
}

CALL cuIpcGetMemHandle(void *out, unsigned long long memory);
CALL cuIpcGetMemHandle(void *out, unsigned long long memory)
{
    (void)memory;
    memset(out, 1, 64);
    return gpu_at(current).export;
}
