#include "daemon/backend/worker.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/resource.h>

void fad_op_prepare(struct fad_op *op, bool (*work)(struct fad_op *op, void *scratch),
                    void *subject)
{
    op->status = 0;
    op->text = NULL;
    op->work = work;
    op->subject = subject;
}

bool fad_op_perform(struct fad_op *op, struct fad_scratch *scratch,
                    struct fad_completions *completions)
{
    if (!op->done) {
        op->work(op, scratch);
        return false;
    }
    op->started_ns = uv_hrtime();
    if (op->work(op, scratch))
        return true;
    op->finished_ns = uv_hrtime();
    fad_completions_push(completions, op);
    return false;
}

/* What a worker adds to its niceness. */
#define NICER 5

void fad_worker_be_nice(void)
{
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICER);
}

static void worker_main(void *argument)
{
    struct fad_worker *worker = argument;
    bool more;

    fad_worker_be_nice();
    uv_mutex_lock(&worker->lock);
    for (;;) {
        struct fad_op *op = STAILQ_FIRST(&worker->ops);
        if (op) {
            STAILQ_REMOVE_HEAD(&worker->ops, link);
            uv_mutex_unlock(&worker->lock);
            more = fad_op_perform(op, &worker->scratch, worker->completions);
            uv_mutex_lock(&worker->lock);
            if (more)
                STAILQ_INSERT_TAIL(&worker->ops, op, link);
        } else if (worker->stop) {
            break;
        } else {
            uv_cond_wait(&worker->wake, &worker->lock);
        }
    }
    uv_mutex_unlock(&worker->lock);
    free(worker->scratch.memory);
}

void fad_worker_give(struct fad_worker *worker, struct fad_op *op)
{
    uv_mutex_lock(&worker->lock);
    STAILQ_INSERT_TAIL(&worker->ops, op, link);
    uv_cond_signal(&worker->wake);
    uv_mutex_unlock(&worker->lock);
}

void fad_worker_end(struct fad_worker *worker)
{
    uv_mutex_lock(&worker->lock);
    worker->stop = true;
    uv_cond_signal(&worker->wake);
    uv_mutex_unlock(&worker->lock);
    uv_thread_join(&worker->thread);
    assert(STAILQ_EMPTY(&worker->ops));
    uv_cond_destroy(&worker->wake);
    uv_mutex_destroy(&worker->lock);
}

int fad_worker_begin(struct fad_worker *worker, struct fad_completions *completions)
{
    int r;
    STAILQ_INIT(&worker->ops);
    worker->completions = completions;
    if ((r = uv_mutex_init(&worker->lock)) < 0)
        return r;
    if ((r = uv_cond_init(&worker->wake)) < 0)
        goto fail_lock;
    if ((r = uv_thread_create(&worker->thread, worker_main, worker)) < 0)
        goto fail_cond;
    return 0;
fail_cond:
    uv_cond_destroy(&worker->wake);
fail_lock:
    uv_mutex_destroy(&worker->lock);
    return r;
}
