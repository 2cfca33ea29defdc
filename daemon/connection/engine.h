/* engine.h: the backend, its completion list and the scheduler, joined to the loop. */
#ifndef FAD_ENGINE_H
#define FAD_ENGINE_H

#include "daemon/backend/completions.h"
#include "daemon/scheduler/scheduler.h"

/* Something to be done once, after the completions at hand. Embedded in its owner. */
struct fad_later {
    TAILQ_ENTRY(fad_later) link;
    void (*run)(struct fad_later *later);
    bool queued;
};

struct fad_engine {
    struct fad_backend *backend;
    struct fad_completions completions;
    struct fad_scheduler scheduler;
    uv_idle_t poll;      /* active while the backend wants to be polled */
    uv_timer_t deadline; /* active while a work has one */
    TAILQ_HEAD(fad_laters, fad_later) laters;
    void (*on_fatal)(void *user, int error);
    void *user;
};

/* Probes the backend. on_fatal is told, once or more, of a negative errno after which the daemon
 * cannot go on. 0 or a negative errno with *error filled; then nothing is to be ended, but the loop
 * must turn before the memory goes. */
int fad_engine_init(struct fad_engine *engine, uv_loop_t *loop, const struct fad_backend_ops *ops,
                    const struct fad_backend_config *config,
                    void (*on_fatal)(void *user, int error), void *user, struct fa_error *error);

/* The device with the uuid; FA_NOT_FOUND names the field. */
enum fa_status fad_engine_find_device(const struct fad_engine *engine, const uint8_t uuid[16],
                                      const char *field, uint32_t *device, struct fa_error *error);

/* The device of memory that comes by CUDA IPC. field is the location's, as "q.cuda_ipc":
 * FA_UNIMPLEMENTED names it where the backend opens none, FA_NOT_FOUND its device_uuid. */
enum fa_status fad_engine_find_ipc_device(const struct fad_engine *engine, const uint8_t uuid[16],
                                          const char *field, uint32_t *device,
                                          struct fa_error *error);

/* Around work on the loop thread that may start short calls: those that finish inside it are seen
 * at once, without waking the loop for them. */
void fad_engine_watch(struct fad_engine *engine);
void fad_engine_drain(struct fad_engine *engine);

/* Runs it soon, unless it is queued already; or not any more. */
void fad_engine_later(struct fad_engine *engine, struct fad_later *later);
void fad_engine_not_later(struct fad_engine *engine, struct fad_later *later);

/* Ends works that have passed their deadlines (by uv_hrtime) and launches what can be launched.
 * Call after submitting work to the scheduler. */
void fad_engine_dispatch(struct fad_engine *engine);

/* Says that the backend took a call, which it may want to be polled for. (Dispatching says so of
 * ranges by itself.) */
void fad_engine_taken(struct fad_engine *engine);

/* Reports a status < 0 that a call of the backend's returned. */
void fad_engine_fatal(struct fad_engine *engine, int error);

/* No job may be left. The memory may go once the loop has turned. */
void fad_engine_deinit(struct fad_engine *engine);

#endif
