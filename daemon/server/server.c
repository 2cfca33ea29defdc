#include "daemon/server/server.h"

#include "daemon/util/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Limits of one connection, and of the daemon as a share of the machine's memory. */
#define CONNECTION_JOBS   64
#define CONNECTION_STAGED ((uint64_t)512 << 20) /* beside a payload of the largest size */
#define CONNECTION_MAPPED ((uint64_t)8 << 30)
#define DAEMON_JOBS       1024

/* Accepted in one go before others have their turn. */
#define ACCEPT_BATCH 64

/* --- Stopping -------------------------------------------------------------------------------- */

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Once the last connection, and with it the last job, is gone, the loop has nothing left. */
static void finish_if_stopped(struct fad_server *server)
{
    if (!server->stopping || server->connection_count > 0 ||
        uv_is_closing((uv_handle_t *)&server->tick))
        return;
    close_handle((uv_handle_t *)&server->tick, NULL);
    close_handle((uv_handle_t *)&server->sigterm, NULL);
    close_handle((uv_handle_t *)&server->sigint, NULL);
    close_handle((uv_handle_t *)&server->stop_wake, NULL);
    fad_engine_deinit(&server->engine);
}

static void begin_stop(struct fad_server *server, const char *why)
{
    struct fad_connection *connection;

    if (server->stopping)
        return;
    server->stopping = true;
    fad_log(FAD_LOG_INFO, "stopping: %s", why);
    close_handle((uv_handle_t *)&server->accept_poll, NULL);
    while ((connection = TAILQ_FIRST(&server->connections)))
        fad_connection_close(connection, "the daemon is stopping");
    finish_if_stopped(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    begin_stop(handle->data, number == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void on_stop_wake(uv_async_t *handle)
{
    begin_stop(handle->data, "asked to");
    finish_if_stopped(handle->data);
}

static void on_fatal(void *user, int error)
{
    struct fad_server *server = user;
    if (server->fatal == 0) {
        server->fatal = error;
        fad_log(FAD_LOG_ERROR, "the backend failed: %s", uv_strerror(error));
    }
    uv_async_send(&server->stop_wake); /* not here: the caller is in the middle of its work */
}

/* --- Connections ----------------------------------------------------------------------------- */

static void on_closing(void *user, struct fad_connection *connection)
{
    struct fad_server *server = user;
    TAILQ_REMOVE(&server->connections, connection, link);
}

static void on_freed(void *user)
{
    struct fad_server *server = user;
    server->connection_count--;
    if (server->stopping) /* not here: the engine may be in the middle of its work */
        uv_async_send(&server->stop_wake);
}

static void take_connection(struct fad_server *server, int fd)
{
    struct fad_connection *connection;
    struct fa_error error;

    if (fad_connection_new(&connection, &server->service, fd, server->next_number++) != 0)
        return;
    server->connection_count++;
    TAILQ_INSERT_TAIL(&server->connections, connection, link);
    if (server->connection_count > server->connection_max) {
        fa_error_set(&error, FA_RESOURCE_EXHAUSTED, "",
                     "the daemon's limit of %" PRIu64 " connections is reached; try again later",
                     server->connection_max);
        fad_connection_expel(connection, 0, &error);
        fad_connection_flush(connection);
    }
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct fad_server *server = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            take_connection(server, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            /* Level-triggered, it would spin: clients wait in the backlog until the next tick. */
            fad_log(FAD_LOG_ERROR, "cannot accept a client now: %s", uv_strerror(-errno));
            uv_poll_stop(&server->accept_poll);
            server->accepting = false;
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return; /* EAGAIN: that was all */
        }
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;
    struct fad_connection *connection, *next;
    uint64_t now = uv_hrtime();

    for (connection = TAILQ_FIRST(&server->connections); connection; connection = next) {
        next = TAILQ_NEXT(connection, link);
        fad_connection_check_stall(connection, now);
    }
    if (!server->accepting && !server->stopping) {
        uv_poll_start(&server->accept_poll, UV_READABLE, on_accept);
        server->accepting = true;
    }
}

/* --- Begin and end --------------------------------------------------------------------------- */

static void set_limits(struct fad_server *server, const struct fad_options *options)
{
    uint64_t memory = uv_get_total_memory(), allowed = uv_get_constrained_memory();
    struct fad_amounts whole = {{[FAD_JOBS] = DAEMON_JOBS}};
    struct rlimit files;

    if (allowed > 0 && allowed < memory) /* a control group's limit */
        memory = allowed;
    whole.of[FAD_STAGED] = memory / 4;
    whole.of[FAD_MAPPED] = memory / 2;
    fad_account_init(&server->account, "daemon", NULL, &whole);
    server->connection_max = options->connections;
    server->service = (struct fad_service){
        .loop = &server->loop,
        .engine = &server->engine,
        .account = &server->account,
        .limit = {{[FAD_JOBS] = CONNECTION_JOBS,
                   [FAD_STAGED] = options->payload_max + CONNECTION_STAGED,
                   [FAD_MAPPED] = CONNECTION_MAPPED}},
        .payload_max = options->payload_max,
        .stall_ns = options->stall_seconds * 1000000000u,
        .on_closing = on_closing,
        .on_freed = on_freed,
        .user = server,
    };
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}

static void init_handles(struct fad_server *server)
{
    uv_timer_init(&server->loop, &server->tick);
    uv_signal_init(&server->loop, &server->sigterm);
    uv_signal_init(&server->loop, &server->sigint);
    server->tick.data = server->sigterm.data = server->sigint.data = server;
    server->stop_wake.data = server->accept_poll.data = server;
    uv_timer_start(&server->tick, on_tick, 500, 500);
    uv_signal_start(&server->sigterm, on_signal, SIGTERM);
    uv_signal_start(&server->sigint, on_signal, SIGINT);
}

int fad_server_init(struct fad_server *server, const struct fad_options *options,
                    const struct fad_backend_ops *backend, struct fa_error *error)
{
    struct fad_backend_config config = {.workers = (uint32_t)options->workers};
    int r;

    *server = (struct fad_server){.next_number = 1};
    TAILQ_INIT(&server->connections);
    if ((r = uv_loop_init(&server->loop)) < 0) {
        fa_error_set(error, FA_INTERNAL, "", "cannot make the event loop: %s", uv_strerror(r));
        return r;
    }
    set_limits(server, options);
    init_handles(server); /* before there is a socket that a signal could leave behind */
    if ((r = (int)fad_listener_open(&server->listener, options->socket, error)) != 0)
        goto fail;
    if ((r = uv_poll_init(&server->loop, &server->accept_poll, server->listener.fd)) < 0 ||
        (r = uv_async_init(&server->loop, &server->stop_wake, on_stop_wake)) < 0) {
        fa_error_set(error, FA_INTERNAL, "", "cannot make the event loop: %s", uv_strerror(r));
        goto fail;
    }
    r = fad_engine_init(&server->engine, &server->loop, backend, &config, on_fatal, server, error);
    if (r < 0)
        goto fail;
    uv_poll_start(&server->accept_poll, UV_READABLE, on_accept);
    server->accepting = true;
    return 0;
fail:
    uv_walk(&server->loop, close_handle, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    fad_listener_close(&server->listener);
    uv_loop_close(&server->loop);
    return r;
}

int fad_server_run(struct fad_server *server)
{
    const struct fad_backend *backend = server->engine.backend;

    fad_log(FAD_LOG_INFO, "serving %s on %s (%s, %u device%s, %u streams)",
            server->listener.address.sun_path, backend->devices[0].name, backend->ops->name,
            backend->device_count, backend->device_count == 1 ? "" : "s",
            backend->devices[0].streams);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return server->fatal;
}

void fad_server_stop(struct fad_server *server)
{
    uv_async_send(&server->stop_wake);
}

void fad_server_deinit(struct fad_server *server)
{
    int r = uv_loop_close(&server->loop);
    assert(r == 0);
    (void)r;
    fad_account_deinit(&server->account);
    fad_listener_close(&server->listener);
}
