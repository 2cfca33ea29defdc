/* completions.h: the one list through which asynchronous calls finish, and its wake-up of the
 * loop. */
#ifndef FAD_COMPLETIONS_H
#define FAD_COMPLETIONS_H

#include "daemon/backend/backend.h"

#include <uv.h>

struct fad_completions {
    uv_mutex_t lock;
    uv_async_t wake;
    STAILQ_HEAD(fad_ops, fad_op) ops; /* under lock, as is watched */
    bool watched;                     /* the loop thread will drain: no wake-up is needed */
    void (*drained)(void *user);
    void *user;
    /* The loop thread's: */
    int fatal;        /* the first status < 0 of an op; 0: none had one */
    const char *text; /* the first text that came with one, static, or NULL */
    bool muted;
};

/* Registers with the loop. drained (may be NULL) is called on the loop thread after each batch of
 * done() calls. 0 or a negative errno. */
int fad_completions_init(struct fad_completions *completions, uv_loop_t *loop,
                         void (*drained)(void *user), void *user);

/* Appends a finished op, and wakes the loop unless it watches. Any thread. */
void fad_completions_push(struct fad_completions *completions, struct fad_op *op);

/* Says that fad_completions_drain will be called before the loop waits again. Loop thread. */
void fad_completions_watch(struct fad_completions *completions);

/* Calls done() for all that is listed, in order, then drained(), and again for what has finished
 * meanwhile: a few times at most, then the loop is woken for the rest. Loop thread; not from inside
 * done() or drained(). */
void fad_completions_drain(struct fad_completions *completions);

/* No done() is called any more, whatever finishes: for a daemon that does not wait for it. */
void fad_completions_mute(struct fad_completions *completions);

/* Closes the wake-up handle. The list must be empty. The memory may go once the loop has turned. */
void fad_completions_deinit(struct fad_completions *completions);

#endif
