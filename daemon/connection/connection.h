/* connection.h: one client's connection: bytes in, frames, requests in flight, replies, bytes out.
 *
 *     OPEN -> ABANDONED -> ENDING -> CLOSING -> freed
 *
 * ABANDONED, only when the daemon stops: nothing is read any more, and what is in flight is
 * answered that it was abandoned. ENDING: the last reply is on its way. CLOSING: the socket's
 * handle is being closed, what is in flight is abandoned without an answer, regions are released,
 * and the connection is freed after the last of them. */
#ifndef FAD_CONNECTION_H
#define FAD_CONNECTION_H

#include "daemon/connection/engine.h"
#include "daemon/connection/pending.h"
#include "daemon/connection/reader.h"
#include "daemon/connection/region.h"
#include "daemon/connection/user.h"
#include "daemon/connection/writer.h"
#include "daemon/util/log.h"
#include "fad.pb-c.h"

#include <sys/types.h>

struct fad_connection;
struct fad_transfer; /* transfer.c */

/* What all connections share; lives in the server. */
struct fad_service {
    uv_loop_t *loop;
    struct fad_engine *engine;
    struct fad_account *account; /* the daemon's */
    struct fad_amounts limit;    /* of one connection */
    struct fad_users *users;
    struct fad_connections *connections; /* not closing ones, in the order of their numbers */
    struct fad_statistics *statistics;
    uint64_t payload_max; /* bytes of one frame */
    bool stopping;        /* no request is taken any more */
    bool lost;            /* nor then: the device is lost */
    uint64_t stall_ns;    /* without progress in a frame or with unsent replies: closed */
    /* A connection begins to close: it is to leave the server's list. And then: it was freed. */
    void (*on_closing)(void *user, struct fad_connection *connection);
    void (*on_freed)(void *user);
    void *user;
};

enum fad_connection_state {
    FAD_CONNECTION_OPEN,
    FAD_CONNECTION_ABANDONED,
    FAD_CONNECTION_ENDING,
    FAD_CONNECTION_CLOSING
};

struct fad_connection {
    TAILQ_ENTRY(fad_connection) link; /* the service's list */
    const struct fad_service *service;
    struct fad_user *user;
    struct fad_account account; /* a child of its user's */
    struct fad_flow flow;       /* its works, in its user's group */
    struct fad_tally tally;
    enum fad_connection_state state;
    uint64_t number; /* for the log */
    struct fad_log_client log;
    uid_t uid;
    pid_t pid;
    int fd;
    uv_poll_t poll;
    int poll_events; /* what the poll handle waits for */
    bool counted;    /* against its user's connections */
    bool handle_open;
    bool greeted;   /* said hello */
    bool left_over; /* the reader may hold whole frames */
    struct fad_reader reader;
    struct fad_writer writer;
    struct fad_later flush; /* replies wait for the end of a batch of completions */
    TAILQ_HEAD(fad_pendings, fad_pending) pendings;    /* in flight and not abandoned */
    struct fad_pending *receiving;                     /* the one whose payload is being read */
    struct fad_regions regions;                        /* those that have a name */
    uint64_t last_region;                              /* the id given last */
    uint32_t device_regions;                           /* on devices, also those being opened, */
    uint32_t region_device;                            /* and where the last of them is */
    TAILQ_HEAD(fad_transfers, fad_transfer) transfers; /* that wait for their copy */
    TAILQ_ENTRY(fad_connection) copying;               /* its user's list, while there are some */
    uint32_t busy;        /* what it waits for before it is freed: pendings, regions, discards */
    uint32_t discards;    /* descriptors that wait to be closed */
    uint64_t header_ns;   /* when the current frame's message was complete */
    uint64_t progress_ns; /* when bytes last came or went, or a reply became ready */
};

TAILQ_HEAD(fad_connections, fad_connection);

/* Takes an accepted, nonblocking socket, also when it fails. 0 with *out set, or a status: > 0 when
 * only this client is concerned. */
int fad_connection_new(struct fad_connection **out, const struct fad_service *service, int fd,
                       uint64_t number);

/* Counts it against the limits on connections, or expels it. Once it is in the service's list. */
void fad_connection_admit(struct fad_connection *connection);

/* Sends a last reply with the error (id of the request it answers, 0 for none) and closes when it
 * is out. The log gets a line. */
void fad_connection_expel(struct fad_connection *connection, uint64_t id,
                          const struct fa_error *error);

/* Closes at once, for a reason that the log gets. Legal in every state. */
void fad_connection_close(struct fad_connection *connection, const char *reason);

/* Closes when it stalls: to be called about every second. */
void fad_connection_check_stall(struct fad_connection *connection, uint64_t now_ns);

/* --- When the daemon stops (drain.c); the service must say so --------------------------------- */

/* The last word, if nothing is in flight or inside a frame. Sent with the next flush, which does
 * this by itself. */
void fad_connection_expel_if_idle(struct fad_connection *connection);

/* Takes nothing more and abandons its jobs with SHUTTING_DOWN. When all are answered, the last word
 * goes out and it closes. */
void fad_connection_abandon(struct fad_connection *connection);

/* --- When the device is lost (drain.c); the service must say so ------------------------------- */

/* Abandons its jobs with DEVICE_LOST. What it still sends is answered so, too. */
void fad_connection_lose(struct fad_connection *connection);

/* Answers what is still in flight DEVICE_LOST, although the backend does not let go of it. No
 * completion may be heard any more (fad_completions_mute). */
void fad_connection_answer_lost(struct fad_connection *connection);

/* Nothing is in flight, left to be sent, or there to be read. */
bool fad_connection_is_quiet(const struct fad_connection *connection);

/* --- For the handlers (handlers.h) ----------------------------------------------------------- */

/* A reply that says OK, for the caller to fill in further. */
Fad__Reply fad_reply_ok(void);

/* Packs and queues a reply to a request of the type and id. output (may be NULL) is the reply's
 * payload with its charge, given up by the caller. Sent with the next flush. Closes the connection,
 * which abandons what is in flight, when there is no memory for it. */
void fad_connection_reply(struct fad_connection *connection, uint16_t type, uint64_t id,
                          const Fad__Reply *message, void *output, uint64_t output_size,
                          const struct fad_amounts *charge);

/* The same for an error, with a line in the log. */
void fad_connection_refuse(struct fad_connection *connection, uint16_t type, uint64_t id,
                           const struct fa_error *error);

/* Sends what is queued, as far as the socket takes it. May close the connection. */
void fad_connection_flush(struct fad_connection *connection);

/* receive.c: receives once into the reader. What recvmsg returned, -errno, or -ENOMEM; a fault of
 * the stream expels. *all: what it got was all that was there. */
ssize_t fad_connection_receive(struct fad_connection *connection, bool *all);

/* The request in flight with the id, or NULL. */
struct fad_pending *fad_connection_find(const struct fad_connection *connection, uint64_t id);

/* Something that the connection waited for (busy) is gone: frees the connection if it is closed and
 * that was the last. */
void fad_connection_free_if_done(struct fad_connection *connection);

#endif
