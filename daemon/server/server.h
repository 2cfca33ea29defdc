/* server.h: a whole daemon in one object: loop, engine, listener, connections, signals. */
#ifndef FAD_SERVER_H
#define FAD_SERVER_H

#include "daemon/connection/connection.h"
#include "daemon/server/listener.h"
#include "daemon/server/notify.h"
#include "daemon/server/options.h"

enum fad_phase { FAD_SERVING, FAD_DRAINING, FAD_ABANDONING }; /* stop.h */

struct fad_server {
    uv_loop_t loop;
    struct fad_engine engine;
    struct fad_listener listener;
    struct fad_account account;
    struct fad_service service;
    struct fad_users users;
    struct fad_statistics statistics;
    struct fad_connections connections; /* not closing ones */
    uint64_t connection_count;          /* until freed */
    uint64_t next_number;
    uv_poll_t accept_poll;
    bool accepting;
    struct fad_notify notify;
    uv_timer_t tick; /* stalled clients, paused accepting, what the log and the manager are told */
    uv_timer_t watchdog;
    uv_signal_t sigterm, sigint;
    uv_async_t stop_wake;
    uv_timer_t stop_timer; /* when the phase is over, if it is not before */
    uint64_t drain_ms;
    enum fad_phase phase;
    bool stuck; /* it left although something is still under way: only exit may follow */
    int fatal;  /* a negative errno: why it cannot go on */
};

/* Everything up to listening. On any status but 0 *error says why and nothing is held: > 0 the
 * circumstances (a second daemon), < 0 a negative errno. */
int fad_server_init(struct fad_server *server, const struct fad_options *options,
                    const struct fad_backend_ops *backend, struct fa_error *error);

/* Serves until SIGTERM or SIGINT, and then until it has stopped: see stop.h. 0, or the negative
 * errno that ended it. */
int fad_server_run(struct fad_server *server);

/* After run has returned. Asserts that nothing is left, unless it got stuck. */
void fad_server_deinit(struct fad_server *server);

/* --- For stop.c ------------------------------------------------------------------------------ */

/* Tells the service manager what has changed. */
void fad_server_notify(struct fad_server *server);

#endif
