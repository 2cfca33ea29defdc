#include "daemon/connection/connection.h"

#include "daemon/connection/discard.h"
#include "daemon/connection/handlers.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that does not read its replies is not read from while so many wait, or so many bytes
 * without their payloads, which are charged. */
#define UNSENT_MAX       128u
#define UNSENT_BYTES_MAX ((size_t)64 << 10)

/* A connection's turn of reading ends after so many bytes, or when frames have taken so long. */
#define READ_BUDGET ((size_t)512 << 10)
#define TURN_NS     50000u

static const struct fad_amounts one_connection = {{[FAD_CONNECTIONS] = 1}};

static void update_poll(struct fad_connection *connection);

/* --- End ------------------------------------------------------------------------------------- */

void fad_connection_free_if_done(struct fad_connection *connection)
{
    const struct fad_service *service = connection->service;

    if (connection->state != FAD_CONNECTION_CLOSING || connection->handle_open ||
        connection->busy > 0)
        return;
    fad_account_deinit(&connection->account);
    if (connection->counted)
        fad_account_release(&connection->user->account, &one_connection);
    fad_user_put(service->users, connection->user);
    free(connection);
    service->on_freed(service->user);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct fad_connection *connection =
        fad_container_of((uv_poll_t *)handle, struct fad_connection, poll);
    connection->handle_open = false;
    fad_discard_socket(connection);
    fad_connection_free_if_done(connection);
}

static void log_closing(const struct fad_connection *connection, const char *reason)
{
    char held[64] = "";

    if (connection->log.held > 0)
        snprintf(held, sizeof held, "; %" PRIu64 " of its lines were held back",
                 connection->log.held);
    fad_log_of_client(NULL, uv_hrtime(), "connection %" PRIu64 " (uid %u, pid %d) closed: %s%s",
                      connection->number, (unsigned)connection->uid, (int)connection->pid, reason,
                      held);
}

void fad_connection_close(struct fad_connection *connection, const char *reason)
{
    struct fad_pending *pending;

    if (connection->state == FAD_CONNECTION_CLOSING)
        return;
    log_closing(connection, reason);
    connection->state = FAD_CONNECTION_CLOSING;
    connection->service->on_closing(connection->service->user, connection);
    connection->receiving = NULL;
    fad_reader_deinit(&connection->reader);
    fad_writer_clear(&connection->writer);
    connection->busy++; /* this function's own: nothing that ends in it frees the connection */
    while ((pending = TAILQ_FIRST(&connection->pendings))) {
        TAILQ_REMOVE(&connection->pendings, pending, link);
        pending->listed = false;
        fad_pending_abandon(pending, FA_CANCELLED);
    }
    fad_region_release_all(connection);
    connection->busy--;
    fad_engine_not_later(connection->service->engine, &connection->flush);
    uv_close((uv_handle_t *)&connection->poll, on_handle_closed);
}

/* --- Replies --------------------------------------------------------------------------------- */

static void release_output(struct fad_reply *reply, void *owner)
{
    struct fad_connection *connection = owner;
    struct fad_backend *backend = connection->service->engine->backend;

    if (reply->payload)
        backend->ops->host_free(backend, reply->payload, reply->payload_size);
    fad_account_release(&connection->account, &reply->charge);
}

Fad__Reply fad_reply_ok(void)
{
    Fad__Reply reply = FAD__REPLY__INIT;

    reply.has_status = true;
    reply.status = FAD__STATUS__OK;
    return reply;
}

void fad_connection_reply(struct fad_connection *connection, uint16_t type, uint64_t id,
                          const Fad__Reply *message, void *output, uint64_t output_size,
                          const struct fad_amounts *charge)
{
    size_t length = fad__reply__get_packed_size(message);
    struct fad_reply *reply = malloc(sizeof *reply + FA_FRAME_HEADER_SIZE + length);
    struct fa_frame frame = {.type = type | FA_FRAME_REPLY,
                             .id = id,
                             .message_length = (uint32_t)length,
                             .payload_length = output_size};

    assert(length <= FA_FRAME_MESSAGE_MAX);
    if (!reply) { /* a request without an answer: the client must not wait for it */
        struct fad_reply orphan = {.payload = output, .payload_size = output_size};
        if (charge)
            orphan.charge = *charge;
        release_output(&orphan, connection);
        fad_connection_close(connection, "no memory for a reply");
        return;
    }
    *reply = (struct fad_reply){.payload = output,
                                .payload_size = output_size,
                                .release = release_output,
                                .head_size = FA_FRAME_HEADER_SIZE + length};
    if (charge)
        reply->charge = *charge;
    fa_frame_encode(&frame, reply->head);
    fad__reply__pack(message, reply->head + FA_FRAME_HEADER_SIZE);
    if (connection->writer.count == 0)
        connection->progress_ns = uv_hrtime();
    fad_writer_push(&connection->writer, reply);
}

void fad_connection_refuse(struct fad_connection *connection, uint16_t type, uint64_t id,
                           const struct fa_error *error)
{
    Fad__Reply message = FAD__REPLY__INIT;
    char line[sizeof *error + 64];

    fa_error_format(error, line, sizeof line);
    fad_log_of_client(&connection->log, uv_hrtime(),
                      "connection %" PRIu64 " (uid %u, pid %d) request %" PRIu64 " refused: %s",
                      connection->number, (unsigned)connection->uid, (int)connection->pid, id,
                      line);
    message.has_status = true;
    message.status = (Fad__Status)error->status;
    message.field = error->field[0] ? (char *)error->field : NULL;
    message.text = (char *)error->text;
    if (error->status == FA_DEVICE_LOST)
        connection->service->statistics->lost++;
    fad_connection_reply(connection, type, id, &message, NULL, 0, NULL);
}

void fad_connection_flush(struct fad_connection *connection)
{
    int progress = 0, r;

    if (connection->state == FAD_CONNECTION_CLOSING)
        return;
    if (connection->service->stopping)
        fad_connection_expel_if_idle(connection);
    r = fad_writer_flush(&connection->writer, connection->fd, &progress);
    if (progress)
        connection->progress_ns = uv_hrtime();
    if (r < 0)
        fad_connection_close(connection, "the client is gone with replies unsent");
    else if (connection->state == FAD_CONNECTION_ENDING && connection->writer.count == 0)
        fad_connection_close(connection, "its last reply is sent");
    else
        update_poll(connection);
}

void fad_connection_expel(struct fad_connection *connection, uint64_t id,
                          const struct fa_error *error)
{
    if (connection->state >= FAD_CONNECTION_ENDING)
        return;
    connection->state = FAD_CONNECTION_ENDING;
    fad_connection_refuse(connection, 0, id, error);
}

/* --- Reading --------------------------------------------------------------------------------- */

/* Reading pauses between frames only: a frame that has begun is read to its end. */
static bool paused(const struct fad_connection *connection)
{
    return connection->state != FAD_CONNECTION_OPEN ||
           ((connection->writer.count >= UNSENT_MAX ||
             connection->writer.head_bytes >= UNSENT_BYTES_MAX ||
             connection->discards >= FAD_DISCARDS_MAX) &&
            connection->reader.state == FAD_READER_HEADER);
}

static void frame_ended(struct fad_connection *connection)
{
    struct fad_pending *pending = connection->receiving;
    connection->receiving = NULL;
    if (pending && pending->received && !pending->abandoned)
        pending->received(pending);
}

/* A frame's payload is there in part. */
static void note_progress(const struct fad_connection *connection)
{
    struct fad_pending *pending = connection->receiving;

    if (pending && pending->progress && !pending->abandoned)
        pending->progress(pending, fad_reader_payload_there(&connection->reader));
}

/* The id of the frame at which the stream broke; 0 when its request has had its one reply. */
static uint64_t unanswered_id(const struct fad_connection *connection)
{
    bool answered = connection->reader.state == FAD_READER_PAYLOAD && connection->receiving == NULL;
    return answered ? 0 : connection->reader.frame.id;
}

/* Takes what the reader has, until a frame begins after the turn's end. */
static void take_frames(struct fad_connection *connection, uint64_t turn_ends_ns)
{
    struct fad_message message;
    struct fa_error error;

    connection->left_over = false;
    while (!paused(connection) && connection->header_ns < turn_ends_ns) {
        switch (fad_reader_next(&connection->reader, &message, &error)) {
        case FAD_READER_NOTHING:
            note_progress(connection);
            return;
        case FAD_READER_MESSAGE:
            connection->header_ns = uv_hrtime();
            fad_handle_message(connection, &message);
            break;
        case FAD_READER_END:
            frame_ended(connection);
            break;
        case FAD_READER_BROKEN:
            fad_connection_expel(connection, unanswered_id(connection), &error);
            return;
        }
    }
    connection->left_over = true;
}

/* Bytes in are progress; but while replies wait unread only a payload's are, lest a client hold
 * their memory by dripping requests. */
static void note_read(struct fad_connection *connection)
{
    if (connection->writer.count == 0 || connection->reader.state == FAD_READER_PAYLOAD)
        connection->progress_ns = uv_hrtime();
}

/* Reads until the socket is empty, the budget is spent or the connection pauses. */
static void read_all(struct fad_connection *connection)
{
    size_t budget = READ_BUDGET;
    const uint64_t turn_ends_ns = uv_hrtime() + TURN_NS;
    bool all = false;

    take_frames(connection, turn_ends_ns); /* what was left over */
    while (!paused(connection) && !all && !connection->left_over) {
        ssize_t size = fad_connection_receive(connection, &all);
        if (size == -EAGAIN)
            break;
        if (size <= 0) {
            const char *reason = fad_reader_inside_frame(&connection->reader)
                                     ? "the client hung up inside a frame"
                                     : "the client hung up";
            fad_connection_flush(connection); /* the peer may have shut down its writing only */
            fad_connection_close(connection, size == -ENOMEM ? "no memory to read into" : reason);
            return;
        }
        note_read(connection);
        take_frames(connection, turn_ends_ns);
        if ((size_t)size >= budget)
            break;
        budget -= (size_t)size;
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct fad_connection *connection = fad_container_of(poll, struct fad_connection, poll);
    struct fad_engine *engine = connection->service->engine;

    fad_engine_watch(engine);
    if (status < 0)
        connection->poll_events = 0; /* libuv has stopped the handle */
    /* A status < 0 is a peer that died with unread data: what it sent is still read first. */
    if (status < 0 || (events & UV_READABLE) || connection->left_over)
        read_all(connection);
    if (status < 0 && paused(connection))
        fad_connection_close(connection, "the client is gone");
    fad_connection_flush(connection);
    fad_engine_drain(engine);
}

static void flush_later(struct fad_later *later)
{
    fad_connection_flush(fad_container_of(later, struct fad_connection, flush));
}

static void update_poll(struct fad_connection *connection)
{
    int events =
        (paused(connection) ? 0 : UV_READABLE) | (connection->writer.count > 0 ? UV_WRITABLE : 0);

    /* Frames that were received and left over make no socket readable: a writable one wakes the
     * loop to take them. */
    if (connection->left_over && !paused(connection))
        events |= UV_WRITABLE;
    if (events == connection->poll_events)
        return;
    connection->poll_events = events;
    if (events)
        uv_poll_start(&connection->poll, events, on_poll);
    else
        uv_poll_stop(&connection->poll);
}

void fad_connection_check_stall(struct fad_connection *connection, uint64_t now_ns)
{
    if (connection->state == FAD_CONNECTION_CLOSING ||
        now_ns <= connection->progress_ns + connection->service->stall_ns)
        return;
    if (connection->writer.count > 0)
        fad_connection_close(connection, "stalled: it does not read its replies");
    else if (!paused(connection) && fad_reader_inside_frame(&connection->reader))
        fad_connection_close(connection, "stalled inside a frame");
}

static void discard(void *user, int fd)
{
    fad_discard_fd(user, fd);
}

/* --- Begin ----------------------------------------------------------------------------------- */

int fad_connection_new(struct fad_connection **out, const struct fad_service *service, int fd,
                       uint64_t number)
{
    struct fad_connection *connection = calloc(1, sizeof *connection);
    struct ucred peer = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t size = sizeof peer;

    /* Without it the uid is -1, whose limits hold as any other's. */
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    if (!connection || !(connection->user = fad_user_get(service->users, peer.uid)))
        goto fail;
    if (uv_poll_init(service->loop, &connection->poll, fd) < 0) {
        fad_user_put(service->users, connection->user);
        goto fail;
    }
    connection->service = service;
    connection->number = number;
    connection->uid = peer.uid;
    connection->pid = peer.pid;
    connection->fd = fd;
    connection->handle_open = true;
    fad_log_client_init(&connection->log);
    connection->progress_ns = uv_hrtime();
    fad_account_init(&connection->account, "the connection", &connection->user->account, true,
                     &service->limit);
    fad_flow_init(&connection->flow, &connection->user->group);
    fad_reader_init(&connection->reader, service->payload_max, discard, connection);
    fad_writer_init(&connection->writer, connection);
    connection->flush.run = flush_later;
    TAILQ_INIT(&connection->pendings);
    TAILQ_INIT(&connection->regions);
    TAILQ_INIT(&connection->transfers);
    update_poll(connection);
    *out = connection;
    return 0;
fail:
    free(connection);
    close(fd);
    return FA_RESOURCE_EXHAUSTED;
}

void fad_connection_admit(struct fad_connection *connection)
{
    struct fa_error error;

    if (fad_account_charge(&connection->user->account, &one_connection, &error) == FA_OK) {
        connection->counted = true;
        return;
    }
    fad_connection_expel(connection, 0, &error);
    fad_connection_flush(connection);
}
