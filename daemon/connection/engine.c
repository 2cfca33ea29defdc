#include "daemon/connection/engine.h"

static void on_poll(uv_idle_t *poll)
{
    struct fad_engine *engine = fad_container_of(poll, struct fad_engine, poll);

    if (!engine->backend->ops->poll(engine->backend))
        uv_idle_stop(poll);
    fad_completions_drain(&engine->completions);
}

static void on_drained(void *user)
{
    fad_engine_dispatch(user);
}

int fad_engine_init(struct fad_engine *engine, uv_loop_t *loop, const struct fad_backend_ops *ops,
                    const struct fad_backend_config *config,
                    void (*on_fatal)(void *user, int error), void *user, struct fa_error *error)
{
    int r;

    engine->on_fatal = on_fatal;
    engine->user = user;
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
    return 0;
fail_backend:
    ops->deinit(engine->backend);
fail_completions:
    fad_completions_deinit(&engine->completions);
    return r;
}

void fad_engine_taken(struct fad_engine *engine)
{
    if (engine->backend->ops->poll)
        uv_idle_start(&engine->poll, on_poll);
}

void fad_engine_dispatch(struct fad_engine *engine)
{
    if (fad_scheduler_dispatch(&engine->scheduler))
        fad_engine_taken(engine);
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
}
