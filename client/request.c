#include "client/internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Pieces ---------------------------------------------------------------------------------- */

void fa_pieces_add(struct fa_pieces *pieces, struct iovec piece)
{
    assert(pieces->count < (int)(sizeof pieces->list / sizeof pieces->list[0]));
    if (piece.iov_len > 0)
        pieces->list[pieces->count++] = piece;
}

bool fa_pieces_done(const struct fa_pieces *pieces)
{
    return pieces->next == pieces->count;
}

size_t fa_pieces_advance(struct fa_pieces *pieces, size_t size)
{
    size_t left = size;

    while (left > 0 && !fa_pieces_done(pieces)) {
        struct iovec *piece = &pieces->list[pieces->next];
        size_t part = left < piece->iov_len ? left : piece->iov_len;
        piece->iov_base = (char *)piece->iov_base + part;
        piece->iov_len -= part;
        left -= part;
        if (piece->iov_len == 0)
            pieces->next++;
    }
    return size - left;
}

/* --- Made ------------------------------------------------------------------------------------ */

static struct fa_request *allocate(struct fa_client *client)
{
    struct fa_request *request = TAILQ_FIRST(&client->idle);

    if (!request)
        return malloc(sizeof *request);
    TAILQ_REMOVE(&client->idle, request, link);
    client->idle_count--;
    return request;
}

static void fill_head(struct fa_request *request, const struct fa_call *call)
{
    struct fa_frame frame = {.type = call->type,
                             .nfds = call->fd >= 0,
                             .id = request->id,
                             .message_length = (uint32_t)call->message.iov_len};

    assert(call->message.iov_len <= FA_MESSAGE_MAX);
    for (int i = 0; i < call->payload_count; i++)
        frame.payload_length += call->payload[i].iov_len;
    fa_frame_encode(&frame, request->head);
    if (call->message.iov_len > 0)
        memcpy(request->head + FA_FRAME_HEADER_SIZE, call->message.iov_base, call->message.iov_len);
}

struct fa_request *fa_request_new(struct fa_client *client, const struct fa_call *call)
{
    struct fa_request *request;

    if (client->fd < 0) {
        fa_client_tell_closed(client);
        return NULL;
    }
    request = allocate(client);
    if (!request) {
        fa_client_fail(client, FA_RESOURCE_EXHAUSTED, NULL, "no memory for a request");
        return NULL;
    }
    memset(request, 0, offsetof(struct fa_request, head));
    request->client = client;
    request->id = client->next_id++;
    request->type = call->type;
    request->fd = call->fd;
    request->accept = call->accept;
    fill_head(request, call);
    fa_pieces_add(&request->out,
                  (struct iovec){request->head, FA_FRAME_HEADER_SIZE + call->message.iov_len});
    for (int i = 0; i < call->payload_count; i++)
        fa_pieces_add(&request->out, call->payload[i]);
    request->in_count = call->in_count;
    for (int i = 0; i < call->in_count; i++) {
        request->in[i] = call->in[i];
        request->in_bytes += call->in[i].iov_len;
    }
    return request;
}

/* --- In flight ------------------------------------------------------------------------------- */

static struct fa_request **bucket(struct fa_client *client, uint64_t id)
{
    return &client->buckets[id % FA_BUCKETS];
}

struct fa_request *fa_request_find(const struct fa_client *client, uint64_t id)
{
    struct fa_request *request = client->buckets[id % FA_BUCKETS];

    while (request && request->id != id)
        request = request->next_in_bucket;
    return request;
}

void fa_request_drop_fd(struct fa_request *request)
{
    if (request->fd_owned)
        close(request->fd);
    request->fd = -1;
    request->fd_owned = false;
}

static void duplicate_fd(struct fa_request *request)
{
    struct fa_error error;
    int fd = fcntl(request->fd, F_DUPFD_CLOEXEC, 0);

    if (fd >= 0) {
        request->fd = fd;
        request->fd_owned = true;
    } else {
        fa_error_set(&error, errno == EBADF ? FA_INVALID_ARGUMENT : FA_RESOURCE_EXHAUSTED, "shared",
                     "its descriptor cannot be kept until it is sent: %s", strerrordesc_np(errno));
        fa_request_finish(request, &error);
    }
}

void fa_request_submit(struct fa_client *client, struct fa_request *request)
{
    struct fa_request **first = bucket(client, request->id);

    request->next_in_bucket = *first;
    *first = request;
    TAILQ_INSERT_TAIL(&client->flying, request, link);
    client->flying_count++;
    client->reader.payload_waits += request->in_bytes > 0;
    if (!client->unsent)
        client->unsent = request;
    fa_send(client);
    if (request->fd >= 0)
        duplicate_fd(request);
}

void fa_request_finish(struct fa_request *request, const struct fa_error *error)
{
    struct fa_client *client = request->client;
    struct fa_request **at = bucket(client, request->id);

    assert(request->state != FA_REQUEST_DONE);
    while (*at != request)
        at = &(*at)->next_in_bucket;
    *at = request->next_in_bucket;
    if (client->unsent == request)
        client->unsent = TAILQ_NEXT(request, link);
    TAILQ_REMOVE(&client->flying, request, link);
    client->flying_count--;
    client->reader.payload_waits -= request->in_bytes > 0;
    fa_request_drop_fd(request);
    request->state = FA_REQUEST_DONE;
    if (error)
        request->error = *error;
    TAILQ_INSERT_TAIL(&client->done, request, link);
    client->done_count++;
}

/* --- Done ------------------------------------------------------------------------------------ */

static void release_copies(struct fa_request *request)
{
    for (int i = 0; i < FA_TENSORS; i++)
        fa_copy_release(&request->copies[i]);
}

enum fa_status fa_request_take(struct fa_client *client, struct fa_request *request)
{
    enum fa_status status = request->error.status;

    assert(request->state == FA_REQUEST_DONE);
    if (status != FA_OK)
        fa_client_keep_error(client, &request->error);
    TAILQ_REMOVE(&client->done, request, link);
    client->done_count--;
    release_copies(request);
    if (client->idle_count < FA_IDLE_MAX) {
        TAILQ_INSERT_HEAD(&client->idle, request, link);
        client->idle_count++;
    } else {
        free(request);
    }
    return status;
}

static void release_list(struct fa_request_list *list)
{
    struct fa_request *request = TAILQ_FIRST(list);

    TAILQ_INIT(list);
    while (request) {
        struct fa_request *next = TAILQ_NEXT(request, link);
        release_copies(request);
        fa_request_drop_fd(request);
        free(request);
        request = next;
    }
}

void fa_requests_release(struct fa_client *client)
{
    release_list(&client->flying);
    release_list(&client->done);
    release_list(&client->idle);
}

void fa_request_set_user(struct fa_request *request, void *user)
{
    if (request)
        request->user = user;
}

void *fa_request_user(const struct fa_request *request)
{
    return request ? request->user : NULL;
}

bool fa_request_done(const struct fa_request *request)
{
    return request && request->state == FA_REQUEST_DONE;
}

/* --- The connection's end -------------------------------------------------------------------- */

static void end(struct fa_client *client, enum fa_status because)
{
    struct fa_request *request;

    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->closed_by = because;
    while ((request = TAILQ_FIRST(&client->flying)))
        fa_request_finish(request, request->refused ? NULL : &client->fault);
}

void fa_client_break(struct fa_client *client, const struct fa_error *fault)
{
    client->fault = *fault;
    client->untold = TAILQ_EMPTY(&client->flying);
    end(client, fault->status);
}

void fa_client_break_with(struct fa_client *client, enum fa_status status, const char *field,
                          const char *format, ...)
{
    struct fa_error fault;
    va_list args;

    va_start(args, format);
    fa_error_set_list(&fault, status, field, format, args);
    va_end(args);
    fa_client_break(client, &fault);
}

void fa_client_refuse_reply(struct fa_client *client, const char *field, const char *text)
{
    fa_client_break_with(client, FA_PROTOCOL_ERROR, field, "%s", text);
}

enum fa_status fa_client_distrust(struct fa_client *client, const char *field, const char *text)
{
    fa_client_refuse_reply(client, field, text);
    client->untold = false;
    return fa_client_keep_error(client, &client->fault);
}

void fa_client_disconnect(struct fa_client *client, enum fa_status because)
{
    fa_error_set(&client->fault, FA_DISCONNECTED, NULL,
                 "the connection was closed because another request ended with %s; connect again",
                 fa_status_name(because));
    client->untold = false;
    end(client, because);
}

enum fa_status fa_client_tell_closed(struct fa_client *client)
{
    struct fa_error error = client->fault;

    if (!client->untold)
        fa_error_set(&error, FA_DISCONNECTED, NULL,
                     "the connection was closed when a call returned %s; connect again",
                     fa_status_name(client->closed_by));
    client->untold = false;
    return fa_client_keep_error(client, &error);
}
