#include "daemon/backend/completions.h"

#include <assert.h>

/* Batches in one turn of the loop. */
#define BATCHES_MAX 4

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
    completions->watched = false;
    completions->drained = drained;
    completions->user = user;
    completions->fatal = 0;
    completions->text = NULL;
    completions->muted = false;
    return 0;
}

void fad_completions_push(struct fad_completions *completions, struct fad_op *op)
{
    bool seen;

    uv_mutex_lock(&completions->lock);
    STAILQ_INSERT_TAIL(&completions->ops, op, link);
    seen = completions->watched;
    uv_mutex_unlock(&completions->lock);
    if (!seen)
        uv_async_send(&completions->wake);
}

void fad_completions_watch(struct fad_completions *completions)
{
    uv_mutex_lock(&completions->lock);
    completions->watched = true;
    uv_mutex_unlock(&completions->lock);
}

/* Moves what is listed to the batch; false: nothing is. */
static bool take(struct fad_completions *completions, struct fad_ops *batch)
{
    STAILQ_INIT(batch);
    uv_mutex_lock(&completions->lock);
    STAILQ_CONCAT(batch, &completions->ops);
    completions->watched = !STAILQ_EMPTY(batch);
    uv_mutex_unlock(&completions->lock);
    return !STAILQ_EMPTY(batch);
}

static void wake_for_rest(struct fad_completions *completions)
{
    bool rest;

    uv_mutex_lock(&completions->lock);
    completions->watched = false;
    rest = !STAILQ_EMPTY(&completions->ops);
    uv_mutex_unlock(&completions->lock);
    if (rest)
        uv_async_send(&completions->wake);
}

static void note_failure(struct fad_completions *completions, const struct fad_op *op)
{
    if (op->status >= 0)
        return;
    if (completions->fatal == 0)
        completions->fatal = op->status;
    if (!completions->text)
        completions->text = op->text;
}

void fad_completions_mute(struct fad_completions *completions)
{
    completions->muted = true;
}

void fad_completions_drain(struct fad_completions *completions)
{
    struct fad_ops batch;

    for (int i = 0; i < BATCHES_MAX && !completions->muted; i++) {
        struct fad_op *op;
        if (!take(completions, &batch))
            return;
        while ((op = STAILQ_FIRST(&batch))) {
            STAILQ_REMOVE_HEAD(&batch, link);
            note_failure(completions, op);
            op->done(op);
        }
        if (completions->drained)
            completions->drained(completions->user);
    }
    if (!completions->muted)
        wake_for_rest(completions);
}

void fad_completions_deinit(struct fad_completions *completions)
{
    assert(STAILQ_EMPTY(&completions->ops));
    uv_mutex_destroy(&completions->lock);
    uv_close((uv_handle_t *)&completions->wake, NULL);
}
