/* See fake_cuda.h. Kernels: one that is launched is taken to have run, for FAKE_CUDA_KERNEL_MS. */
#include "tests/helpers/fake_driver.h"

#include <stdlib.h>
#include <string.h>

static char module, function; /* the only ones */
static struct event *start, *end;
static unsigned launches;

int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    BEGIN();
    (void)device;
    if (attribute != 16) /* processors */
        return INVALID_VALUE;
    *out = FAKE_CUDA_PROCESSORS;
    return SUCCESS;
}

int cuModuleLoadData(void **out, const void *image)
{
    BEGIN();
    if (!fake_driver_current())
        return INVALID_CONTEXT;
    if (strncmp(image, ".version ", 9) != 0)
        return INVALID_VALUE;
    *out = &module;
    return SUCCESS;
}

int cuModuleUnload(void *unloaded)
{
    BEGIN();
    return unloaded == &module && fake_driver_current() ? SUCCESS : INVALID_VALUE;
}

int cuModuleGetFunction(void **out, void *of, const char *name)
{
    BEGIN();
    if (of != &module || !*name)
        return INVALID_VALUE;
    *out = &function;
    return SUCCESS;
}

int cuEventCreate(struct event **out, unsigned flags)
{
    BEGIN();
    if (flags || !fake_driver_current())
        return INVALID_VALUE;
    *out = fake_driver_event(false);
    return SUCCESS;
}

int cuEventDestroy_v2(struct event *event)
{
    BEGIN();
    return event ? SUCCESS : INVALID_VALUE;
}

/* The one before a launch, and the one after it. */
int cuEventRecord(struct event *event, void *stream)
{
    BEGIN();
    if (stream || !fake_driver_current())
        return INVALID_VALUE;
    start = launches % 2 == 0 ? event : start;
    end = launches % 2 == 0 ? end : event;
    launches += launches % 2;
    return SUCCESS;
}

int cuLaunchKernel(void *launched, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **parameters, void **extra)
{
    BEGIN();
    if (launched != &function || !fake_driver_current() || stream || extra || shared_bytes ||
        !parameters || grid_x * grid_y * grid_z == 0 || block_x * block_y * block_z == 0)
        return INVALID_VALUE;
    launches++;
    return SUCCESS;
}

int cuEventElapsedTime(float *milliseconds, const struct event *from, const struct event *to)
{
    BEGIN();
    if (from != start || to != end || !fake_driver_awaited(to))
        return INVALID_VALUE;
    *milliseconds = FAKE_CUDA_KERNEL_MS;
    return SUCCESS;
}
