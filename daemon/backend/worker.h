/* worker.h: a thread of a backend's that does its calls one after another. */
#ifndef FAD_WORKER_H
#define FAD_WORKER_H

#include "daemon/backend/completions.h"

/* What a kernel needs besides its tensors; kept from one range to the next. */
struct fad_scratch {
    void *memory;
    size_t size;
};

struct fad_worker {
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    STAILQ_HEAD(fad_worker_ops, fad_op) ops; /* under lock, as is stop */
    bool stop;
    struct fad_completions *completions;
    struct fad_scratch scratch; /* the thread's own */
};

/* Sets a call up: op->work does it, or a piece of it, and is true when there is more to do; then
 * others have their turn first. subject is for it to find. */
void fad_op_prepare(struct fad_op *op, bool (*work)(struct fad_op *op, void *scratch),
                    void *subject);

/* Does a prepared call, or the next piece of it, on this thread. True when there is more to do,
 * else it is on the completion list; one that nobody waits for (done NULL) is not, and is gone with
 * its work. */
bool fad_op_perform(struct fad_op *op, struct fad_scratch *scratch,
                    struct fad_completions *completions);

/* Makes the calling thread nicer than the loop's, on Linux alone: whoever waits for the loop does
 * not wait for a worker's time slice first. */
void fad_worker_be_nice(void);

/* Starts it. 0 or a negative errno. */
int fad_worker_begin(struct fad_worker *worker, struct fad_completions *completions);

/* Gives it a prepared call. */
void fad_worker_give(struct fad_worker *worker, struct fad_op *op);

/* Ends it. It must have nothing left to do. */
void fad_worker_end(struct fad_worker *worker);

#endif
