#include "tests/helpers/scripted.h"

#include "daemon/backend/completions.h"
#include "daemon/backend/layout.h"

#include <assert.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct scripted scripted;

void scripted_reset(void)
{
    memset(&scripted, 0, sizeof scripted);
    scripted.host_memory = SIZE_MAX;
    scripted.ipc_size = 1 << 20;
    scripted.now_ns = 1000;
    for (unsigned d = 0; d < 2; d++) {
        scripted.devices[d].streams = 2;
        scripted.devices[d].memory_bytes = 1 << 30;
        memset(scripted.devices[d].uuid, (int)(d + 1), sizeof scripted.devices[d].uuid);
        snprintf(scripted.devices[d].name, sizeof scripted.devices[d].name, "scripted %u", d);
    }
    scripted.base = (struct fad_backend){
        .ops = &scripted_ops, .opens_ipc = true, .devices = scripted.devices, .device_count = 2};
}

/* Is the tensor's memory all on the device? */
static bool on_device(const void *tensor, struct fa_extents extents, struct fa_strides strides)
{
    uint64_t elements;

    if (!fa_span(extents, strides, &elements))
        return false;
    for (unsigned i = 0; i < scripted.open_regions; i++) {
        const struct fad_region *region = scripted.opened[i];
        const uint64_t offset = (uintptr_t)tensor - (uintptr_t)region->base;
        if (region->source.kind != FAD_REGION_MEMFD && offset <= region->size &&
            elements * sizeof(float) <= region->size - offset)
            return true;
    }
    return elements == 0;
}

static void check_tensors(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    const struct fa_tensors *tensors = launch->tensors;

    assert(on_device(tensors->q, fa_q_extents(problem), problem->q));
    assert(on_device(tensors->k, fa_kv_extents(problem), problem->k));
    assert(on_device(tensors->v, fa_kv_extents(problem), problem->v));
    assert(on_device(tensors->o, fa_q_extents(problem), problem->o));
    assert(!tensors->lse || on_device(tensors->lse, fa_lse_extents(problem), problem->lse));
}

static void run_range(struct fad_range_op *range)
{
    size_t size = range->kernel->scratch(range->launch.problem, range->launch.range.count);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);

    if (scripted.base.separate)
        check_tensors(&range->launch);
    assert(scratch); /* Check's own asserts write to a file each: too slow for ranges */
    range->launch.scratch = scratch;
    range->op.status = range->kernel->launch(&range->launch);
    free(scratch);
}

static uint64_t start_of(const struct scripted_held *held, uint64_t free_ns)
{
    return free_ns > held->taken_ns ? free_ns : held->taken_ns;
}

static void run_clock(const struct scripted_held *held)
{
    uint64_t *free_ns = &scripted.free_ns[held->range->device][held->range->stream];

    held->op->started_ns = start_of(held, *free_ns);
    held->op->finished_ns = *free_ns = held->op->started_ns + held->takes_ns;
    if (scripted.now_ns < *free_ns)
        scripted.now_ns = *free_ns;
}

bool scripted_first_end(unsigned *index, uint64_t *end_ns)
{
    uint64_t free_ns[2][SCRIPTED_STREAMS_MAX];

    memcpy(free_ns, scripted.free_ns, sizeof free_ns);
    *end_ns = UINT64_MAX;
    for (unsigned i = 0; i < scripted.held_count; i++) {
        const struct scripted_held *held = &scripted.held[i];
        uint64_t *at;
        if (held->call != SCRIPTED_LAUNCH)
            continue;
        at = &free_ns[held->range->device][held->range->stream];
        *at = start_of(held, *at) + held->takes_ns;
        if (*at < *end_ns) {
            *end_ns = *at;
            *index = i;
        }
    }
    return *end_ns != UINT64_MAX;
}

static void open_region(struct fad_region *region, struct fad_op *op)
{
    const struct fad_region_source *source = &region->source;

    if (source->kind == FAD_REGION_MEMFD) {
        region->base = mmap(NULL, source->size, PROT_READ | (source->writable ? PROT_WRITE : 0),
                            MAP_SHARED, source->fd, 0);
        ck_assert_ptr_ne(region->base, MAP_FAILED);
        close(source->fd);
        region->size = source->size;
    } else {
        region->size = source->kind == FAD_REGION_IPC ? scripted.ipc_size : source->size;
        region->base = aligned_alloc(64, (region->size + 63) / 64 * 64);
        ck_assert_ptr_nonnull(region->base);
        memset(region->base, source->uncleared ? SCRIPTED_POISON : 0, region->size);
    }
    op->status = 0;
    assert(scripted.open_regions < 64);
    scripted.opened[scripted.open_regions++] = region;
}

static void close_region(struct fad_region *region, struct fad_op *op)
{
    if (region->source.kind == FAD_REGION_MEMFD)
        munmap(region->base, region->size);
    else
        free(region->base);
    op->status = 0;
    for (unsigned i = 0; i < scripted.open_regions; i++)
        if (scripted.opened[i] == region)
            scripted.opened[i] = scripted.opened[scripted.open_regions - 1];
    scripted.open_regions--;
}

static void complete(const struct scripted_held *held)
{
    struct fad_op *op = held->op;
    int fail = scripted.fail[held->call];

    if (held->call == SCRIPTED_LAUNCH)
        run_clock(held);
    op->status = 0;
    op->text = fail ? "as the script says" : NULL;
    if (fail)
        op->status = fail;
    else if (held->call == SCRIPTED_LAUNCH)
        run_range(held->range);
    else if (held->call == SCRIPTED_OPEN)
        open_region(held->region, op);
    else if (held->call == SCRIPTED_CLOSE)
        close_region(held->region, op);
    else if (held->call == SCRIPTED_COPY)
        fad_copy_step(held->copy, held->copy->size);
    else if (held->wait->given_up)
        op->status = FA_CANCELLED;
    if (fail && held->call == SCRIPTED_OPEN && held->region->source.kind == FAD_REGION_MEMFD)
        close(held->region->source.fd);
    if (scripted.base.completions)
        fad_completions_push(scripted.base.completions, op);
    else
        op->done(op);
}

void scripted_finish(unsigned index)
{
    struct scripted_held held;

    assert(index < scripted.held_count);
    held = scripted.held[index];
    memmove(&scripted.held[index], &scripted.held[index + 1],
            (--scripted.held_count - index) * sizeof held);
    complete(&held);
}

static int take(struct scripted_held held)
{
    scripted.calls[held.call]++;
    if (scripted.refuse[held.call])
        return scripted.refuse[held.call];
    if (scripted.hold[held.call] || scripted.polled) {
        assert(scripted.held_count < 64);
        scripted.held[scripted.held_count++] = held;
    } else {
        complete(&held);
    }
    return 0;
}

static int probe(const struct fad_backend_config *config, struct fad_completions *completions,
                 struct fad_backend **out, struct fa_error *error)
{
    (void)config;
    (void)error;
    scripted.base.completions = completions;
    *out = &scripted.base;
    return 0;
}

static int region_open(struct fad_backend *backend, struct fad_region *region, struct fad_op *op)
{
    (void)backend;
    return take((struct scripted_held){.op = op, .call = SCRIPTED_OPEN, .region = region});
}

static int region_close(struct fad_backend *backend, struct fad_region *region, struct fad_op *op)
{
    (void)backend;
    return take((struct scripted_held){.op = op, .call = SCRIPTED_CLOSE, .region = region});
}

static int copy(struct fad_backend *backend, struct fad_copy *what)
{
    (void)backend;
    return take((struct scripted_held){.op = &what->op, .call = SCRIPTED_COPY, .copy = what});
}

static int event_wait(struct fad_backend *backend, struct fad_event_wait *wait)
{
    (void)backend;
    return take((struct scripted_held){.op = &wait->op, .call = SCRIPTED_EVENT, .wait = wait});
}

static int launch_range(struct fad_backend *backend, struct fad_range_op *range)
{
    (void)backend;
    assert(range->stream < SCRIPTED_STREAMS_MAX);
    return take(
        (struct scripted_held){.op = &range->op,
                               .call = SCRIPTED_LAUNCH,
                               .range = range,
                               .taken_ns = scripted.now_ns,
                               .takes_ns = scripted.takes_ns ? scripted.takes_ns(range) : 1000});
}

static bool poll(struct fad_backend *backend)
{
    (void)backend;
    scripted.polls++;
    for (unsigned i = 0; scripted.polled && i < scripted.held_count;) {
        if (scripted.hold[scripted.held[i].call])
            i++;
        else
            scripted_finish(i);
    }
    return scripted.held_count > 0 && !scripted.poll_no_more;
}

static void *host_alloc(struct fad_backend *backend, size_t size)
{
    void *memory;
    (void)backend;
    if (size > scripted.host_memory - scripted.host_used)
        return NULL;
    memory = aligned_alloc(64, (size + 63) / 64 * 64);
    ck_assert_ptr_nonnull(memory);
    scripted.host_used += size;
    return memory;
}

static void host_free(struct fad_backend *backend, void *memory, size_t size)
{
    (void)backend;
    scripted.host_used -= size;
    free(memory);
}

static void deinit(struct fad_backend *backend)
{
    (void)backend;
    ck_assert_uint_eq(scripted.held_count, 0);
    ck_assert_uint_eq(scripted.open_regions, 0);
    ck_assert_uint_eq(scripted.host_used, 0);
}

const struct fad_backend_ops scripted_ops = {
    .name = "scripted",
    .probe = probe,
    .region_open = region_open,
    .region_close = region_close,
    .copy = copy,
    .event_wait = event_wait,
    .launch_range = launch_range,
    .poll = poll,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .deinit = deinit,
};
