/* server.h: a whole daemon in one object: loop, engine, listener, connections, signals.
 *
 * SIGTERM and SIGINT are blocked, in all threads, and read from a descriptor: so none is lost when
 * the daemon starts anew (loss.h), and the successor finds it pending. */
#ifndef FAD_SERVER_H
#define FAD_SERVER_H

#include "daemon/connection/connection.h"
#include "daemon/server/handover.h"
#include "daemon/server/listener.h"
#include "daemon/server/notify.h"
#include "daemon/server/options.h"

enum fad_phase { FAD_SERVING, FAD_DRAINING, FAD_ABANDONING, FAD_LOST }; /* stop.h, loss.h */

/* What fad_server_run came to. */
enum fad_end {
    FAD_END_STOPPED, /* as it was told to */
    FAD_END_LOST,    /* the device is lost: the program is to be executed anew */
    FAD_END_FAILED   /* that has happened too often */
};

/* Of the device, as far as there was one (loss.h). */
struct fad_loss {
    int error;        /* what the backend said; 0: the device is there */
    const char *text; /* what it said of it in the log; NULL: nothing */
    bool too_many;
    bool closing; /* all is answered, or there is no more time for it */
    uint64_t closing_ns;
    uint64_t answered_before; /* DEVICE_LOST, by those that this program follows */
    struct fad_losses losses; /* earlier ones, too */
};

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
    int signal_fd;
    uv_poll_t signals;
    uv_async_t stop_wake;
    uv_timer_t stop_timer; /* when the phase is over, if it is not before */
    uint64_t drain_ms;
    enum fad_phase phase;
    bool stop_asked;
    bool stuck; /* it left although something is still under way: only exit or exec may follow */
    struct fad_loss loss;
};

/* Everything up to listening, or from what was handed over. On any status but 0 *error says why and
 * nothing is held: > 0 the circumstances (a second daemon), < 0 a negative errno. Blocks signals:
 * call it before there are threads. */
int fad_server_init(struct fad_server *server, const struct fad_options *options,
                    const struct fad_backend_ops *backend, const struct fad_handover *handover,
                    struct fa_error *error);

/* Serves until SIGTERM or SIGINT, and then until it has stopped: see stop.h; or until the device is
 * lost: see loss.h. */
enum fad_end fad_server_run(struct fad_server *server);

/* After run has returned. Asserts that nothing is left, unless it got stuck. */
void fad_server_deinit(struct fad_server *server);

/* --- For stop.c and loss.c ------------------------------------------------------------------- */

/* Tells the service manager what has changed. */
void fad_server_notify(struct fad_server *server);

#endif
