#include "daemon/server/server.h"

#include "daemon/connection/carried.h"
#include "daemon/server/loss.h"
#include "daemon/server/stop.h"
#include "daemon/util/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Accepted in one go before others have their turn. */
#define ACCEPT_BATCH 64

/* --- Stopping -------------------------------------------------------------------------------- */

static void on_signals(uv_poll_t *poll, int status, int events)
{
    struct fad_server *server = poll->data;
    struct signalfd_siginfo info;

    (void)status;
    (void)events;
    while (read(server->signal_fd, &info, sizeof info) == sizeof info)
        fad_stop(server, info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
}

static void on_stop_wake(uv_async_t *handle)
{
    struct fad_server *server = handle->data;

    if (server->loss.error < 0)
        fad_loss_begin(server);
    fad_stop_if_done(server);
}

static void on_fatal(void *user, int error)
{
    struct fad_server *server = user;

    fad_loss_note(server, error);
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
    if (server->phase != FAD_SERVING) /* not here: the engine may be in the middle of its work */
        uv_async_send(&server->stop_wake);
}

static void take_connection(struct fad_server *server, int fd)
{
    struct fad_connection *connection;

    if (fad_connection_new(&connection, &server->service, fd, server->next_number++) != 0)
        return;
    server->connection_count++;
    TAILQ_INSERT_TAIL(&server->connections, connection, link);
    fad_connection_admit(connection);
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct fad_server *server = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int fd = accept4(server->listener.handle.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
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

/* --- Time ------------------------------------------------------------------------------------ */

void fad_server_notify(struct fad_server *server)
{
    const bool serving = server->phase == FAD_SERVING;
    const uint64_t clients = server->connection_count, jobs = server->account.used.of[FAD_JOBS];
    const uint64_t losses = server->loss.losses.count;
    char status[128], lost[48] = "";

    if (server->phase == FAD_LOST && !server->stop_asked)
        return; /* the next that it hears is fad_notify_reloading */
    if (losses > 0)
        snprintf(lost, sizeof lost, "; %" PRIu64 " device loss%s", losses, losses == 1 ? "" : "es");
    snprintf(status, sizeof status, "%s: %" PRIu64 " client%s, %" PRIu64 " request%s in flight%s",
             serving ? "serving" : "stopping", clients, clients == 1 ? "" : "s", jobs,
             jobs == 1 ? "" : "s", lost);
    fad_notify_tell(&server->notify, serving ? "READY=1" : "STOPPING=1", status);
}

/* From a timer of the loop's, so that a loop that hangs is noticed. */
static void on_watchdog(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;
    fad_notify_watchdog(&server->notify);
}

static void on_tick(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;
    struct fad_connection *connection, *next;
    const struct fad_backend *backend = server->engine.backend;
    uint64_t now = uv_hrtime();

    for (connection = TAILQ_FIRST(&server->connections); connection; connection = next) {
        next = TAILQ_NEXT(connection, link);
        fad_connection_check_stall(connection, now);
    }
    if (backend->ops->tick)
        backend->ops->tick(server->engine.backend);
    fad_log_say_held();
    fad_server_notify(server);
    if (!server->accepting && server->phase == FAD_SERVING) {
        uv_poll_start(&server->accept_poll, UV_READABLE, on_accept);
        server->accepting = true;
    }
}

/* --- Begin and end --------------------------------------------------------------------------- */

/* Those limits that follow from others, or from the machine. */
static void complete_limits(struct fad_amounts limits[FAD_LEVELS], uint64_t payload_max)
{
    uint64_t memory = uv_get_total_memory(), allowed = uv_get_constrained_memory();
    uint64_t *staged[FAD_LEVELS];

    for (int level = 0; level < FAD_LEVELS; level++)
        staged[level] = &limits[level].of[FAD_STAGED];
    if (allowed > 0 && allowed < memory) /* a control group's limit */
        memory = allowed;
    if (*staged[FAD_LEVEL_CONNECTION] == 0)
        *staged[FAD_LEVEL_CONNECTION] = payload_max + FAD_STAGED_BESIDE_PAYLOAD;
    if (*staged[FAD_LEVEL_USER] == 0)
        *staged[FAD_LEVEL_USER] = 2 * (payload_max + FAD_STAGED_BESIDE_PAYLOAD);
    if (*staged[FAD_LEVEL_DAEMON] == 0)
        *staged[FAD_LEVEL_DAEMON] = memory / 4;
    if (limits[FAD_LEVEL_DAEMON].of[FAD_MAPPED] == 0)
        limits[FAD_LEVEL_DAEMON].of[FAD_MAPPED] = memory / 2;
}

static void set_limits(struct fad_server *server, const struct fad_options *options)
{
    struct fad_amounts limits[FAD_LEVELS];
    struct rlimit files;

    memcpy(limits, options->limits, sizeof limits);
    complete_limits(limits, options->payload_max);
    fad_account_init(&server->account, "the daemon", NULL, false, &limits[FAD_LEVEL_DAEMON]);
    fad_users_init(&server->users, &server->account, &limits[FAD_LEVEL_USER]);
    server->service = (struct fad_service){
        .loop = &server->loop,
        .engine = &server->engine,
        .account = &server->account,
        .limit = limits[FAD_LEVEL_CONNECTION],
        .users = &server->users,
        .connections = &server->connections,
        .statistics = &server->statistics,
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
    uv_timer_init(&server->loop, &server->watchdog);
    uv_timer_init(&server->loop, &server->stop_timer);
    server->tick.data = server->watchdog.data = server->stop_timer.data = server;
    server->signals.data = server;
    server->stop_wake.data = server->accept_poll.data = server;
    uv_timer_start(&server->tick, on_tick, 500, 500);
}

/* The threads made from now on block the signals, as this one does. One that was there before, of a
 * library that a tool has put into the process, may be given them, and hands them on. */
static pthread_t catcher;

static void hand_on(int number)
{
    pthread_kill(catcher, number);
}

/* 0 or a negative errno. */
static int catch_signals(struct fad_server *server)
{
    struct sigaction action = {.sa_handler = hand_on, .sa_flags = SA_RESTART};
    sigset_t set;
    int r;

    catcher = pthread_self();
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0 || sigaction(SIGTERM, &action, NULL) != 0 ||
        sigaction(SIGINT, &action, NULL) != 0 ||
        (server->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return -errno;
    r = uv_poll_init(&server->loop, &server->signals, server->signal_fd);
    return r < 0 ? r : uv_poll_start(&server->signals, UV_READABLE, on_signals);
}

static void close_signals(struct fad_server *server)
{
    if (server->signal_fd >= 0)
        close(server->signal_fd);
    server->signal_fd = -1;
}

/* The counts go on where they can; nothing else depends on them. */
static void take_counters(struct fad_server *server, const struct fad_handover *handover)
{
    struct fa_error error;

    server->loss.losses = handover->losses;
    server->next_number = handover->next_connection;
    if (handover->counters < 0)
        return;
    if (fad_carried_read(handover->counters, &server->statistics, &server->users, &error) != FA_OK)
        fad_log(FAD_LOG_ERROR, "the statistics start from zero: %s", error.text);
    server->loss.answered_before = server->statistics.lost;
    close(handover->counters);
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

int fad_server_init(struct fad_server *server, const struct fad_options *options,
                    const struct fad_backend_ops *backend, const struct fad_handover *handover,
                    struct fa_error *error)
{
    struct fad_backend_config config = {.workers = (uint32_t)options->workers,
                                        .devices = options->devices,
                                        .streams = (uint32_t)options->streams,
                                        .pinned_bytes = options->pinned};
    int r;

    *server = (struct fad_server){
        .next_number = 1, .signal_fd = -1, .listener.handle = {.fd = -1, .lock_fd = -1}};
    TAILQ_INIT(&server->connections);
    if ((r = uv_loop_init(&server->loop)) < 0) {
        fa_error_set(error, FA_INTERNAL, "", "cannot make the event loop: %s", uv_strerror(r));
        return r;
    }
    if ((r = fad_statistics_init(&server->statistics, uv_hrtime())) < 0) {
        fa_error_set(error, FA_INTERNAL, "", "no memory for the statistics");
        uv_loop_close(&server->loop);
        return r;
    }
    set_limits(server, options);
    server->drain_ms = options->drain_seconds * 1000;
    fad_notify_init(&server->notify);
    init_handles(server);
    /* Before there is a socket that a signal could leave behind. */
    if ((r = catch_signals(server)) < 0) {
        fa_error_set(error, FA_INTERNAL, "", "cannot catch signals: %s", uv_strerror(r));
        goto fail;
    }
    if (handover->taken) {
        take_counters(server, handover);
        r = (int)fad_listener_adopt(&server->listener, &handover->listener, error);
    } else {
        r = (int)fad_listener_open(&server->listener, options->socket, error);
    }
    if (r != 0)
        goto fail;
    if ((r = uv_poll_init(&server->loop, &server->accept_poll, server->listener.handle.fd)) < 0 ||
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
    close_signals(server);
    fad_notify_deinit(&server->notify);
    fad_listener_close(&server->listener);
    fad_users_deinit(&server->users);
    fad_statistics_deinit(&server->statistics);
    uv_loop_close(&server->loop);
    return r;
}

enum fad_end fad_server_run(struct fad_server *server)
{
    const struct fad_backend *backend = server->engine.backend;
    const struct fad_losses *losses = &server->loss.losses;

    fad_log(FAD_LOG_INFO, "serving %s on %s (%s, %u device%s, %u streams)",
            server->listener.address.sun_path, backend->devices[0].name, backend->ops->name,
            backend->device_count, backend->device_count == 1 ? "" : "s",
            backend->devices[0].streams);
    if (losses->count > 0)
        fad_log(FAD_LOG_INFO, "back %" PRIu64 " ms after the device was lost (loss %" PRIu64 ")",
                (uv_hrtime() - losses->recent[0]) / 1000000, losses->count);
    fad_server_notify(server);
    if (server->notify.watchdog_ms > 0)
        uv_timer_start(&server->watchdog, on_watchdog, 0, server->notify.watchdog_ms);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    return server->phase == FAD_LOST ? fad_loss_conclude(server) : FAD_END_STOPPED;
}

void fad_server_deinit(struct fad_server *server)
{
    int r;

    if (server->stuck) { /* threads still hold what is there */
        fad_listener_close(&server->listener);
        return;
    }
    r = uv_loop_close(&server->loop);
    assert(r == 0);
    (void)r;
    fad_users_deinit(&server->users);
    fad_account_deinit(&server->account);
    fad_statistics_deinit(&server->statistics);
    close_signals(server);
    fad_notify_deinit(&server->notify);
    fad_listener_close(&server->listener);
}
