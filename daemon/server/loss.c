#include "daemon/server/loss.h"

#include "daemon/connection/carried.h"
#include "daemon/server/server.h"
#include "daemon/util/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* From the loss on: for the backend to end what it has under way, as it should at once, and for
 * the answers to go out. */
#define ANSWER_MS 100
#define FLUSH_MS  200

/* For connections to close, after that: a descriptor whose close a client draws out keeps its one
 * from it, and so does what the backend does not end. */
#define CLOSE_MS 100

/* How often it is looked at how far things are. */
#define LOOK_MS 2

static uint64_t since_ms(uint64_t then_ns)
{
    return (uv_hrtime() - then_ns) / 1000000;
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* --- Going through the connections ------------------------------------------------------------ */

static void for_each(struct fad_server *server, void (*visit)(struct fad_connection *connection))
{
    struct fad_connection *connection, *next;

    for (connection = TAILQ_FIRST(&server->connections); connection; connection = next) {
        next = TAILQ_NEXT(connection, link);
        visit(connection);
    }
}

static void close_lost(struct fad_connection *connection)
{
    fad_connection_close(connection, "the device is lost");
}

static bool is_quiet(const struct fad_server *server)
{
    const struct fad_connection *connection;

    TAILQ_FOREACH (connection, &server->connections, link)
        if (!fad_connection_is_quiet(connection))
            return false;
    return true;
}

/* --- The phase -------------------------------------------------------------------------------- */

static void on_look(uv_timer_t *timer)
{
    struct fad_server *server = timer->data;
    struct fad_loss *loss = &server->loss;
    const uint64_t elapsed_ms = since_ms(loss->losses.recent[0]);

    if (!loss->closing) {
        if (elapsed_ms >= ANSWER_MS && !server->engine.completions.muted) {
            fad_completions_mute(&server->engine.completions);
            for_each(server, fad_connection_answer_lost);
        }
        if (elapsed_ms < FLUSH_MS && !is_quiet(server))
            return;
        loss->closing = true;
        loss->closing_ns = uv_hrtime();
        for_each(server, close_lost);
    }
    if (server->connection_count > 0 && since_ms(loss->closing_ns) < CLOSE_MS)
        return;
    uv_timer_stop(timer);
    uv_stop(&server->loop);
}

void fad_loss_note(struct fad_server *server, int error)
{
    struct fad_loss *loss = &server->loss;

    if (loss->error < 0)
        return;
    loss->error = error;
    loss->too_many = !fad_losses_note(&loss->losses, uv_hrtime());
    server->service.lost = true;
}

void fad_loss_begin(struct fad_server *server)
{
    const struct fad_backend *backend = server->engine.backend;
    struct fad_loss *loss = &server->loss;

    if (server->phase != FAD_SERVING && server->phase != FAD_DRAINING)
        return;
    if (server->phase == FAD_SERVING) {
        uv_poll_stop(&server->accept_poll);
        server->accepting = false;
    }
    server->phase = FAD_LOST;
    fad_engine_drain(&server->engine); /* what it says may say why */
    loss->text = server->engine.completions.text;
    fad_log(FAD_LOG_ERROR, "the device is lost (%s, %s): %s%s%s",
            backend->device_count == 1 ? backend->devices[0].name : "one of several",
            backend->ops->name, loss->text ? loss->text : "", loss->text ? ": " : "",
            uv_strerror(loss->error));
    for_each(server, fad_connection_lose);
    uv_timer_start(&server->stop_timer, on_look, LOOK_MS, LOOK_MS);
}

/* --- Afterwards ------------------------------------------------------------------------------- */

enum fad_end fad_loss_conclude(struct fad_server *server)
{
    const struct fad_loss *loss = &server->loss;
    const uint64_t answered = server->statistics.lost - loss->answered_before;
    enum fad_end end = loss->too_many ? FAD_END_FAILED : FAD_END_LOST;

    if (server->stop_asked)
        end = FAD_END_STOPPED;
    server->stuck = true; /* the backend is left as it is */
    fad_log_say_held();
    if (!loss->text && server->engine.completions.text)
        fad_log(FAD_LOG_ERROR, "the device was lost by: %s", server->engine.completions.text);
    fad_log(FAD_LOG_ERROR, "%" PRIu64 " request%s answered DEVICE_LOST, within %" PRIu64 " ms: %s",
            answered, plural(answered), since_ms(loss->losses.recent[0]),
            end == FAD_END_LOST ? "starting anew" : "not starting anew");
    if (end == FAD_END_FAILED)
        fad_log(FAD_LOG_ERROR, "giving up: the device was lost more than %d times within %d s",
                FAD_LOSSES_MAX, (int)(FAD_LOSSES_WITHIN_NS / 1000000000u));
    return end;
}

void fad_loss_hand_over(struct fad_server *server, struct fad_handover *handover)
{
    *handover =
        (struct fad_handover){.listener = server->listener.handle,
                              .counters = fad_carried_write(&server->statistics, &server->users),
                              .next_connection = server->next_number,
                              .losses = server->loss.losses};
    snprintf(handover->backend, sizeof handover->backend, "%s", server->engine.backend->ops->name);
    if (handover->counters < 0) {
        fad_log(FAD_LOG_ERROR, "the statistics start from zero: %s",
                uv_strerror(handover->counters));
        handover->counters = -1;
    }
    fad_notify_reloading(&server->notify, uv_hrtime() / 1000, "the device is lost: starting anew");
}
