/* handlers.c: what each type of message does. One row a type. */
#include "daemon/connection/connection.h"

#include "daemon/connection/discard.h"
#include "daemon/connection/memfd.h"
#include "proto/fa_arena.h"
#include "proto/fa_version.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A handler replies or admits a job, and returns FA_OK; or it fills *error, and the caller refuses
 * the request. The payload of the frame is dropped unless connection->receiving is set. The
 * descriptor stays the caller's unless the handler sets message->fd to -1. */
typedef enum fa_status handler(struct fad_connection *connection, struct fad_message *message,
                               struct fa_error *error);

/* One message is unpacked at a time, on the one loop thread. */
static _Thread_local struct fa_arena arena;

static enum fa_status expect_bare(const struct fad_message *message, struct fa_error *error)
{
    if (message->frame.payload_length > 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "header.payload_length",
                            "this type of request has no payload");
    if (message->fd >= 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "header.nfds",
                            "this type of request has no descriptor");
    return FA_OK;
}

/* --- Hello ----------------------------------------------------------------------------------- */

#define DEVICES_MAX  16
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

static void fill_limits(const struct fad_service *service, Fad__Limits *limits)
{
    fad__limits__init(limits);
    limits->has_message_bytes = true;
    limits->message_bytes = FA_FRAME_MESSAGE_MAX;
    limits->has_payload_bytes = true;
    limits->payload_bytes = service->payload_max;
    limits->has_jobs = true;
    limits->jobs = (uint32_t)service->limit.of[FAD_JOBS];
    limits->has_staged_bytes = true;
    limits->staged_bytes = service->limit.of[FAD_STAGED];
    limits->has_mapped_bytes = true;
    limits->mapped_bytes = service->limit.of[FAD_MAPPED];
}

static void send_hello_reply(struct fad_connection *connection, uint64_t id)
{
    const struct fad_backend *backend = connection->service->engine->backend;
    char *transports[] = {(char *)"inline", (char *)"memfd", (char *)"cuda-ipc"};
    Fad__Device devices[DEVICES_MAX], *device_list[DEVICES_MAX];
    Fad__Version versions[VERSIONS_MAX], *version_list[VERSIONS_MAX];
    Fad__Limits limits;
    Fad__HelloReply hello = FAD__HELLO_REPLY__INIT;
    Fad__Reply reply = FAD__REPLY__INIT;

    assert(backend->device_count <= DEVICES_MAX);
    fill_devices(backend, devices);
    for (uint32_t i = 0; i < backend->device_count; i++)
        device_list[i] = &devices[i];
    hello.n_versions = fill_versions(&backend->devices[0].target, versions);
    for (size_t i = 0; i < hello.n_versions; i++)
        version_list[i] = &versions[i];
    fill_limits(connection->service, &limits);
    hello.has_protocol_major = hello.has_protocol_minor = true;
    hello.protocol_major = FA_PROTOCOL_MAJOR;
    hello.protocol_minor = FA_PROTOCOL_MINOR;
    hello.daemon_version = (char *)FA_VERSION;
    hello.backend = (char *)backend->ops->name;
    hello.n_devices = backend->device_count;
    hello.devices = device_list;
    hello.versions = version_list;
    hello.limits = &limits;
    hello.n_transports = backend->opens_ipc ? 3 : 2;
    hello.transports = transports;
    reply.has_status = true;
    reply.status = FAD__STATUS__OK;
    reply.hello = &hello;
    fad_connection_reply(connection, FA_FRAME_HELLO, id, &reply, NULL, 0, NULL);
}

static enum fa_status handle_hello(struct fad_connection *connection, struct fad_message *message,
                                   struct fa_error *error)
{
    const Fad__Hello *hello =
        fad__hello__unpack(fa_arena_reset(&arena), message->frame.message_length, message->bytes);
    if (!hello)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "message", "not a Hello");
    if (!hello->has_protocol_major)
        return fa_error_set(error, FA_PROTOCOL_ERROR, "protocol_major", "missing");
    if (hello->protocol_major != FA_PROTOCOL_MAJOR)
        return fa_error_set(error, FA_PROTOCOL_MISMATCH, "protocol_major",
                            "the client speaks protocol %u, this daemon (%s) speaks %u",
                            hello->protocol_major, FA_VERSION, FA_PROTOCOL_MAJOR);
    if (expect_bare(message, error) != FA_OK)
        return error->status;
    connection->greeted = true;
    send_hello_reply(connection, message->frame.id);
    return FA_OK;
}

/* --- Ping ------------------------------------------------------------------------------------ */

static enum fa_status handle_ping(struct fad_connection *connection, struct fad_message *message,
                                  struct fa_error *error)
{
    Fad__Reply reply = FAD__REPLY__INIT;

    if (expect_bare(message, error) != FA_OK)
        return error->status;
    if (!fad__ping__unpack(fa_arena_reset(&arena), message->frame.message_length, message->bytes))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "message", "not a Ping");
    reply.has_status = true;
    reply.status = FAD__STATUS__OK;
    fad_connection_reply(connection, FA_FRAME_PING, message->frame.id, &reply, NULL, 0, NULL);
    return FA_OK;
}

/* --- Forward --------------------------------------------------------------------------------- */

static uint64_t microseconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
}

static void reply_with_result(struct fad_connection *connection, struct fad_job *job)
{
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    Fad__Reply reply = FAD__REPLY__INIT;
    uint64_t started = job->work.started_ns ? job->work.started_ns : job->done_ns;
    struct fad_amounts charge;
    void *output = fad_job_take_output(job, &charge);

    forward.version = (char *)job->choice.version->name;
    forward.kernel = (char *)job->choice.kernel->name;
    forward.has_redirected = true;
    forward.redirected = job->choice.reason != NULL;
    forward.redirect_reason = (char *)job->choice.reason;
    forward.device = (char *)job->engine->backend->devices[job->device].name;
    forward.has_queue_us = forward.has_transfer_us = true;
    forward.queue_us = microseconds(job->ready_ns, started);
    forward.transfer_us = job->payload_size ? microseconds(job->header_ns, job->ready_ns) : 0;
    forward.has_kernel_us = forward.has_total_us = true;
    forward.kernel_us = fad_work_kernel_ns(&job->work) / 1000;
    forward.total_us = microseconds(job->header_ns, job->done_ns);
    forward.has_payload_o_bytes = true;
    forward.payload_o_bytes =
        job->request.at[FAD_O].place == FAD_INLINE ? job->request.at[FAD_O].span : 0;
    reply.has_status = true;
    reply.status = FAD__STATUS__OK;
    reply.forward = &forward;
    fad_connection_reply(connection, FA_FRAME_FORWARD, job->id, &reply, output,
                         job->request.output_size, &charge);
}

static void on_job_done(struct fad_job *job)
{
    struct fad_connection *connection = job->owner;

    if (connection->state != FAD_CONNECTION_CLOSING) /* else it was taken off when abandoned */
        TAILQ_REMOVE(&connection->jobs, job, link);
    if (connection->state == FAD_CONNECTION_OPEN) {
        if (job->error.status == FA_OK)
            reply_with_result(connection, job);
        else
            fad_connection_refuse(connection, FA_FRAME_FORWARD, job->id, &job->error);
        fad_connection_flush(connection);
    }
    fad_job_free(job);
    connection->job_count--;
    fad_connection_free_if_done(connection);
}

/* *size is the memfd's; -1 without a descriptor, 0 for one that no tensor lies in. */
static enum fa_status check_memfd(struct fad_message *message, const struct fad_request *request,
                                  int64_t *size, struct fa_error *error)
{
    char field[sizeof error->field];
    int tensor = 0;

    *size = message->fd < 0 ? -1 : 0;
    while (tensor < FAD_TENSORS && request->at[tensor].place != FAD_MEMFD)
        tensor++;
    if (message->fd < 0 || tensor == FAD_TENSORS)
        return FA_OK;
    snprintf(field, sizeof field, "%s.memfd", fad_tensor_name((enum fad_tensor)tensor));
    return fad_memfd_check(message->fd, fad_request_writes_memfd(request), field, size, error);
}

static enum fa_status handle_forward(struct fad_connection *connection, struct fad_message *message,
                                     struct fa_error *error)
{
    const struct fad_service *service = connection->service;
    struct fad_request request;
    struct fad_job *job;
    int64_t memfd_size;
    enum fa_status status;

    if ((status = fad_request_decode(message->bytes, message->frame.message_length, &arena,
                                     &request, error)) != FA_OK ||
        (status = check_memfd(message, &request, &memfd_size, error)) != FA_OK ||
        (status = fad_request_check(&request, message->frame.payload_length, memfd_size, error)) !=
            FA_OK ||
        (status = fad_job_new(&job, service->engine, &connection->account, &request,
                              message->frame.payload_length, message->fd,
                              memfd_size < 0 ? 0 : (uint64_t)memfd_size, error)) != FA_OK)
        return status;
    message->fd = -1;
    job->id = message->frame.id;
    job->owner = connection;
    job->done = on_job_done;
    job->header_ns = connection->header_ns;
    connection->job_count++;
    connection->receiving = job;
    TAILQ_INSERT_TAIL(&connection->jobs, job, link);
    return FA_OK;
}

/* --- Dispatch -------------------------------------------------------------------------------- */

static const struct {
    uint16_t type;
    handler *handle;
} rows[] = {
    {FA_FRAME_HELLO, handle_hello},
    {FA_FRAME_FORWARD, handle_forward},
    {FA_FRAME_PING, handle_ping},
};

static handler *find_handler(uint16_t type)
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
    const struct fad_job *job;

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
    TAILQ_FOREACH (job, &connection->jobs, link)
        if (job->id == frame->id)
            return fa_error_set(error, FA_PROTOCOL_ERROR, "header.id",
                                "a request with this id is still in flight");
    return FA_OK;
}

void fad_handle_message(struct fad_connection *connection, const struct fad_message *received)
{
    struct fad_message message = *received;
    handler *handle = find_handler(message.frame.type);
    struct fa_error error;
    enum fa_status status = check_order(connection, &message.frame, &error);

    fa_arena_init(&arena);
    if (status == FA_OK)
        status = handle
                     ? handle(connection, &message, &error)
                     : fa_error_set(&error, FA_UNIMPLEMENTED, "header.type",
                                    "this daemon knows no request of type %u", message.frame.type);
    if (message.fd >= 0)
        fad_discard_fd(connection->service->loop, message.fd);
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
