/* connection.h: one client's connection: bytes in, frames, jobs, replies, bytes out.
 *
 *     OPEN -> DRAINING -> CLOSING -> freed
 *
 * DRAINING: the last reply is on its way; nothing is read any more. CLOSING: the socket's handle is
 * being closed, jobs under way are abandoned and the connection is freed after the last of them. */
#ifndef FAD_CONNECTION_H
#define FAD_CONNECTION_H

#include "daemon/connection/job.h"
#include "daemon/connection/reader.h"
#include "daemon/connection/writer.h"
#include "fad.pb-c.h"

#include <sys/types.h>

struct fad_connection;

/* What all connections share; lives in the server. */
struct fad_service {
    uv_loop_t *loop;
    struct fad_engine *engine;
    struct fad_account *account; /* the daemon's: parent of every connection's */
    struct fad_amounts limit;    /* of one connection */
    uint64_t payload_max;        /* bytes of one frame */
    uint64_t stall_ns;           /* without progress in a frame or with unsent replies: closed */
    /* A connection begins to close: it is to leave the server's list. And then: it was freed. */
    void (*on_closing)(void *user, struct fad_connection *connection);
    void (*on_freed)(void *user);
    void *user;
};

enum fad_connection_state { FAD_CONNECTION_OPEN, FAD_CONNECTION_DRAINING, FAD_CONNECTION_CLOSING };

struct fad_connection {
    TAILQ_ENTRY(fad_connection) link; /* the server's list */
    const struct fad_service *service;
    struct fad_account account;
    enum fad_connection_state state;
    uint64_t number; /* for the log */
    uid_t uid;
    pid_t pid;
    int fd;
    uv_poll_t poll;
    int poll_events; /* what the poll handle waits for */
    bool handle_open;
    bool greeted;   /* said hello */
    bool left_over; /* the reader may hold whole frames: reading paused */
    struct fad_reader reader;
    struct fad_writer writer;
    TAILQ_HEAD(fad_jobs, fad_job) jobs; /* not yet answered */
    struct fad_job *receiving;          /* the job whose payload is being read */
    uint32_t job_count;                 /* those, and the abandoned ones */
    uint64_t header_ns;                 /* when the current frame's message was complete */
    uint64_t progress_ns;               /* when bytes last came or went, or a reply became ready */
};

/* Takes an accepted, nonblocking socket, also when it fails. 0 with *out set, or a status: > 0 when
 * only this client is concerned. */
int fad_connection_new(struct fad_connection **out, const struct fad_service *service, int fd,
                       uint64_t number);

/* Sends a last reply with the error (id of the request it answers, 0 for none) and closes when it
 * is out. The log gets a line. */
void fad_connection_expel(struct fad_connection *connection, uint64_t id,
                          const struct fa_error *error);

/* Closes at once, for a reason that the log gets. Legal in every state. */
void fad_connection_close(struct fad_connection *connection, const char *reason);

/* Closes when it stalls: to be called about every second. */
void fad_connection_check_stall(struct fad_connection *connection, uint64_t now_ns);

/* --- For the handlers (handlers.c) ----------------------------------------------------------- */

/* Packs and queues a reply to a request of the type and id. output (may be NULL) is the reply's
 * payload with its charge, given up by the caller. Sent with the next flush. */
void fad_connection_reply(struct fad_connection *connection, uint16_t type, uint64_t id,
                          const Fad__Reply *message, void *output, uint64_t output_size,
                          const struct fad_amounts *charge);

/* The same for an error. */
void fad_connection_refuse(struct fad_connection *connection, uint16_t type, uint64_t id,
                           const struct fa_error *error);

/* Sends what is queued, as far as the socket takes it. May close the connection. */
void fad_connection_flush(struct fad_connection *connection);

/* A job was freed: frees the connection if it is closed and this was the last. */
void fad_connection_free_if_done(struct fad_connection *connection);

/* handlers.c: answers a frame's message, and tells the reader what to do with its payload. Takes
 * the message's descriptor. */
void fad_handle_message(struct fad_connection *connection, const struct fad_message *message);

#endif
