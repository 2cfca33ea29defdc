/* pending.h: a request that is in flight: admitted, and not yet answered. Embedded in what carries
 * it out: a job, a transfer, a region being opened or released. */
#ifndef FAD_PENDING_H
#define FAD_PENDING_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct fad_connection;

struct fad_pending {
    TAILQ_ENTRY(fad_pending) link; /* the connection's list, until it ends or is abandoned */
    struct fad_connection *connection;
    uint16_t type; /* the request's frame type */
    uint64_t id;
    bool listed;
    bool abandoned;
    void *payload; /* where the frame's payload goes; NULL when it has none */

    /* So many bytes of the payload are there, and more will come. Not called once it is abandoned.
     * NULL: nothing to do. */
    void (*progress)(struct fad_pending *pending, uint64_t bytes);

    /* The frame is complete. Called at most once, soon after fad_pending_begin, and not once it is
     * abandoned. NULL: nothing to do. */
    void (*received)(struct fad_pending *pending);

    /* Nobody wants its result any more: it is to end with the status as soon as can be, perhaps
     * from inside the call. Called at most once. NULL: it ends soon by itself. */
    void (*abandon)(struct fad_pending *pending, enum fa_status status);
};

/* Puts a request in flight, with type, id, payload and the functions set. From now on the
 * connection waits for it before it is freed. Where received is set, the handler makes it
 * connection->receiving. */
void fad_pending_begin(struct fad_connection *connection, struct fad_pending *pending);

/* Abandons it, unless it is already. */
void fad_pending_abandon(struct fad_pending *pending, enum fa_status status);

/* The request has ended. True when its reply is still wanted: to be given by fad_connection_reply
 * or fad_connection_refuse. Then, the owner's own memory being free again, fad_pending_done. */
bool fad_pending_end(struct fad_pending *pending);

/* The last word about an ended request: its reply is sent soon, and the connection freed if this
 * was all that it waited for. */
void fad_pending_done(struct fad_connection *connection);

#endif
