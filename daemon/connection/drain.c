/* drain.c: what a connection does when the daemon stops. */
#include "daemon/connection/connection.h"

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

void fad_connection_abandon(struct fad_connection *connection)
{
    struct fad_pending *pending;

    if (connection->state == FAD_CONNECTION_OPEN)
        connection->state = FAD_CONNECTION_ABANDONED;
    while ((pending = find_wanted(connection))) /* looked for anew: one's end may end others */
        fad_pending_abandon(pending, FA_SHUTTING_DOWN);
    fad_connection_flush(connection);
}
