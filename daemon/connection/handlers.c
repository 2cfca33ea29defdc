/* handlers.c: one row a type of message, and the small handlers. */
#include "daemon/connection/handlers.h"

#include "daemon/connection/discard.h"
#include "proto/fa_version.h"

#include <assert.h>

static struct fa_arena arena;

ProtobufCAllocator *fad_message_allocator(void)
{
    return fa_arena_reset(&arena);
}

enum fa_status fad_expect_no_payload(const struct fad_message *message, struct fa_error *error)
{
    if (message->frame.payload_length == 0)
        return FA_OK;
    return fa_error_set(error, FA_INVALID_ARGUMENT, "header.payload_length",
                        "this type of request has no payload");
}

enum fa_status fad_expect_no_descriptor(const struct fad_message *message, struct fa_error *error)
{
    if (message->fd < 0)
        return FA_OK;
    return fa_error_set(error, FA_INVALID_ARGUMENT, "header.nfds",
                        "this type of request has no descriptor");
}

enum fa_status fad_expect_bare(const struct fad_message *message, struct fa_error *error)
{
    enum fa_status status = fad_expect_no_payload(message, error);

    return status == FA_OK ? fad_expect_no_descriptor(message, error) : status;
}

/* --- Hello ----------------------------------------------------------------------------------- */

#define VERSIONS_MAX 16

static void fill_devices(const struct fad_backend *backend, Fad__Device *devices)
{
    for (uint32_t i = 0; i < backend->device_count; i++) {
        fad__device__init(&devices[i]);
        devices[i].name = (char *)backend->devices[i].name;
        devices[i].has_uuid = true;
        devices[i].uuid.data = (uint8_t *)backend->devices[i].uuid;
        devices[i].uuid.len = sizeof backend->devices[i].uuid;
        devices[i].has_memory_bytes = true;
        devices[i].memory_bytes = backend->devices[i].memory_bytes;
        devices[i].has_streams = true;
        devices[i].streams = backend->devices[i].streams;
    }
}

static size_t fill_versions(const struct fa_target *target, Fad__Version *versions)
{
    size_t count, filled = 0;
    const struct fa_version *rows = fa_versions(&count);

    assert(count <= VERSIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct fa_kernel *kernel = fa_version_kernel(&rows[i], target);
        if (!kernel)
            continue;
        fad__version__init(&versions[filled]);
        versions[filled].name = (char *)rows[i].name;
        versions[filled].title = (char *)rows[i].title;
        versions[filled++].kernel = (char *)kernel->name;
    }
    return filled;
}

/* What one connection can hold at most, whatever others do. */
static uint64_t limit_of(const struct fad_connection *connection, enum fad_resource resource)
{
    uint64_t least = UINT64_MAX;

    for (const struct fad_account *a = &connection->account; a; a = a->parent)
        if (a->limit.of[resource] < least)
            least = a->limit.of[resource];
    return least;
}

static void fill_limits(const struct fad_connection *connection, Fad__Limits *limits)
{
    fad__limits__init(limits);
    limits->has_message_bytes = true;
    limits->message_bytes = FA_FRAME_MESSAGE_MAX;
    limits->has_payload_bytes = true;
    limits->payload_bytes = connection->service->payload_max;
    limits->has_jobs = true;
    limits->jobs = (uint32_t)limit_of(connection, FAD_JOBS);
    limits->has_staged_bytes = true;
    limits->staged_bytes = limit_of(connection, FAD_STAGED);
    limits->has_mapped_bytes = true;
    limits->mapped_bytes = limit_of(connection, FAD_MAPPED);
    limits->has_regions = true;
    limits->regions = (uint32_t)limit_of(connection, FAD_REGIONS);
}

static void send_hello_reply(struct fad_connection *connection, uint64_t id)
{
    const struct fad_backend *backend = connection->service->engine->backend;
    char *transports[] = {(char *)"inline", (char *)"memfd", (char *)"region", (char *)"cuda-ipc"};
    Fad__Device devices[FAD_DEVICES_MAX], *device_list[FAD_DEVICES_MAX];
    Fad__Version versions[VERSIONS_MAX], *version_list[VERSIONS_MAX];
    Fad__Limits limits;
    Fad__HelloReply hello = FAD__HELLO_REPLY__INIT;
    Fad__Reply reply = fad_reply_ok();

    assert(backend->device_count <= FAD_DEVICES_MAX);
    fill_devices(backend, devices);
    for (uint32_t i = 0; i < backend->device_count; i++)
        device_list[i] = &devices[i];
    hello.n_versions = fill_versions(&backend->devices[0].target, versions);
    for (size_t i = 0; i < hello.n_versions; i++)
        version_list[i] = &versions[i];
    fill_limits(connection, &limits);
    hello.has_protocol_major = hello.has_protocol_minor = true;
    hello.protocol_major = FA_PROTOCOL_MAJOR;
    hello.protocol_minor = FA_PROTOCOL_MINOR;
    hello.daemon_version = (char *)FA_VERSION;
    hello.backend = (char *)backend->ops->name;
    hello.n_devices = backend->device_count;
    hello.devices = device_list;
    hello.versions = version_list;
    hello.limits = &limits;
    hello.n_transports = backend->opens_ipc ? 4 : 3;
    hello.transports = transports;
    hello.has_connection = true;
    hello.connection = connection->number;
    reply.hello = &hello;
    fad_connection_reply(connection, FA_FRAME_HELLO, id, &reply, NULL, 0, NULL);
}

static enum fa_status handle_hello(struct fad_connection *connection, struct fad_message *message,
                                   struct fa_error *error)
{
    const Fad__Hello *hello =
        fad__hello__unpack(fad_message_allocator(), message->frame.message_length, message->bytes);
    if (!hello)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "message", "not a Hello");
    if (!hello->has_protocol_major)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "protocol_major", "missing");
    if (hello->protocol_major != FA_PROTOCOL_MAJOR)
        return fa_error_set(error, FA_PROTOCOL_MISMATCH, "protocol_major",
                            "the client speaks protocol %u, this daemon (%s) speaks %u",
                            hello->protocol_major, FA_VERSION, FA_PROTOCOL_MAJOR);
    if (fad_expect_bare(message, error) != FA_OK)
        return error->status;
    connection->greeted = true;
    send_hello_reply(connection, message->frame.id);
    return FA_OK;
}

/* --- Ping ------------------------------------------------------------------------------------ */

static enum fa_status handle_ping(struct fad_connection *connection, struct fad_message *message,
                                  struct fa_error *error)
{
    Fad__Reply reply = fad_reply_ok();

    if (fad_expect_bare(message, error) != FA_OK)
        return error->status;
    if (!fad__ping__unpack(fad_message_allocator(), message->frame.message_length, message->bytes))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "message", "not a Ping");
    fad_connection_reply(connection, FA_FRAME_PING, message->frame.id, &reply, NULL, 0, NULL);
    return FA_OK;
}

/* --- Cancel ---------------------------------------------------------------------------------- */

static enum fa_status handle_cancel(struct fad_connection *connection, struct fad_message *message,
                                    struct fa_error *error)
{
    Fad__CancelReply cancel = FAD__CANCEL_REPLY__INIT;
    Fad__Reply reply = fad_reply_ok();
    struct fad_pending *pending;
    const Fad__Cancel *in;

    if (fad_expect_bare(message, error) != FA_OK)
        return error->status;
    in =
        fad__cancel__unpack(fad_message_allocator(), message->frame.message_length, message->bytes);
    if (!in)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "message", "not a Cancel");
    if (!in->has_id)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "id", "missing");
    pending = fad_connection_find(connection, in->id);
    cancel.has_found = true;
    cancel.found = pending && pending->type == FA_FRAME_FORWARD;
    reply.cancel = &cancel;
    fad_connection_reply(connection, FA_FRAME_CANCEL, message->frame.id, &reply, NULL, 0, NULL);
    if (cancel.found && connection->state == FAD_CONNECTION_OPEN) /* else it has been already */
        fad_pending_abandon(pending, FA_CANCELLED);
    return FA_OK;
}

/* --- Dispatch -------------------------------------------------------------------------------- */

static const struct {
    uint16_t type;
    fad_handler *handle;
} rows[] = {
    {FA_FRAME_HELLO, handle_hello},
    {FA_FRAME_FORWARD, fad_handle_forward},
    {FA_FRAME_PING, handle_ping},
    {FA_FRAME_REGISTER_REGION, fad_handle_register_region},
    {FA_FRAME_ALLOC_REGION, fad_handle_alloc_region},
    {FA_FRAME_WRITE_REGION, fad_handle_write_region},
    {FA_FRAME_READ_REGION, fad_handle_read_region},
    {FA_FRAME_RELEASE_REGION, fad_handle_release_region},
    {FA_FRAME_STATS, fad_handle_stats},
    {FA_FRAME_CANCEL, handle_cancel},
};

static fad_handler *find_handler(uint16_t type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].type == type)
            return rows[i].handle;
    return NULL;
}

/* What a stream must keep to whatever its messages say. */
static enum fa_status check_order(const struct fad_connection *connection,
                                  const struct fa_frame *frame, struct fa_error *error)
{
    if (frame->id == 0)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.id", "0 is no request's id");
    if (frame->type == 0 || (frame->type & FA_FRAME_REPLY))
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.type", "0x%04x is no request's type",
                            frame->type);
    if (!connection->greeted && frame->type != FA_FRAME_HELLO)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.type",
                            "a connection's first frame must be Hello (1), not %u", frame->type);
    if (connection->greeted && frame->type == FA_FRAME_HELLO)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.type",
                            "only a connection's first frame may be Hello");
    if (fad_connection_find(connection, frame->id))
        return fa_error_set(error, FA_PROTOCOL_ERROR, "header.id",
                            "a request with this id is still in flight");
    return FA_OK;
}

/* What a daemon that stops, or has lost its device, still does: a Hello, lest the frames behind it
 * break the order, and a Cancel, which ends work. */
static enum fa_status check_stopping(struct fad_connection *connection, uint16_t type,
                                     struct fa_error *error)
{
    const struct fad_service *service = connection->service;
    const enum fa_status status = service->lost ? FA_DEVICE_LOST : FA_SHUTTING_DOWN;

    if (!(service->stopping || service->lost) || type == FA_FRAME_HELLO || type == FA_FRAME_CANCEL)
        return FA_OK;
    if (type == FA_FRAME_FORWARD)
        fad_note_refused_forward(connection, status);
    return fa_error_set(error, status, "", "%s", fa_status_text(status));
}

void fad_handle_message(struct fad_connection *connection, const struct fad_message *received)
{
    struct fad_message message = *received;
    fad_handler *handle = find_handler(message.frame.type);
    struct fa_error error;
    enum fa_status status = check_order(connection, &message.frame, &error);

    fa_arena_init(&arena);
    if (status == FA_OK)
        status = check_stopping(connection, message.frame.type, &error);
    if (status == FA_OK)
        status = handle
                     ? handle(connection, &message, &error)
                     : fa_error_set(&error, FA_UNIMPLEMENTED, "header.type",
                                    "this daemon knows no request of type %u", message.frame.type);
    if (message.fd >= 0)
        fad_discard_fd(connection, message.fd);
    if (status == FA_PROTOCOL_ERROR || status == FA_PROTOCOL_MISMATCH)
        fad_connection_expel(connection, message.frame.id, &error);
    else if (status != FA_OK)
        fad_connection_refuse(connection, message.frame.type, message.frame.id, &error);
    if (connection->state != FAD_CONNECTION_OPEN)
        return; /* nothing more is read */
    if (connection->receiving)
        fad_reader_accept(&connection->reader, connection->receiving->payload);
    else
        fad_reader_skip(&connection->reader);
}
