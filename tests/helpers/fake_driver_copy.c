/* See fake_cuda.h. Events, allocating and copying. */
#include "tests/helpers/fake_driver.h"

#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX  8
#define PENDING_MAX 4096

struct event {
    uint32_t number;
    bool interprocess, awaited;
};

/* Bytes on their way to a device. */
struct pending {
    char *to, *data;
    size_t size;
};

static struct event events[EVENTS_MAX];
static struct pending pending[PENDING_MAX];
static size_t event_count, pending_count;

/* --- Events ---------------------------------------------------------------------------------- */

void *fake_driver_event(bool interprocess)
{
    struct event *event = &events[event_count++];

    if (event_count > EVENTS_MAX)
        abort();
    *event = (struct event){(uint32_t)event_count, interprocess, false};
    return event;
}

bool fake_driver_awaited(const void *event)
{
    return ((const struct event *)event)->awaited;
}

#ifndef FAKE_CUDA_OLD
int cuIpcGetEventHandle(struct fake_cuda_event_handle *out, const struct event *event)
{
    BEGIN();
    if (!event->interprocess)
        return INVALID_VALUE;
    if (!fake_driver_current())
        return INVALID_CONTEXT;
    *out = (struct fake_cuda_event_handle){.magic = FAKE_CUDA_EVENT, .number = event->number};
    return SUCCESS;
}
#endif

int cuEventSynchronize(struct event *event)
{
    BEGIN();
    event->awaited = true;
    return fake_driver_current() ? SUCCESS : INVALID_CONTEXT;
}

/* --- Allocating and copying ------------------------------------------------------------------ */

int cuMemAlloc_v2(uint64_t *out, size_t size)
{
    const struct memory *m;

    BEGIN();
    if (!fake_driver_current())
        return INVALID_CONTEXT;
    m = fake_driver_new(FAKE_CUDA_PLAIN, fake_driver_current()->device, size);
    *out = m ? (uintptr_t)m->base : 0;
    return m ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t pointer)
{
    struct memory *m = fake_driver_find(pointer);

    BEGIN();
    if (!fake_driver_current())
        return INVALID_CONTEXT;
    if (!m || (uintptr_t)m->base != pointer)
        return INVALID_VALUE;
    fake_driver_end(m);
    return SUCCESS;
}

/* Brings to the device what is on its way. */
static void flush(void)
{
    for (size_t i = 0; i < pending_count; i++) {
        memcpy(pending[i].to, pending[i].data, pending[i].size);
        free(pending[i].data);
    }
    pending_count = 0;
}

static int copy(uint64_t to, uint64_t from, size_t size)
{
    const struct memory *target = fake_driver_find(to), *source = fake_driver_find(from);
    char *t = (char *)(uintptr_t)to;
    const char *f = (const char *)(uintptr_t)from;

    if (!fake_driver_current())
        return INVALID_CONTEXT;
    if ((target && size > target->size - (to - (uintptr_t)target->base)) ||
        (source && size > source->size - (from - (uintptr_t)source->base)))
        return INVALID_VALUE;
    f = source ? fake_driver_bytes(f) : f;
    if (!target) {
        flush();
        memcpy(t, f, size);
        return SUCCESS;
    }
    if (pending_count == PENDING_MAX)
        flush();
    pending[pending_count] = (struct pending){fake_driver_bytes(t), malloc(size), size};
    memcpy(pending[pending_count++].data, f, size);
    return SUCCESS;
}

int cuMemcpy(uint64_t to, uint64_t from, size_t size)
{
    BEGIN();
    return copy(to, from, size);
}

/* CUDA_MEMCPY2D */
struct side {
    size_t x, y;
    int type; /* 1: host, 2: device */
    uint64_t host, device;
    void *array;
    size_t pitch;
};

struct copy_2d {
    struct side from, to;
    size_t width, height;
};

static uint64_t row_of(const struct side *side, size_t row)
{
    return (side->type == 1 ? side->host : side->device) + row * side->pitch;
}

int cuMemcpy2DUnaligned_v2(const struct copy_2d *given)
{
    int result = SUCCESS;

    BEGIN();
    if (given->from.pitch < given->width || given->to.pitch < given->width || given->from.x ||
        given->from.y || given->to.x || given->to.y ||
        (given->from.type == 1) == (fake_driver_find(row_of(&given->from, 0)) != NULL) ||
        (given->to.type == 1) == (fake_driver_find(row_of(&given->to, 0)) != NULL))
        return INVALID_VALUE;
    for (size_t i = 0; i < given->height && result == SUCCESS; i++)
        result = copy(row_of(&given->to, i), row_of(&given->from, i), given->width);
    return result;
}

int cuStreamSynchronize(void *stream)
{
    BEGIN();
    flush();
    return fake_driver_current() && !stream ? SUCCESS : INVALID_CONTEXT;
}
