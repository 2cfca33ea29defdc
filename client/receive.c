#include "client/internal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* message, payload, and what comes after them */
#define READ_MAX (2 + FA_IN_MAX)

/* --- Checks ---------------------------------------------------------------------------------- */

static void expect_header(struct fa_reader *reader)
{
    reader->phase = FA_AT_HEADER;
    reader->request = NULL;
    reader->reply = NULL;
    reader->payload.next = reader->payload.count = 0;
}

void fa_receive_init(struct fa_client *client)
{
    expect_header(&client->reader);
    client->reader.start = client->reader.end = 0;
}

static void check_header(struct fa_client *client)
{
    struct fa_reader *reader = &client->reader;
    const struct fa_frame *frame = &reader->frame;
    struct fa_request *request;
    struct fa_error error;
    bool last;

    if (fa_frame_decode(reader->buffer + reader->start, UINT64_MAX, &reader->frame, &error) !=
        FA_OK) {
        fa_client_break_with(client, error.status, error.field, "in the daemon's reply: %s",
                             error.text);
        return;
    }
    last = frame->type == FA_FRAME_REPLY;
    request = fa_request_find(client, frame->id);
    if (request && (request->refused || request->state == FA_REQUEST_QUEUED))
        request = NULL;
    if (!last && (!request || frame->type != (FA_FRAME_REPLY | request->type))) {
        fa_client_break_with(client, FA_PROTOCOL_ERROR, "header",
                             "the daemon answered type 0x%04x id %llu, which nothing in flight has",
                             frame->type, (unsigned long long)frame->id);
        return;
    }
    if (frame->nfds != 0) {
        fa_client_refuse_reply(client, "header.nfds", "the daemon's reply announces a descriptor");
        return;
    }
    if (frame->payload_length != 0 &&
        (last || !request || frame->payload_length != request->in_bytes)) {
        fa_client_break_with(client, FA_PROTOCOL_ERROR, "header.payload_length",
                             "the daemon's reply has %llu payload bytes; expected were %llu",
                             (unsigned long long)frame->payload_length,
                             (unsigned long long)(request ? request->in_bytes : 0));
        return;
    }
    for (int i = 0; frame->payload_length > 0 && i < request->in_count; i++)
        fa_pieces_add(&reader->payload, request->in[i]);
    reader->request = request;
    reader->start += FA_FRAME_HEADER_SIZE;
    reader->phase = FA_AT_MESSAGE;
}

static void take_error(const Fad__Reply *reply, struct fa_error *out)
{
    enum fa_status status = (enum fa_status)reply->status;

    fa_error_set(out, status, reply->field, "%s",
                 reply->text && reply->text[0] ? reply->text : fa_status_text(status));
}

/* The daemon ends the connection: it answers that request if there is one, and none of the others.
 * With these statuses, to none, it says why. */
static void take_last_word(struct fa_client *client, const Fad__Reply *reply)
{
    struct fa_request *request = client->reader.request;
    struct fa_error error;

    take_error(reply, &error);
    if (request)
        fa_request_finish(request, &error);
    else if (error.status == FA_SHUTTING_DOWN || error.status == FA_PROTOCOL_ERROR ||
             error.status == FA_PROTOCOL_MISMATCH || error.status == FA_RESOURCE_EXHAUSTED)
        fa_client_break(client, &error);
    if (client->fd >= 0)
        fa_client_disconnect(client, error.status);
}

/* The request is done once its frame is complete too, since the daemon reads a frame to its end
 * even after refusing it; or when the connection ends. */
static void take_refusal(struct fa_client *client, const Fad__Reply *reply)
{
    struct fa_request *request = client->reader.request;

    take_error(reply, &request->error);
    request->refused = true;
    expect_header(&client->reader);
    if (reply->status == FAD__STATUS__PROTOCOL_ERROR ||
        reply->status == FAD__STATUS__PROTOCOL_MISMATCH) {
        fa_client_disconnect(client, request->error.status);
    } else if (request->state == FA_REQUEST_SENT) {
        fa_request_finish(request, NULL);
    }
}

static void check_message(struct fa_client *client)
{
    struct fa_reader *reader = &client->reader;
    const struct fa_request *request = reader->request;
    struct fa_arena *arena = request && request->keeps_reply ? &client->kept : &client->arena;
    const bool last = !request || reader->frame.type == FA_FRAME_REPLY;
    const Fad__Reply *reply = fad__reply__unpack(
        fa_arena_reset(arena), reader->frame.message_length, reader->buffer + reader->start);

    reader->start += reader->frame.message_length;
    if (!reply) {
        fa_client_refuse_reply(client, "message", "the daemon's reply cannot be unpacked");
    } else if (!reply->has_status || !protobuf_c_enum_descriptor_get_value(&fad__status__descriptor,
                                                                           (int)reply->status)) {
        fa_client_refuse_reply(client, "status", "the daemon's reply has none that is known");
    } else if (reply->status != FAD__STATUS__OK) {
        if (reader->frame.payload_length != 0)
            fa_client_refuse_reply(client, "header.payload_length",
                                   "the daemon's refusal has a payload");
        else if (last)
            take_last_word(client, reply);
        else
            take_refusal(client, reply);
    } else if (last || request->state != FA_REQUEST_SENT) {
        fa_client_refuse_reply(client, "status",
                               "the daemon's reply says OK to a request it cannot have read");
    } else if (reader->frame.payload_length != request->in_bytes) {
        fa_client_break_with(client, FA_PROTOCOL_ERROR, "header.payload_length",
                             "the daemon's reply has no payload; expected were %llu bytes",
                             (unsigned long long)request->in_bytes);
    } else {
        reader->reply = reply;
        reader->phase = FA_AT_PAYLOAD;
    }
}

static void take_reply(struct fa_client *client)
{
    struct fa_request *request = client->reader.request;
    const Fad__Reply *reply = client->reader.reply;

    expect_header(&client->reader);
    if (request->keeps_reply)
        request->reply = reply;
    if (request->accept)
        request->accept(client, request, reply);
    if (client->fd >= 0)
        fa_request_finish(request, NULL);
}

/* --- Reading --------------------------------------------------------------------------------- */

/* Bytes of the buffer that the phase takes in all. */
static size_t phase_needs(const struct fa_reader *reader)
{
    if (reader->phase == FA_AT_HEADER)
        return FA_FRAME_HEADER_SIZE;
    return reader->phase == FA_AT_MESSAGE ? reader->frame.message_length : 0;
}

/* Takes in what the buffer has, through as many frames as it completes. */
static void digest(struct fa_client *client)
{
    struct fa_reader *reader = &client->reader;

    while (client->fd >= 0 && reader->end - reader->start >= phase_needs(reader)) {
        if (reader->phase == FA_AT_HEADER)
            check_header(client);
        else if (reader->phase == FA_AT_MESSAGE)
            check_message(client);
        else if (fa_pieces_done(&reader->payload))
            take_reply(client);
        else
            return;
    }
}

/* Where the next bytes go: the rest of the header or message, the payload straight to its place,
 * and what follows. Payload never goes through the buffer, and so, while some may come, no more is
 * read there than the next header: copied by the kernel alone, an output's memory that is not there
 * is an error and no signal. */
static int plan_read(struct fa_client *client, struct iovec list[READ_MAX])
{
    struct fa_reader *reader = &client->reader;
    const size_t have = reader->end - reader->start, needs = phase_needs(reader);
    const size_t missing = needs > have ? needs - have : 0;
    size_t follows = sizeof reader->buffer - have - missing;
    int count = 0;

    if (reader->payload_waits > 0)
        follows = reader->phase == FA_AT_HEADER ? 0 : FA_FRAME_HEADER_SIZE;
    memmove(reader->buffer, reader->buffer + reader->start, have);
    reader->start = 0;
    reader->end = have;
    if (missing > 0)
        list[count++] = (struct iovec){reader->buffer + have, missing};
    if (!fa_pieces_done(&reader->payload)) {
        assert(reader->request);
        if (reader->request->state != FA_REQUEST_SENT)
            return count; /* what it is comes out when the message is there */
        for (int i = reader->payload.next; i < reader->payload.count; i++)
            list[count++] = reader->payload.list[i];
    }
    if (follows > 0)
        list[count++] = (struct iovec){reader->buffer + have + missing, follows};
    return count;
}

static void received(struct fa_reader *reader, size_t bytes)
{
    const size_t have = reader->end - reader->start, needs = phase_needs(reader);
    const size_t missing = needs > have ? needs - have : 0;
    const size_t first = bytes < missing ? bytes : missing;

    bytes -= first;
    bytes -= fa_pieces_advance(&reader->payload, bytes);
    reader->end += first + bytes;
    assert(reader->end <= sizeof reader->buffer);
}

static void receive_failed(struct fa_client *client, int error)
{
    struct fa_request *request = client->reader.request, *unsent = client->unsent;
    struct fa_error kept;

    if (error == EFAULT && request) {
        fa_error_set(&kept, FA_INVALID_ARGUMENT, "data", "an output's memory cannot be written");
        fa_request_finish(request, &kept);
        fa_client_disconnect(client, FA_INVALID_ARGUMENT);
        return;
    }
    if (unsent && unsent->refused)
        fa_client_disconnect(client, unsent->error.status); /* it said so, and read no more */
    else
        fa_client_break_with(client, FA_DISCONNECTED, NULL,
                             "the daemon closed the connection before it answered%s%s; see the "
                             "daemon's log, then run again",
                             error ? ": " : "", error ? strerrordesc_np(error) : "");
}

void fa_receive(struct fa_client *client)
{
    while (client->fd >= 0) {
        struct iovec list[READ_MAX];
        int count = plan_read(client, list);
        /* Without a control buffer the kernel drops descriptors that come along. */
        ssize_t got = readv(client->fd, list, count);
        int error = got < 0 ? errno : 0;

        if (got > 0) {
            received(&client->reader, (size_t)got);
            digest(client);
        } else if (error != EAGAIN && error != EINTR) {
            receive_failed(client, error);
        } else if (error == EAGAIN && client->broken) {
            receive_failed(client, EPIPE); /* and no end yet: it will say no more */
        } else if (error == EAGAIN) {
            return;
        }
    }
}
