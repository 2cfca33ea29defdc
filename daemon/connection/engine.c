#include "daemon/connection/engine.h"

#include <stdio.h>
#include <string.h>

static void run_laters(struct fad_engine *engine)
{
    struct fad_later *later;

    while ((later = TAILQ_FIRST(&engine->laters))) {
        fad_engine_not_later(engine, later);
        later->run(later);
    }
}

static void on_poll(uv_idle_t *poll)
{
    struct fad_engine *engine = fad_container_of(poll, struct fad_engine, poll);

    fad_completions_watch(&engine->completions);
    if (!engine->backend->ops->poll(engine->backend))
        uv_idle_stop(poll);
    fad_completions_drain(&engine->completions);
}

static void on_drained(void *user)
{
    struct fad_engine *engine = user;

    if (engine->completions.fatal < 0)
        fad_engine_fatal(engine, engine->completions.fatal);
    fad_engine_dispatch(engine);
    run_laters(engine);
}

enum fa_status fad_engine_find_device(const struct fad_engine *engine, const uint8_t uuid[16],
                                      const char *field, uint32_t *device, struct fa_error *error)
{
    const struct fad_backend *backend = engine->backend;

    for (*device = 0; *device < backend->device_count; ++*device)
        if (memcmp(backend->devices[*device].uuid, uuid, 16) == 0)
            return FA_OK;
    return fa_error_set(error, FA_NOT_FOUND, field,
                        "it names none of this daemon's devices (fa-cli info lists them)");
}

enum fa_status fad_engine_find_ipc_device(const struct fad_engine *engine, const uint8_t uuid[16],
                                          const char *field, uint32_t *device,
                                          struct fa_error *error)
{
    char of_device[sizeof error->field];

    if (!engine->backend->opens_ipc)
        return fa_error_set(error, FA_UNIMPLEMENTED, field,
                            "the %s backend opens no CUDA IPC handles; send the tensor inline, in "
                            "a memfd or in a region",
                            engine->backend->ops->name);
    snprintf(of_device, sizeof of_device, "%s.device_uuid", field);
    return fad_engine_find_device(engine, uuid, of_device, device, error);
}

void fad_engine_watch(struct fad_engine *engine)
{
    fad_completions_watch(&engine->completions);
}

void fad_engine_drain(struct fad_engine *engine)
{
    fad_completions_drain(&engine->completions);
    run_laters(engine);
}

void fad_engine_later(struct fad_engine *engine, struct fad_later *later)
{
    if (!later->queued)
        TAILQ_INSERT_TAIL(&engine->laters, later, link);
    later->queued = true;
}

void fad_engine_not_later(struct fad_engine *engine, struct fad_later *later)
{
    if (later->queued)
        TAILQ_REMOVE(&engine->laters, later, link);
    later->queued = false;
}

int fad_engine_init(struct fad_engine *engine, uv_loop_t *loop, const struct fad_backend_ops *ops,
                    const struct fad_backend_config *config,
                    void (*on_fatal)(void *user, int error), void *user, struct fa_error *error)
{
    int r;

    engine->on_fatal = on_fatal;
    engine->user = user;
    TAILQ_INIT(&engine->laters);
    r = fad_completions_init(&engine->completions, loop, on_drained, engine);
    if (r < 0) {
        fa_error_set(error, FA_INTERNAL, "", "cannot make the completion list: %s", uv_strerror(r));
        return r;
    }
    r = ops->probe(config, &engine->completions, &engine->backend, error);
    if (r < 0)
        goto fail_completions;
    r = fad_scheduler_init(&engine->scheduler, engine->backend);
    if (r < 0) {
        fa_error_set(error, FA_INTERNAL, "", "no memory for the scheduler");
        goto fail_backend;
    }
    uv_idle_init(loop, &engine->poll);
    uv_timer_init(loop, &engine->deadline);
    return 0;
fail_backend:
    engine->backend->ops->deinit(engine->backend);
fail_completions:
    fad_completions_deinit(&engine->completions);
    return r;
}

void fad_engine_taken(struct fad_engine *engine)
{
    if (engine->backend->ops->poll)
        uv_idle_start(&engine->poll, on_poll);
}

static void on_deadline(uv_timer_t *deadline)
{
    struct fad_engine *engine = fad_container_of(deadline, struct fad_engine, deadline);

    fad_engine_dispatch(engine);
    run_laters(engine);
}

/* The timer counts from the loop's time, which lags: it may come early, never late. Dispatching
 * then sets it again. */
static void set_timer(struct fad_engine *engine, uint64_t now_ns)
{
    const uint64_t next_ns = fad_scheduler_next_deadline(&engine->scheduler);
    const uint64_t left_ns = next_ns > now_ns ? next_ns - now_ns : 0;

    if (next_ns == 0)
        uv_timer_stop(&engine->deadline);
    else
        uv_timer_start(&engine->deadline, on_deadline, left_ns / 1000000 + 1, 0);
}

void fad_engine_dispatch(struct fad_engine *engine)
{
    const uint64_t now_ns = uv_hrtime();

    if (fad_scheduler_dispatch(&engine->scheduler, now_ns))
        fad_engine_taken(engine);
    set_timer(engine, now_ns);
    if (engine->scheduler.fatal < 0)
        fad_engine_fatal(engine, engine->scheduler.fatal);
}

void fad_engine_fatal(struct fad_engine *engine, int error)
{
    engine->on_fatal(engine->user, error);
}

void fad_engine_deinit(struct fad_engine *engine)
{
    fad_scheduler_deinit(&engine->scheduler);
    engine->backend->ops->deinit(engine->backend);
    fad_completions_deinit(&engine->completions);
    uv_close((uv_handle_t *)&engine->poll, NULL);
    uv_close((uv_handle_t *)&engine->deadline, NULL);
}
