#include "daemon/backend/completions.h"

#include <assert.h>

static void on_wake(uv_async_t *wake)
{
    fad_completions_drain(fad_container_of(wake, struct fad_completions, wake));
}

int fad_completions_init(struct fad_completions *completions, uv_loop_t *loop,
                         void (*drained)(void *user), void *user)
{
    int r = uv_mutex_init(&completions->lock);
    if (r < 0)
        return r;
    r = uv_async_init(loop, &completions->wake, on_wake);
    if (r < 0) {
        uv_mutex_destroy(&completions->lock);
        return r;
    }
    STAILQ_INIT(&completions->ops);
    completions->drained = drained;
    completions->user = user;
    return 0;
}

void fad_completions_push(struct fad_completions *completions, struct fad_op *op)
{
    uv_mutex_lock(&completions->lock);
    STAILQ_INSERT_TAIL(&completions->ops, op, link);
    uv_mutex_unlock(&completions->lock);
    uv_async_send(&completions->wake);
}

void fad_completions_drain(struct fad_completions *completions)
{
    struct fad_ops batch = STAILQ_HEAD_INITIALIZER(batch);
    struct fad_op *op;

    uv_mutex_lock(&completions->lock);
    STAILQ_CONCAT(&batch, &completions->ops);
    uv_mutex_unlock(&completions->lock);
    if (STAILQ_EMPTY(&batch))
        return;
    while ((op = STAILQ_FIRST(&batch))) {
        STAILQ_REMOVE_HEAD(&batch, link);
        op->done(op);
    }
    if (completions->drained)
        completions->drained(completions->user);
}

void fad_completions_deinit(struct fad_completions *completions)
{
    assert(STAILQ_EMPTY(&completions->ops));
    uv_mutex_destroy(&completions->lock);
    uv_close((uv_handle_t *)&completions->wake, NULL);
}
