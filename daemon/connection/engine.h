/* engine.h: the backend, its completion list and the scheduler, joined to the loop. */
#ifndef FAD_ENGINE_H
#define FAD_ENGINE_H

#include "daemon/backend/completions.h"
#include "daemon/scheduler/scheduler.h"

struct fad_engine {
    struct fad_backend *backend;
    struct fad_completions completions;
    struct fad_scheduler scheduler;
    uv_idle_t poll; /* active while the backend wants to be polled */
    void (*on_fatal)(void *user, int error);
    void *user;
};

/* Probes the backend. on_fatal is told, once or more, of a negative errno after which the daemon
 * cannot go on. 0 or a negative errno with *error filled; then nothing is to be ended, but the loop
 * must turn before the memory goes. */
int fad_engine_init(struct fad_engine *engine, uv_loop_t *loop, const struct fad_backend_ops *ops,
                    const struct fad_backend_config *config,
                    void (*on_fatal)(void *user, int error), void *user, struct fa_error *error);

/* Launches what can be launched. Call after submitting work to the scheduler. */
void fad_engine_dispatch(struct fad_engine *engine);

/* Says that the backend took a call, which it may want to be polled for. (Dispatching says so of
 * ranges by itself.) */
void fad_engine_taken(struct fad_engine *engine);

/* Reports a status < 0 that a call of the backend's returned. */
void fad_engine_fatal(struct fad_engine *engine, int error);

/* No job may be left. The memory may go once the loop has turned. */
void fad_engine_deinit(struct fad_engine *engine);

#endif
