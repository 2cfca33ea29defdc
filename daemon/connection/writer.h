/* writer.h: the replies of a connection, in the order they became ready, and how they go out. */
#ifndef FAD_WRITER_H
#define FAD_WRITER_H

#include "daemon/util/account.h"
#include "proto/fa_frame.h"

#include <stddef.h>
#include <sys/queue.h>

/* One reply. release() frees what payload is and gives back the charge; the writer calls it when
 * the reply is sent or dropped, and then frees the struct. */
struct fad_reply {
    STAILQ_ENTRY(fad_reply) link;
    void *payload;
    uint64_t payload_size;
    struct fad_amounts charge;
    void (*release)(struct fad_reply *reply, void *owner);
    uint64_t sent;    /* bytes of head and payload */
    size_t head_size; /* header and message */
    uint8_t head[];
};

struct fad_writer {
    void *owner; /* handed to release() */
    STAILQ_HEAD(fad_replies, fad_reply) replies;
    uint32_t count;
    size_t head_bytes; /* of all replies' headers and messages */
};

void fad_writer_init(struct fad_writer *writer, void *owner);

/* Appends it; the writer's from now on. */
void fad_writer_push(struct fad_writer *writer, struct fad_reply *reply);

/* Sends what the socket takes, up to half a MiB. 0, with writer->count telling what is left, or a
 * negative errno (the peer is gone). *progress is set when any byte went out. */
int fad_writer_flush(struct fad_writer *writer, int fd, int *progress);

/* Drops all replies. */
void fad_writer_clear(struct fad_writer *writer);

#endif
