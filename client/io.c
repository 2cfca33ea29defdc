#include "client/internal.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NANOSECONDS_PER_MS 1000000

int64_t fa_deadline_after(int milliseconds)
{
    struct timespec now;

    if (milliseconds < 0)
        return FA_NEVER;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 * NANOSECONDS_PER_MS + now.tv_nsec +
           (int64_t)milliseconds * NANOSECONDS_PER_MS;
}

int fa_deadline_left(int64_t deadline)
{
    int64_t left;

    if (deadline == FA_NEVER)
        return -1;
    left = deadline - fa_deadline_after(0);
    if (left <= 0)
        return 0;
    left = (left + NANOSECONDS_PER_MS - 1) / NANOSECONDS_PER_MS;
    return left > INT_MAX ? INT_MAX : (int)left;
}

/* Memory still to be sent from or received into. */
struct pieces {
    struct iovec list[FA_CALL_OUT_MAX];
    int next, count;
};

static void pieces_add(struct pieces *pieces, struct iovec piece)
{
    assert(pieces->count < FA_CALL_OUT_MAX);
    if (piece.iov_len > 0)
        pieces->list[pieces->count++] = piece;
}

static bool pieces_done(const struct pieces *pieces)
{
    return pieces->next == pieces->count;
}

static void pieces_advance(struct pieces *pieces, size_t bytes)
{
    while (bytes > 0) {
        struct iovec *piece = &pieces->list[pieces->next];
        size_t part = bytes < piece->iov_len ? bytes : piece->iov_len;
        piece->iov_base = (char *)piece->iov_base + part;
        piece->iov_len -= part;
        bytes -= part;
        if (piece->iov_len == 0)
            pieces->next++;
    }
}

enum phase { HEADER, MESSAGE, PAYLOAD, COMPLETE };

struct exchange {
    struct fa_client *client;
    const struct fa_call *call;
    uint64_t id;
    bool closes; /* the connection ends with this exchange */

    struct pieces out;
    uint8_t out_header[FA_FRAME_HEADER_SIZE];
    bool fd_pending; /* the descriptor goes with the first byte */
    bool broken;     /* the daemon takes no more bytes; what it said before can still be read */

    struct pieces in;
    uint64_t in_bytes; /* payload that an OK reply must have */
    enum phase phase;
    bool readable;
    uint8_t in_header[FA_FRAME_HEADER_SIZE];
    struct fa_frame frame;
    const Fad__Reply *reply;
};

static void expect(struct exchange *x, enum phase phase)
{
    x->phase = phase;
    x->in.next = x->in.count = 0;
    if (phase == HEADER)
        pieces_add(&x->in, (struct iovec){x->in_header, sizeof x->in_header});
    if (phase == MESSAGE)
        pieces_add(&x->in, (struct iovec){x->client->message, x->frame.message_length});
    for (int i = 0; phase == PAYLOAD && i < x->call->in_count; i++)
        pieces_add(&x->in, x->call->in[i]);
}

static void exchange_init(struct exchange *x, struct fa_client *client, const struct fa_call *call)
{
    struct fa_frame frame = {.type = call->type, .nfds = call->fd >= 0};

    memset(x, 0, sizeof *x);
    x->client = client;
    x->call = call;
    x->id = client->next_id++;
    x->fd_pending = call->fd >= 0;
    for (int i = 0; i < call->in_count; i++)
        x->in_bytes += call->in[i].iov_len;
    expect(x, HEADER);

    assert(call->message.iov_len <= FA_FRAME_MESSAGE_MAX);
    frame.id = x->id;
    frame.message_length = (uint32_t)call->message.iov_len;
    for (int i = 0; i < call->payload_count; i++)
        frame.payload_length += call->payload[i].iov_len;
    fa_frame_encode(&frame, x->out_header);
    pieces_add(&x->out, (struct iovec){x->out_header, sizeof x->out_header});
    pieces_add(&x->out, call->message);
    for (int i = 0; i < call->payload_count; i++)
        pieces_add(&x->out, call->payload[i]);
}

/* A full reply ends the exchange once the request's frame is complete too, since the daemon reads a
 * frame to its end even after refusing it; or once nothing more can be sent. */
static bool finished(const struct exchange *x)
{
    return x->phase == COMPLETE && (pieces_done(&x->out) || x->broken || x->closes);
}

/* --- Sending --------------------------------------------------------------------------------- */

static enum fa_status send_failed(struct exchange *x, int error)
{
    switch (error) {
    case EFAULT:
        return fa_client_fail(x->client, FA_INVALID_ARGUMENT, "data",
                              "an input's memory cannot be read");
    case EBADF:
        return fa_client_fail(x->client, FA_INVALID_ARGUMENT, "shared",
                              "its descriptor is not open");
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
        return fa_client_fail(x->client, FA_RESOURCE_EXHAUSTED, NULL, "the system cannot send: %s",
                              strerrordesc_np(error));
    default: /* EPIPE, ECONNRESET: it may have said why */
        x->broken = true;
        x->readable = true;
        return FA_OK;
    }
}

/* Sends what the socket takes now. */
static enum fa_status transmit(struct exchange *x)
{
    union {
        char buffer[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;

    while (!pieces_done(&x->out) && !x->broken) {
        struct msghdr message = {.msg_iov = &x->out.list[x->out.next],
                                 .msg_iovlen = (size_t)(x->out.count - x->out.next)};
        ssize_t sent;

        if (x->fd_pending) {
            memset(&control, 0, sizeof control);
            message.msg_control = control.buffer;
            message.msg_controllen = sizeof control.buffer;
            CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &x->call->fd, sizeof(int));
        }
        sent = sendmsg(x->client->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FA_OK;
        if (sent < 0)
            return send_failed(x, errno);
        x->fd_pending = false;
        pieces_advance(&x->out, (size_t)sent);
    }
    return FA_OK;
}

/* --- Receiving ------------------------------------------------------------------------------- */

static enum fa_status check_header(struct exchange *x)
{
    struct fa_client *client = x->client;
    struct fa_error error;
    bool ours, last;

    if (fa_frame_decode(x->in_header, UINT64_MAX, &x->frame, &error) != FA_OK)
        return fa_client_fail(client, error.status, error.field, "in the daemon's reply: %s",
                              error.text);
    ours = x->frame.type == (FA_FRAME_REPLY | x->call->type) && x->frame.id == x->id;
    last = x->frame.type == FA_FRAME_REPLY;
    if (!ours && !last)
        return fa_client_fail(client, FA_PROTOCOL_ERROR, "header",
                              "the daemon answered type 0x%04x id %llu; asked was type 0x%04x id "
                              "%llu",
                              x->frame.type, (unsigned long long)x->frame.id, x->call->type,
                              (unsigned long long)x->id);
    if (x->frame.nfds != 0)
        return fa_client_fail(client, FA_PROTOCOL_ERROR, "header.nfds",
                              "the daemon's reply announces a descriptor");
    x->closes = last;
    expect(x, MESSAGE);
    return FA_OK;
}

static enum fa_status check_message(struct exchange *x)
{
    struct fa_client *client = x->client;
    const Fad__Reply *reply = fad__reply__unpack(fa_arena_reset(&client->arena),
                                                 x->frame.message_length, client->message);

    if (!reply)
        return fa_client_fail(client, FA_PROTOCOL_ERROR, "message",
                              "the daemon's reply cannot be unpacked");
    if (!reply->has_status ||
        !protobuf_c_enum_descriptor_get_value(&fad__status__descriptor, (int)reply->status))
        return fa_client_fail(client, FA_PROTOCOL_ERROR, "status",
                              "the daemon's reply has none that is known");
    if (reply->status == FAD__STATUS__OK) {
        if (x->closes || !pieces_done(&x->out))
            return fa_client_fail(client, FA_PROTOCOL_ERROR, "status",
                                  "the daemon's reply says OK to a request it cannot have read");
        if (x->frame.payload_length != x->in_bytes)
            return fa_client_fail(client, FA_PROTOCOL_ERROR, "header.payload_length",
                                  "the daemon's reply has %llu payload bytes; expected were %llu",
                                  (unsigned long long)x->frame.payload_length,
                                  (unsigned long long)x->in_bytes);
    } else if (x->frame.payload_length != 0) {
        return fa_client_fail(client, FA_PROTOCOL_ERROR, "header.payload_length",
                              "the daemon's refusal has a payload");
    }
    if (reply->status == FAD__STATUS__PROTOCOL_ERROR ||
        reply->status == FAD__STATUS__PROTOCOL_MISMATCH)
        x->closes = true;
    x->reply = reply;
    expect(x, PAYLOAD);
    if (reply->status != FAD__STATUS__OK)
        x->phase = COMPLETE;
    return FA_OK;
}

/* Reads what is there, through as many phases as it completes. */
static enum fa_status receive(struct exchange *x)
{
    enum fa_status status = FA_OK;

    while (status == FA_OK && x->phase != COMPLETE) {
        ssize_t got;

        if (pieces_done(&x->in)) {
            if (x->phase == HEADER)
                status = check_header(x);
            else if (x->phase == MESSAGE)
                status = check_message(x);
            else
                x->phase = COMPLETE;
            continue;
        }
        /* Without a control buffer the kernel drops descriptors that come along. */
        got = readv(x->client->fd, &x->in.list[x->in.next], x->in.count - x->in.next);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FA_OK;
        if (got < 0 && errno == EFAULT)
            return fa_client_fail(x->client, FA_INVALID_ARGUMENT, "data",
                                  "an output's memory cannot be written");
        if (got <= 0)
            return fa_client_fail(
                x->client, FA_DISCONNECTED, NULL,
                "the daemon closed the connection before it answered%s%s; see the "
                "daemon's log, then run again",
                got < 0 ? ": " : "", got < 0 ? strerrordesc_np(errno) : "");
        pieces_advance(&x->in, (size_t)got);
    }
    return status;
}

/* --- Both ------------------------------------------------------------------------------------ */

/* Until the socket is ready for what is left to do. */
static enum fa_status await(struct exchange *x)
{
    struct pollfd poll_fd = {.fd = x->client->fd};

    if (x->phase != COMPLETE)
        poll_fd.events |= POLLIN;
    if (!pieces_done(&x->out) && !x->broken)
        poll_fd.events |= POLLOUT;
    for (;;) {
        int left = fa_deadline_left(x->call->deadline);
        if (left == 0)
            return fa_client_fail(x->client, FA_TIMEOUT, NULL,
                                  "the daemon did not answer in the time given");
        int ready = poll(&poll_fd, 1, left);
        if (ready > 0)
            break;
        if (ready < 0 && errno != EINTR)
            return fa_client_fail(x->client, FA_RESOURCE_EXHAUSTED, NULL,
                                  "the system cannot wait: %s", strerrordesc_np(errno));
    }
    x->readable = poll_fd.revents & (POLLIN | POLLHUP | POLLERR);
    return FA_OK;
}

void fa_client_disconnect(struct fa_client *client, enum fa_status because)
{
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->closed_by = because;
}

enum fa_status fa_client_distrust(struct fa_client *client, const char *field, const char *text)
{
    fa_client_disconnect(client, FA_PROTOCOL_ERROR);
    return fa_client_fail(client, FA_PROTOCOL_ERROR, field, "%s", text);
}

enum fa_status fa_call_run(struct fa_client *client, const struct fa_call *call,
                           const Fad__Reply **reply)
{
    struct exchange x;
    enum fa_status status = FA_OK;

    if (client->fd < 0)
        return fa_client_fail(
            client, FA_DISCONNECTED, NULL,
            "the connection was closed when a call returned %s; open a new client",
            fa_status_name(client->closed_by));
    exchange_init(&x, client, call);
    while (status == FA_OK && !finished(&x)) {
        status = transmit(&x);
        if (status == FA_OK && x.readable)
            status = receive(&x);
        if (status == FA_OK && !finished(&x))
            status = await(&x);
    }
    if (status != FA_OK) {
        fa_client_disconnect(client, status);
        return status;
    }
    *reply = x.reply;
    status = (enum fa_status)x.reply->status;
    if (status != FA_OK) {
        const char *text =
            x.reply->text && x.reply->text[0] ? x.reply->text : fa_status_text(status);
        fa_client_fail(client, status, x.reply->field, "%s", text);
    }
    if (x.closes || x.broken)
        fa_client_disconnect(client, status);
    return status;
}
