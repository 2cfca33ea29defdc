#include "daemon/connection/pending.h"

#include "daemon/connection/connection.h"

void fad_pending_begin(struct fad_connection *connection, struct fad_pending *pending)
{
    pending->connection = connection;
    pending->listed = true;
    TAILQ_INSERT_TAIL(&connection->pendings, pending, link);
    connection->busy++;
}

void fad_pending_abandon(struct fad_pending *pending, enum fa_status status)
{
    if (pending->abandoned)
        return;
    pending->abandoned = true;
    if (pending->abandon)
        pending->abandon(pending, status);
}

bool fad_pending_end(struct fad_pending *pending)
{
    struct fad_connection *connection = pending->connection;

    if (pending->listed)
        TAILQ_REMOVE(&connection->pendings, pending, link);
    pending->listed = false;
    if (connection->receiving == pending) {
        connection->receiving = NULL;
        fad_reader_drop(&connection->reader);
    }
    return connection->state < FAD_CONNECTION_ENDING;
}

void fad_pending_done(struct fad_connection *connection)
{
    if (connection->state != FAD_CONNECTION_CLOSING)
        fad_engine_later(connection->service->engine, &connection->flush);
    connection->busy--;
    fad_connection_free_if_done(connection);
}

struct fad_pending *fad_connection_find(const struct fad_connection *connection, uint64_t id)
{
    struct fad_pending *pending;
    TAILQ_FOREACH (pending, &connection->pendings, link)
        if (pending->id == id)
            return pending;
    return NULL;
}
