#include "tests/helpers/scripted.h"

#include "daemon/backend/completions.h"

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
    for (unsigned d = 0; d < 2; d++) {
        scripted.devices[d].streams = 2;
        scripted.devices[d].memory_bytes = 1 << 30;
        memset(scripted.devices[d].uuid, (int)(d + 1), sizeof scripted.devices[d].uuid);
        snprintf(scripted.devices[d].name, sizeof scripted.devices[d].name, "scripted %u", d);
    }
    scripted.base = (struct fad_backend){
        .ops = &scripted_ops, .opens_ipc = true, .devices = scripted.devices, .device_count = 2};
}

static void run_range(struct fad_range_op *range)
{
    size_t size = range->kernel->scratch(range->launch.problem);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);

    ck_assert_ptr_nonnull(scratch);
    range->launch.scratch = scratch;
    range->op.status = range->kernel->launch(&range->launch);
    range->op.started_ns = scripted.now_ns += 1000;
    range->op.finished_ns = scripted.now_ns + 1000;
    free(scratch);
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
        region->size = scripted.ipc_size;
        region->base = calloc(1, region->size);
        ck_assert_ptr_nonnull(region->base);
    }
    op->status = 0;
    scripted.open_regions++;
}

static void close_region(struct fad_region *region, struct fad_op *op)
{
    if (region->source.kind == FAD_REGION_MEMFD)
        munmap(region->base, region->size);
    else
        free(region->base);
    op->status = 0;
    scripted.open_regions--;
}

static void complete(const struct scripted_held *held)
{
    struct fad_op *op = held->op;
    int fail = scripted.fail[held->call];

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

    ck_assert_uint_lt(index, scripted.held_count);
    held = scripted.held[index];
    memmove(&scripted.held[index], &scripted.held[index + 1],
            (--scripted.held_count - index) * sizeof held);
    complete(&held);
}

static int take(struct scripted_held held)
{
    scripted.calls[held.call]++;
    if (scripted.refuse[held.call]) {
        if (held.call == SCRIPTED_OPEN && held.region->source.kind == FAD_REGION_MEMFD)
            close(held.region->source.fd);
        return scripted.refuse[held.call];
    }
    if (scripted.hold[held.call] || scripted.polled) {
        ck_assert_uint_lt(scripted.held_count, 64);
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
    memcpy(what->to, what->from, what->size);
    return take((struct scripted_held){.op = &what->op, .call = SCRIPTED_COPY});
}

static int launch_range(struct fad_backend *backend, struct fad_range_op *range)
{
    (void)backend;
    return take((struct scripted_held){.op = &range->op, .call = SCRIPTED_LAUNCH, .range = range});
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
    .launch_range = launch_range,
    .poll = poll,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .deinit = deinit,
};
