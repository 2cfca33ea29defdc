/* drain.c: what a connection does when the daemon stops, and when the device is lost. */
#include "daemon/connection/connection.h"
#include "daemon/connection/handlers.h"

#include <sys/ioctl.h>

void fad_connection_expel_if_idle(struct fad_connection *connection)
{
    const bool reading = connection->state == FAD_CONNECTION_OPEN;
    struct fa_error error;

    if (!TAILQ_EMPTY(&connection->pendings) ||
        (reading && fad_reader_inside_frame(&connection->reader)))
        return;
    fa_error_set(&error, FA_SHUTTING_DOWN, "", "%s", fa_status_text(FA_SHUTTING_DOWN));
    fad_connection_expel(connection, 0, &error);
}

/* A request in flight that is not abandoned yet, or NULL. */
static struct fad_pending *find_wanted(const struct fad_connection *connection)
{
    struct fad_pending *pending;

    TAILQ_FOREACH (pending, &connection->pendings, link)
        if (!pending->abandoned)
            return pending;
    return NULL;
}

static void abandon_all(struct fad_connection *connection, enum fa_status status)
{
    struct fad_pending *pending;

    while ((pending = find_wanted(connection))) /* looked for anew: one's end may end others */
        fad_pending_abandon(pending, status);
    fad_connection_flush(connection);
}

void fad_connection_abandon(struct fad_connection *connection)
{
    if (connection->state == FAD_CONNECTION_OPEN)
        connection->state = FAD_CONNECTION_ABANDONED;
    abandon_all(connection, FA_SHUTTING_DOWN);
}

void fad_connection_lose(struct fad_connection *connection)
{
    abandon_all(connection, FA_DEVICE_LOST);
}

void fad_connection_answer_lost(struct fad_connection *connection)
{
    struct fad_pending *pending;
    struct fa_error error;

    fa_error_set(&error, FA_DEVICE_LOST, "", "%s", fa_status_text(FA_DEVICE_LOST));
    while (connection->state < FAD_CONNECTION_ENDING &&
           (pending = TAILQ_FIRST(&connection->pendings))) {
        TAILQ_REMOVE(&connection->pendings, pending, link);
        pending->listed = false;
        if (pending->type == FA_FRAME_FORWARD)
            fad_note_refused_forward(connection, FA_DEVICE_LOST);
        fad_connection_refuse(connection, pending->type, pending->id, &error);
    }
    fad_connection_flush(connection);
}

bool fad_connection_is_quiet(const struct fad_connection *connection)
{
    const bool reading = connection->state == FAD_CONNECTION_OPEN;
    int unread = 0;

    if (reading)
        (void)ioctl(connection->fd, FIONREAD, &unread);
    return TAILQ_EMPTY(&connection->pendings) && connection->writer.count == 0 && unread == 0 &&
           !(reading && connection->left_over);
}
