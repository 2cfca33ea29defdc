/* server.h: a whole daemon in one object: loop, engine, listener, connections, signals. */
#ifndef FAD_SERVER_H
#define FAD_SERVER_H

#include "daemon/connection/connection.h"
#include "daemon/server/listener.h"
#include "daemon/server/options.h"

struct fad_server {
    uv_loop_t loop;
    struct fad_engine engine;
    struct fad_listener listener;
    struct fad_account account;
    struct fad_service service;
    TAILQ_HEAD(fad_connections, fad_connection) connections; /* not closing ones */
    uint64_t connection_max;
    uint64_t connection_count; /* until freed */
    uint64_t next_number;
    uv_poll_t accept_poll;
    bool accepting;
    uv_timer_t tick; /* stalled clients, paused accepting */
    uv_signal_t sigterm, sigint;
    uv_async_t stop_wake;
    bool stopping;
    int fatal; /* a negative errno: why it cannot go on */
};

/* Everything up to listening. On any status but 0 *error says why and nothing is held: > 0 the
 * circumstances (a second daemon), < 0 a negative errno. */
int fad_server_init(struct fad_server *server, const struct fad_options *options,
                    const struct fad_backend_ops *backend, struct fa_error *error);

/* Serves until SIGTERM, SIGINT or fad_server_stop. 0, or the negative errno that ended it. */
int fad_server_run(struct fad_server *server);

/* Makes fad_server_run return soon. Any thread. */
void fad_server_stop(struct fad_server *server);

/* After run has returned. Asserts that nothing is left. */
void fad_server_deinit(struct fad_server *server);

#endif
