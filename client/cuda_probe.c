#include "client/cuda_probe.h"

#include "client/cuda_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUresult, CUdevice_attribute and the calls as cuda.h has them, which a build without the toolkit
 * lacks. */
enum {
    CUDA_SUCCESS = 0,
    ATTRIBUTE_COMPUTE_MODE = 20,
    ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_IPC_EVENTS = 125,
};

/* What is exported and freed again: an allocation of its own, whatever the driver rounds to. */
#define EXPORT_BYTES ((size_t)2 << 20)

struct ipc_handle {
    unsigned char bytes[64];
};

struct driver {
    int (*init)(unsigned);
    int (*driver_version)(int *);
    int (*error_name)(int, const char **);
    int (*error_text)(int, const char **);
    int (*count)(int *);
    int (*device)(int *, int);
    int (*name)(char *, int, int);
    int (*uuid)(void *, int);
    int (*total)(size_t *, int);
    int (*attribute)(int *, int, int);
    int (*retain)(void **, int);
    int (*give_back)(int);
    int (*push)(void *);
    int (*pop)(void **);
    int (*memory)(size_t *, size_t *);
    int (*alloc)(unsigned long long *, size_t);
    int (*free)(unsigned long long);
    int (*export)(struct ipc_handle *, unsigned long long);
};

#define CALL(member) offsetof(struct driver, member)
static const struct fa_cuda_symbol calls[] = {
    {"cuInit", CALL(init)},
    {"cuDriverGetVersion", CALL(driver_version)},
    {"cuGetErrorName", CALL(error_name)},
    {"cuGetErrorString", CALL(error_text)},
    {"cuDeviceGetCount", CALL(count)},
    {"cuDeviceGet", CALL(device)},
    {"cuDeviceGetName", CALL(name)},
    {"cuDeviceGetUuid_v2", CALL(uuid)},
    {"cuDeviceTotalMem_v2", CALL(total)},
    {"cuDeviceGetAttribute", CALL(attribute)},
    {"cuDevicePrimaryCtxRetain", CALL(retain)},
    {"cuDevicePrimaryCtxRelease_v2", CALL(give_back)},
    {"cuCtxPushCurrent_v2", CALL(push)},
    {"cuCtxPopCurrent_v2", CALL(pop)},
    {"cuMemGetInfo_v2", CALL(memory)},
    {"cuMemAlloc_v2", CALL(alloc)},
    {"cuMemFree_v2", CALL(free)},
    {"cuIpcGetMemHandle", CALL(export)},
};

/* The file that the driver's first function is in. */
static void keep_path(const struct driver *driver, struct cuda_probe *out)
{
    char path[PATH_MAX];
    void *function;
    Dl_info info;

    memcpy(&function, &driver->init, sizeof function);
    if (!function)
        return;
    if (!dladdr(function, &info) || !realpath(info.dli_fname, path))
        snprintf(path, sizeof path, "libcuda.so.1");
    snprintf(out->library, sizeof out->library, "%.*s", (int)sizeof out->library - 1, path);
}

static bool load(struct driver *driver, struct cuda_probe *out)
{
    struct fa_cuda_lack lack;
    bool loaded = fa_cuda_load(driver, calls, sizeof calls / sizeof calls[0], &lack);

    if (!loaded)
        snprintf(out->load_error, sizeof out->load_error, "%s", lack.why);
    keep_path(driver, out);
    return loaded;
}

/* Fills *out; returns whether it is a success. */
static bool note(const struct driver *driver, int code, struct cuda_probe_call *out)
{
    const char *name = NULL, *text = NULL;

    out->code = code;
    if (driver->error_name(code, &name) == CUDA_SUCCESS && name)
        snprintf(out->name, sizeof out->name, "%s", name);
    else
        snprintf(out->name, sizeof out->name, "error %d", code);
    if (driver->error_text(code, &text) == CUDA_SUCCESS && text)
        snprintf(out->text, sizeof out->text, "%s", text);
    return code == CUDA_SUCCESS;
}

/* 0 where the driver does not know the attribute. */
static int attribute(const struct driver *driver, int which, int device)
{
    int value = 0;

    return driver->attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

/* Within the device's context. */
static void try_memory(const struct driver *driver, struct cuda_probe_device *out)
{
    unsigned long long memory = 0;
    struct ipc_handle handle;
    size_t free_bytes = 0, total;
    int code;

    if (driver->memory(&free_bytes, &total) == CUDA_SUCCESS)
        out->free_bytes = free_bytes;
    code = driver->alloc(&memory, EXPORT_BYTES);
    if (code == CUDA_SUCCESS) {
        code = driver->export(&handle, memory);
        driver->free(memory);
    }
    note(driver, code, &out->ipc_export);
}

static void try_context(const struct driver *driver, int device, struct cuda_probe_device *out)
{
    void *context;

    if (!note(driver, driver->retain(&context, device), &out->context))
        return;
    if (note(driver, driver->push(context), &out->context)) {
        try_memory(driver, out);
        driver->pop(&context);
    }
    driver->give_back(device);
}

static void survey_device(const struct driver *driver, int index, struct cuda_probe_device *out)
{
    size_t total = 0;
    int device = 0;

    if (!note(driver, driver->device(&device, index), &out->context))
        return;
    driver->name(out->name, sizeof out->name, device);
    driver->uuid(out->uuid, device);
    driver->total(&total, device);
    out->memory_bytes = total;
    out->arch = 10 * attribute(driver, ATTRIBUTE_MAJOR, device) +
                attribute(driver, ATTRIBUTE_MINOR, device);
    out->mode = (enum cuda_probe_mode)attribute(driver, ATTRIBUTE_COMPUTE_MODE, device);
    out->unified_addressing = attribute(driver, ATTRIBUTE_UNIFIED_ADDRESSING, device) != 0;
    out->ipc_events = attribute(driver, ATTRIBUTE_IPC_EVENTS, device) != 0;
    try_context(driver, device, out);
}

static void read_module(struct cuda_probe *out)
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");

    if (!file)
        return;
    if (fgets(out->module, sizeof out->module, file))
        out->module[strcspn(out->module, "\n")] = '\0';
    fclose(file);
}

void cuda_probe(struct cuda_probe *out)
{
    struct driver driver = {0};
    int count = 0;

    *out = (struct cuda_probe){0};
    read_module(out);
    if (!load(&driver, out))
        return;
    if (driver.driver_version(&out->version) != CUDA_SUCCESS)
        out->version = 0;
    if (!note(&driver, driver.init(0), &out->init) ||
        !note(&driver, driver.count(&count), &out->init))
        return;
    for (int i = 0; i < count && i < CUDA_PROBE_DEVICES; i++)
        survey_device(&driver, i, &out->devices[out->device_count++]);
}
