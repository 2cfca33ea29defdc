/* See fake_cuda.h. Devices, contexts, and what is known of memory. */
#include "tests/helpers/fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY_MAX 256
#define CALLS_MAX  32
#define CONTEXTS   8

struct call {
    const char *name;
    unsigned count;
    int fails;
};

static struct context contexts[DEVICES] = {{.device = 0}, {.device = 1}};
static struct memory memories[MEMORY_MAX];
static struct call calls[CALLS_MAX];
static size_t memory_count, call_count;
static uint64_t last_id;
static _Thread_local struct context *stack[CONTEXTS];
static _Thread_local int depth;

/* --- Calls ----------------------------------------------------------------------------------- */

static struct call *call_of(const char *name)
{
    for (size_t i = 0; i < call_count; i++)
        if (!strcmp(calls[i].name, name))
            return &calls[i];
    if (call_count == CALLS_MAX)
        abort();
    calls[call_count] = (struct call){.name = name};
    return &calls[call_count++];
}

int fake_driver_enter(const char *name)
{
    struct call *call = call_of(name);
    const char *given = getenv("FAKE_CUDA_FAIL");
    const size_t length = strlen(name);

    call->count++;
    if (given && !strncmp(given, name, length) && given[length] == '=')
        return (int)strtol(given + length + 1, NULL, 10);
    return call->fails;
}

static unsigned count_calls(const char *name)
{
    return call_of(name)->count;
}

static void let_fail(const char *name, int result)
{
    call_of(name)->fails = result;
}

/* --- Memory ---------------------------------------------------------------------------------- */

struct memory *fake_driver_find(uint64_t pointer)
{
    for (size_t i = 0; i < memory_count; i++) {
        struct memory *m = &memories[i];

        if (m->id && pointer >= (uintptr_t)m->base && pointer < (uintptr_t)m->base + m->size)
            return m;
    }
    return NULL;
}

/* An address range of that size: a freed one, else new. */
static struct memory *reserve(size_t size)
{
    struct memory *m = &memories[memory_count];

    for (size_t i = 0; i < memory_count; i++)
        if (memories[i].id == 0 && memories[i].size == size)
            return &memories[i];
    if (memory_count == MEMORY_MAX)
        return NULL;
    m->base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->base == MAP_FAILED)
        return NULL;
    m->size = size;
    memory_count++;
    return m;
}

struct memory *fake_driver_new(enum fake_cuda_kind kind, int device, size_t size)
{
    struct memory *m = reserve(size);

    if (!m)
        return NULL;
    m->fd = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)size) != 0)
        abort();
    if (kind == FAKE_CUDA_PINNED) /* the host may touch it */
        m->bytes = mmap(m->base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->fd, 0);
    else
        m->bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (m->bytes == MAP_FAILED)
        abort();
    memset(m->bytes, 0xcd, size);
    m->id = ++last_id;
    m->kind = kind;
    m->device = device;
    return m;
}

void fake_driver_end(struct memory *m)
{
    if (m->bytes == m->base) {
        if (mmap(m->base, m->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            abort();
    } else {
        munmap(m->bytes, m->size);
    }
    close(m->fd);
    m->id = 0;
}

static void *make(enum fake_cuda_kind kind, int device, size_t size)
{
    contexts[device].made++;
    return fake_driver_new(kind, device, size)->base;
}

static void drop(void *pointer)
{
    struct memory *m = fake_driver_find((uintptr_t)pointer);

    contexts[m->device].made--;
    fake_driver_end(m);
}

void *fake_driver_bytes(const void *pointer)
{
    const struct memory *m = fake_driver_find((uintptr_t)pointer);

    return m ? m->bytes + ((const char *)pointer - m->base) : NULL;
}

static uint64_t id_of(const void *pointer)
{
    return fake_driver_find((uintptr_t)pointer)->id;
}

/* --- Devices and contexts -------------------------------------------------------------------- */

int cuInit(unsigned flags)
{
    const char *devices = getenv("FAKE_CUDA_DEVICES");

    BEGIN();
    if (flags)
        return INVALID_VALUE;
    return devices && !strcmp(devices, "0") ? NO_DEVICE : SUCCESS;
}

int cuGetErrorName(int result, const char **out)
{
    *out = result == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
           : result == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
           : result == NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
           : result == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                       : NULL;
    return *out ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int result, const char **out)
{
    *out = result == OUT_OF_MEMORY ? "out of memory" : "something is wrong";
    return SUCCESS;
}

int cuDeviceGetCount(int *out)
{
    BEGIN();
    *out = DEVICES;
    return SUCCESS;
}

int cuDeviceGet(int *out, int ordinal)
{
    BEGIN();
    *out = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetUuid_v2(uint8_t out[16], int device)
{
    BEGIN();
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)i;
    out[0] = device ? 0xbb : 0xaa;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    BEGIN();
    contexts[device].retained++;
    *out = &contexts[device];
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN();
    return contexts[device].retained-- > 0 ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxPushCurrent_v2(void *context)
{
    BEGIN();
    if (depth == CONTEXTS || !context)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **out)
{
    BEGIN();
    if (depth == 0)
        return INVALID_CONTEXT;
    *out = stack[--depth];
    return SUCCESS;
}

const struct context *fake_driver_current(void)
{
    const struct context *top = depth > 0 ? stack[depth - 1] : NULL;

    return top && top->made + top->retained > 0 ? top : NULL;
}

static int pushed(void)
{
    return depth;
}

static int retained(void)
{
    return contexts[0].retained + contexts[1].retained;
}

static void use(int device)
{
    depth = 0;
    if (device >= 0)
        stack[depth++] = &contexts[device];
}

/* --- What is known of memory ----------------------------------------------------------------- */

int cuPointerGetAttribute(void *out, int attribute, uint64_t pointer)
{
    const struct memory *m = fake_driver_find(pointer);
    static char pool;

    BEGIN();
    if (!m)
        return INVALID_VALUE;
    switch (attribute) { /* each of its own width */
    case 1:
        *(void **)out =
            m->kind == FAKE_CUDA_POOL || m->kind == FAKE_CUDA_VIRTUAL ? NULL : &contexts[m->device];
        return SUCCESS;
    case 2:
        *(unsigned *)out = m->kind == FAKE_CUDA_PINNED ? 1 : 2;
        return SUCCESS;
    case 7:
        *(uint64_t *)out = m->id;
        return SUCCESS;
    case 8:
        *(uint8_t *)out = m->kind == FAKE_CUDA_MANAGED;
        return SUCCESS;
    case 9:
        *(int *)out = m->device;
        return SUCCESS;
    case 10:
        *(uint8_t *)out = m->kind == FAKE_CUDA_PLAIN;
        return SUCCESS;
    case 17:
        *(void **)out = m->kind == FAKE_CUDA_POOL ? &pool : NULL;
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t pointer)
{
    const struct memory *m = fake_driver_find(pointer);

    BEGIN();
    if (!fake_driver_current())
        return INVALID_CONTEXT;
    if (!m)
        return INVALID_VALUE;
    *base = (uintptr_t)m->base;
    *size = m->size;
    return SUCCESS;
}

int cuIpcGetMemHandle(struct fake_cuda_handle *out, uint64_t base)
{
    const struct memory *m = fake_driver_find(base);

    BEGIN();
    if (!m || (uintptr_t)m->base != base || m->kind != FAKE_CUDA_PLAIN)
        return INVALID_VALUE;
    if (!fake_driver_current() || fake_driver_current()->device != m->device)
        return INVALID_CONTEXT;
    *out = (struct fake_cuda_handle){.magic = FAKE_CUDA_MEMORY,
                                     .pid = getpid(),
                                     .fd = m->fd,
                                     .device = (uint32_t)m->device,
                                     .base = base,
                                     .size = m->size,
                                     .id = m->id};
    return SUCCESS;
}

/* --- For the test ---------------------------------------------------------------------------- */

extern const struct fake_cuda fake_cuda_control;
const struct fake_cuda fake_cuda_control = {
    make,     drop,   fake_driver_bytes, id_of, fake_driver_event, fake_driver_awaited, count_calls,
    let_fail, pushed, retained,          use};
