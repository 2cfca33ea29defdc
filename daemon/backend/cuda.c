#include "daemon/backend/cuda_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void on_handle_closed(uv_handle_t *handle)
{
    struct cuda_backend *backend = handle->data;

    if (--backend->handles == 0)
        free(backend);
}

static void close_handles(struct cuda_backend *backend)
{
    if (backend->handles > 1)
        uv_close((uv_handle_t *)&backend->waiter.woken, on_handle_closed);
    uv_close((uv_handle_t *)&backend->timer, on_handle_closed);
}

/* Its memory goes when the loop has closed its handles. */
static void cuda_deinit(struct fad_backend *base)
{
    struct cuda_backend *backend;

    if (!base)
        return;
    backend = cuda_backend_of(base);
    cuda_waiter_end(backend);
    cuda_copiers_end(backend);
    if (backend->closer_started)
        fad_worker_end(&backend->closer);
    cuda_devices_deinit(backend);
    cuda_pinned_deinit(&backend->pinned);
    if (backend->handles == 0)
        free(backend);
    else
        close_handles(backend);
}

static int init_handles(struct cuda_backend *backend)
{
    int r = uv_timer_init(cuda_loop(backend), &backend->timer);

    if (r < 0)
        return r;
    backend->handles++;
    backend->timer.data = backend->waiter.woken.data = backend;
    if ((r = uv_async_init(cuda_loop(backend), &backend->waiter.woken, cuda_on_woken)) == 0)
        backend->handles++;
    return r;
}

/* What is not a device's. */
static int begin_parts(struct cuda_backend *backend, const struct fad_backend_config *config,
                       struct fa_error *error)
{
    int r = cuda_pinned_init(&backend->pinned, config->pinned_bytes, error);

    if (r < 0)
        return r;
    if ((r = fad_worker_begin(&backend->closer, backend->base.completions)) == 0) {
        backend->closer_started = true;
        r = cuda_copiers_begin(backend);
    }
    if (r == 0)
        r = init_handles(backend);
    if (r == 0)
        r = cuda_waiter_begin(backend);
    if (r < 0)
        fa_error_set(error, FA_INTERNAL, "backend", "cannot start its threads: %s", uv_strerror(r));
    return r;
}

/* A device's streams for memory and for copies by its engines, in and out. */
#define OTHER_STREAMS 3u

/* What the driver takes. */
#define CONNECTIONS_MAX 32u

/* Streams beyond the driver's default of 8 would share its queues, and a short range then wait
 * behind a long one. Not more than are used: each takes 14 ms to make. Read when the driver
 * starts. */
static void set_connections(uint32_t streams)
{
    const uint32_t used = streams + OTHER_STREAMS + cuda_copiers_wanted();
    char text[16];

    snprintf(text, sizeof text, "%" PRIu32, used < CONNECTIONS_MAX ? used : CONNECTIONS_MAX);
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", text, 0);
}

static int cuda_probe(const struct fad_backend_config *config, struct fad_completions *completions,
                      struct fad_backend **out, struct fa_error *error)
{
    struct cuda_backend *backend = calloc(1, sizeof *backend);
    int r;

    if (!backend) {
        fa_error_set(error, FA_INTERNAL, "backend", "no memory");
        return -ENOMEM;
    }
    backend->base = (struct fad_backend){.ops = &fad_backend_cuda,
                                         .opens_ipc = true,
                                         .separate = true,
                                         .completions = completions,
                                         .devices = backend->devices};
    TAILQ_INIT(&backend->busy);
    STAILQ_INIT(&backend->event_waits);
    set_connections(config->streams);
    r = cuda_devices_init(backend, config, error);
    if (r == 0)
        r = begin_parts(backend, config, error);
    if (r == 0)
        cuda_learn_handles(backend);
    if (r != 0) {
        cuda_deinit(&backend->base);
        return r;
    }
    backend->base.device_count = backend->device_count;
    *out = &backend->base;
    return 0;
}

static void on_told(struct fad_op *op)
{
    (void)op;
}

static void tell_loss(struct cuda_backend *backend)
{
    if (backend->told)
        return;
    backend->told = true;
    backend->telling.done = on_told;
    cuda_complete(backend, &backend->telling, -EIO, NULL);
}

static void cuda_tick(struct fad_backend *base)
{
    struct cuda_backend *backend = cuda_backend_of(base);
    const uint64_t now = uv_hrtime();

    if (cuda_is_lost(backend)) {
        tell_loss(backend);
        return;
    }
    for (uint32_t i = 0; i < backend->device_count; i++) {
        cuda_handles_tick(&backend->parts[i], now);
        cuda_memory_tick(&backend->parts[i], now);
    }
}

const struct fad_backend_ops fad_backend_cuda = {
    .name = "cuda",
    .probe = cuda_probe,
    .region_open = cuda_region_open,
    .region_close = cuda_region_close,
    .copy = cuda_copy,
    .event_wait = cuda_event_wait,
    .launch_range = cuda_launch_range,
    .poll = cuda_poll,
    .tick = cuda_tick,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .deinit = cuda_deinit,
};
