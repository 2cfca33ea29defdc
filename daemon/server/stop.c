#include "daemon/server/stop.h"

#include "daemon/server/server.h"
#include "daemon/util/log.h"

#include <inttypes.h>

/* For the last answers of all, once everything is abandoned. */
#define FLUSH_MS 1000

/* For the rest: descriptors whose close a client can draw out. */
#define LEAVE_MS 3000

void fad_stop_if_done(struct fad_server *server)
{
    uv_handle_t *const handles[] = {
        (uv_handle_t *)&server->tick,       (uv_handle_t *)&server->watchdog,
        (uv_handle_t *)&server->stop_timer, (uv_handle_t *)&server->stop_wake,
        (uv_handle_t *)&server->signals,
    };

    if (server->phase == FAD_SERVING || server->phase == FAD_LOST || server->connection_count > 0 ||
        uv_is_closing(handles[0]))
        return;
    /* With these the loop has nothing left: no connection means no job. */
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++)
        uv_close(handles[i], NULL);
    fad_log_say_held();
    fad_log(FAD_LOG_INFO, "stopped");
    if (server->loss.error < 0) { /* a lost device's backend may not end */
        server->stuck = true;
        uv_stop(&server->loop);
        return;
    }
    fad_engine_deinit(&server->engine);
}

static void on_leave(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;

    fad_log(FAD_LOG_ERROR, "a descriptor that a client sent does not close: leaving it");
    server->stuck = true;
    uv_stop(&server->loop);
}

static void on_flush_over(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;
    struct fad_connection *connection;

    uv_timer_start(timer, on_leave, LEAVE_MS, 0);
    while ((connection = TAILQ_FIRST(&server->connections)))
        fad_connection_close(connection, "the daemon is stopping");
}

static void abandon(struct fad_server *server, const char *why)
{
    const uint64_t jobs = server->account.used.of[FAD_JOBS];
    struct fad_connection *connection, *next;

    server->phase = FAD_ABANDONING;
    fad_log(FAD_LOG_INFO, "abandoning %" PRIu64 " request%s in flight: %s", jobs,
            jobs == 1 ? "" : "s", why);
    uv_timer_start(&server->stop_timer, on_flush_over, FLUSH_MS, 0);
    for (connection = TAILQ_FIRST(&server->connections); connection; connection = next) {
        next = TAILQ_NEXT(connection, link);
        fad_connection_abandon(connection);
    }
    fad_stop_if_done(server);
}

static void on_drain_over(uv_timer_t *timer)
{
    abandon(timer->data, "the time to drain is over");
}

static void drain(struct fad_server *server, const char *why)
{
    const uint64_t jobs = server->account.used.of[FAD_JOBS];
    struct fad_connection *connection, *next;

    server->phase = FAD_DRAINING;
    server->service.stopping = true;
    fad_log(FAD_LOG_INFO, "stopping: %s; %" PRIu64 " request%s in flight", why, jobs,
            jobs == 1 ? "" : "s");
    fad_server_notify(server);
    uv_close((uv_handle_t *)&server->accept_poll, NULL);
    fad_listener_stop(&server->listener);
    uv_timer_start(&server->stop_timer, on_drain_over, server->drain_ms, 0);
    for (connection = TAILQ_FIRST(&server->connections); connection; connection = next) {
        next = TAILQ_NEXT(connection, link);
        fad_connection_flush(connection); /* the last word, where nothing is in flight */
    }
    fad_stop_if_done(server);
}

/* What is in flight is being answered, and it ends within moments anyhow. */
static void stop_lost(struct fad_server *server, const char *why)
{
    fad_log(FAD_LOG_INFO, "stopping: %s; not starting anew", why);
    server->service.stopping = true;
    fad_server_notify(server);
}

void fad_stop(struct fad_server *server, const char *why)
{
    const bool first = !server->stop_asked;

    server->stop_asked = true;
    if (server->phase == FAD_SERVING)
        drain(server, why);
    else if (server->phase == FAD_DRAINING)
        abandon(server, why);
    else if (server->phase == FAD_LOST && first)
        stop_lost(server, why);
}
