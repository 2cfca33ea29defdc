#include "daemon/connection/connection.h"

#include "daemon/connection/discard.h"
#include "daemon/util/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A client that does not read its replies is not read from while this many wait. */
#define UNSENT_MAX 128u

/* Bytes read from one connection before the others have their turn. */
#define READ_BUDGET ((size_t)4 << 20)

static void update_poll(struct fad_connection *connection);

/* --- End ------------------------------------------------------------------------------------- */

void fad_connection_free_if_done(struct fad_connection *connection)
{
    const struct fad_service *service = connection->service;

    if (connection->state != FAD_CONNECTION_CLOSING || connection->handle_open ||
        connection->job_count > 0)
        return;
    fad_account_deinit(&connection->account);
    free(connection);
    service->on_freed(service->user);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct fad_connection *connection =
        fad_container_of((uv_poll_t *)handle, struct fad_connection, poll);
    connection->handle_open = false;
    close(connection->fd);
    fad_connection_free_if_done(connection);
}

void fad_connection_close(struct fad_connection *connection, const char *reason)
{
    struct fad_job *job;

    if (connection->state == FAD_CONNECTION_CLOSING)
        return;
    fad_log(FAD_LOG_INFO, "connection %" PRIu64 " (uid %u, pid %d) closed: %s", connection->number,
            (unsigned)connection->uid, (int)connection->pid, reason);
    connection->state = FAD_CONNECTION_CLOSING;
    connection->service->on_closing(connection->service->user, connection);
    connection->receiving = NULL;
    fad_reader_deinit(&connection->reader);
    fad_writer_clear(&connection->writer);
    connection->job_count++; /* this function's own: no job's end frees the connection here */
    while ((job = TAILQ_FIRST(&connection->jobs))) {
        TAILQ_REMOVE(&connection->jobs, job, link);
        fad_job_abandon(job, FA_CANCELLED);
    }
    connection->job_count--;
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
    fad_log(FAD_LOG_INFO, "connection %" PRIu64 " (uid %u, pid %d) request %" PRIu64 " refused: %s",
            connection->number, (unsigned)connection->uid, (int)connection->pid, id, line);
    message.has_status = true;
    message.status = (Fad__Status)error->status;
    message.field = error->field[0] ? (char *)error->field : NULL;
    message.text = (char *)error->text;
    fad_connection_reply(connection, type, id, &message, NULL, 0, NULL);
}

void fad_connection_flush(struct fad_connection *connection)
{
    int progress = 0, r;

    if (connection->state == FAD_CONNECTION_CLOSING)
        return;
    r = fad_writer_flush(&connection->writer, connection->fd, &progress);
    if (progress)
        connection->progress_ns = uv_hrtime();
    if (r < 0)
        fad_connection_close(connection, "the client is gone with replies unsent");
    else if (connection->state == FAD_CONNECTION_DRAINING && connection->writer.count == 0)
        fad_connection_close(connection, "its last reply is sent");
    else
        update_poll(connection);
}

void fad_connection_expel(struct fad_connection *connection, uint64_t id,
                          const struct fa_error *error)
{
    if (connection->state != FAD_CONNECTION_OPEN)
        return;
    connection->state = FAD_CONNECTION_DRAINING;
    fad_connection_refuse(connection, 0, id, error);
}

/* --- Reading --------------------------------------------------------------------------------- */

/* Reading pauses between frames only: a frame that has begun is read to its end. */
static bool paused(const struct fad_connection *connection)
{
    return connection->state != FAD_CONNECTION_OPEN ||
           (connection->writer.count >= UNSENT_MAX &&
            connection->reader.state == FAD_READER_HEADER);
}

static void frame_ended(struct fad_connection *connection)
{
    struct fad_job *job = connection->receiving;
    connection->receiving = NULL;
    if (job)
        fad_job_start(job);
}

/* The id of the frame at which the stream broke; 0 when its request has had its one reply. */
static uint64_t unanswered_id(const struct fad_connection *connection)
{
    bool answered = connection->reader.state == FAD_READER_PAYLOAD && connection->receiving == NULL;
    return answered ? 0 : connection->reader.frame.id;
}

/* Takes what the reader has. */
static void take_frames(struct fad_connection *connection)
{
    struct fad_message message;
    struct fa_error error;

    connection->left_over = false;
    while (!paused(connection)) {
        switch (fad_reader_next(&connection->reader, &message, &error)) {
        case FAD_READER_NOTHING:
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

/* Collects the descriptors of a received message. False when some were cut off. */
static bool collect_fds(struct msghdr *message, int *fds, int *count)
{
    *count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int here = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + *count, CMSG_DATA(c), (size_t)here * sizeof(int));
        *count += here;
    }
    return !(message->msg_flags & MSG_CTRUNC);
}

/* One receive. What recvmsg returned, -ENOMEM, or 0 for anything after which the connection
 * ends. */
static ssize_t receive(struct fad_connection *connection)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FAD_READER_FDS_MAX * sizeof(int))];
    } control;
    struct iovec iov[2];
    struct msghdr message = {
        .msg_iov = iov, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    int count = fad_reader_space(&connection->reader, iov), fds[FAD_READER_FDS_MAX], fd_count;
    struct fa_error error;
    ssize_t size;
    bool whole;

    if (count == 0)
        return -ENOMEM;
    message.msg_iovlen = (size_t)count;
    do {
        size = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0)
        return -errno;
    whole = collect_fds(&message, fds, &fd_count);
    if (!fad_reader_received(&connection->reader, (size_t)size, fds, fd_count, &error)) {
        fad_connection_expel(connection, 0, &error);
    } else if (!whole) {
        fa_error_set(&error, FA_PROTOCOL_ERROR, "header.nfds",
                     "more descriptors came at once than the %d that may wait, or the daemon has "
                     "none left",
                     FAD_READER_FDS_MAX);
        fad_connection_expel(connection, 0, &error);
    }
    return size;
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

    take_frames(connection); /* what was left when reading paused */
    while (!paused(connection)) {
        ssize_t size = receive(connection);
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
        take_frames(connection);
        if ((size_t)size >= budget)
            break;
        budget -= (size_t)size;
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct fad_connection *connection = fad_container_of(poll, struct fad_connection, poll);

    if (status < 0)
        connection->poll_events = 0; /* libuv has stopped the handle */
    /* A status < 0 is a peer that died with unread data: what it sent is still read first. */
    if (status < 0 || (events & UV_READABLE) || connection->left_over)
        read_all(connection);
    if (status < 0 && paused(connection))
        fad_connection_close(connection, "the client is gone");
    fad_connection_flush(connection);
}

static void update_poll(struct fad_connection *connection)
{
    int events =
        (paused(connection) ? 0 : UV_READABLE) | (connection->writer.count > 0 ? UV_WRITABLE : 0);

    /* Frames that were received before reading paused make no socket readable: a writable one wakes
     * the loop to take them. */
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
    struct fad_connection *connection = user;
    fad_discard_fd(connection->service->loop, fd);
}

/* --- Begin ----------------------------------------------------------------------------------- */

int fad_connection_new(struct fad_connection **out, const struct fad_service *service, int fd,
                       uint64_t number)
{
    struct fad_connection *connection = calloc(1, sizeof *connection);
    struct ucred peer = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t size = sizeof peer;

    if (!connection) {
        close(fd);
        return FA_RESOURCE_EXHAUSTED;
    }
    if (uv_poll_init(service->loop, &connection->poll, fd) < 0) {
        close(fd);
        free(connection);
        return FA_RESOURCE_EXHAUSTED;
    }
    /* Without it the log says uid -1. */
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    connection->service = service;
    connection->number = number;
    connection->uid = peer.uid;
    connection->pid = peer.pid;
    connection->fd = fd;
    connection->handle_open = true;
    connection->progress_ns = uv_hrtime();
    fad_account_init(&connection->account, "connection", service->account, &service->limit);
    fad_reader_init(&connection->reader, service->payload_max, discard, connection);
    fad_writer_init(&connection->writer, connection);
    TAILQ_INIT(&connection->jobs);
    update_poll(connection);
    *out = connection;
    return 0;
}
