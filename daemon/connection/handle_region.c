/* handle_region.c: the messages about regions. */
#include "daemon/connection/decode.h"
#include "daemon/connection/handlers.h"
#include "daemon/connection/memfd.h"
#include "daemon/connection/request.h"
#include "daemon/connection/transfer.h"

#include <inttypes.h>
#include <string.h>

static enum fa_status missing(struct fa_error *error, const char *field)
{
    return fa_error_set(error, FA_INVALID_ARGUMENT, field, "missing");
}

static enum fa_status not_a(struct fa_error *error, const char *what)
{
    return fa_error_set(error, FA_INVALID_ARGUMENT, "message", "not a %s", what);
}

/* --- Making one ------------------------------------------------------------------------------ */

static enum fa_status ipc_source(const struct fad_engine *engine, const Fad__CudaIpcLocation *in,
                                 struct fad_region_source *source, struct fa_error *error)
{
    struct fad_ipc ipc;

    if (fad_ipc_decode(in, "cuda_ipc", &ipc, error) != FA_OK)
        return error->status;
    if (in->has_event)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "cuda_ipc.event",
                            "a region waits for none: requests name theirs in region.event");
    source->kind = FAD_REGION_IPC;
    source->buffer_id = ipc.buffer_id;
    memcpy(source->handle, ipc.handle, sizeof source->handle);
    return fad_engine_find_ipc_device(engine, ipc.device_uuid, "cuda_ipc", &source->device, error);
}

static enum fa_status memfd_source(int fd, struct fad_region_source *source, struct fa_error *error)
{
    struct fad_memfd memfd;

    if (fad_memfd_check(fd, source->writable, "header.nfds", &memfd, error) != FA_OK)
        return error->status;
    source->kind = FAD_REGION_MEMFD;
    source->fd = memfd.fd;
    source->size = memfd.size;
    source->fixed = memfd.fixed;
    return FA_OK;
}

enum fa_status fad_handle_register_region(struct fad_connection *connection,
                                          struct fad_message *message, struct fa_error *error)
{
    const Fad__RegisterRegion *in = fad__register_region__unpack(
        fad_message_allocator(), message->frame.message_length, message->bytes);
    struct fad_region_source source = {.fd = -1};
    const char *field;

    if (!in)
        return not_a(error, "RegisterRegion");
    if (fad_expect_no_payload(message, error) != FA_OK)
        return error->status;
    if (message->fd < 0 && !in->cuda_ipc)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "header.nfds",
                            "the memory's descriptor must travel with the frame, or cuda_ipc name "
                            "the memory");
    if (message->fd >= 0 && in->cuda_ipc)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "cuda_ipc",
                            "a descriptor travels with the frame: a region is one or the other");
    field = in->cuda_ipc ? "cuda_ipc" : "header.nfds";
    source.writable = in->has_writable && in->writable;
    if ((in->cuda_ipc ? ipc_source(connection->service->engine, in->cuda_ipc, &source, error)
                      : memfd_source(message->fd, &source, error)) != FA_OK)
        return error->status;
    message->fd = -1;
    return fad_region_open(connection, message->frame.type, message->frame.id, &source, field,
                           error);
}

/* What a connection has on devices is to be usable by one request: where its last one there is. */
static uint32_t choose_device(struct fad_connection *connection)
{
    return connection->device_regions > 0
               ? connection->region_device
               : fad_scheduler_least_loaded(&connection->service->engine->scheduler);
}

static enum fa_status find_device(struct fad_connection *connection, const Fad__AllocRegion *in,
                                  uint32_t *device, struct fa_error *error)
{
    const struct fad_engine *engine = connection->service->engine;

    if (!in->has_device_uuid) {
        *device = choose_device(connection);
        return FA_OK;
    }
    if (in->device_uuid.len != sizeof engine->backend->devices[0].uuid)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "device_uuid", "must have 16 bytes");
    return fad_engine_find_device(engine, in->device_uuid.data, "device_uuid", device, error);
}

enum fa_status fad_handle_alloc_region(struct fad_connection *connection,
                                       struct fad_message *message, struct fa_error *error)
{
    const Fad__AllocRegion *in = fad__alloc_region__unpack(
        fad_message_allocator(), message->frame.message_length, message->bytes);
    struct fad_region_source source = {.kind = FAD_REGION_OWNED, .fd = -1};

    if (!in)
        return not_a(error, "AllocRegion");
    if (fad_expect_bare(message, error) != FA_OK)
        return error->status;
    if (!in->has_size)
        return missing(error, "size");
    if (in->size == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "size", "must be over 0");
    if (find_device(connection, in, &source.device, error) != FA_OK)
        return error->status;
    source.size = in->size;
    return fad_region_open(connection, message->frame.type, message->frame.id, &source, "size",
                           error);
}

/* --- Using one ------------------------------------------------------------------------------- */

/* NULL: *error says why. */
static struct fad_client_region *find(const struct fad_connection *connection, bool given,
                                      uint64_t id, struct fa_error *error)
{
    struct fad_client_region *region = given ? fad_region_find(connection, id) : NULL;

    if (!given)
        missing(error, "region");
    else if (!region)
        fa_error_set(error, FA_NOT_FOUND, "region", "this connection has no region %" PRIu64, id);
    return region;
}

static enum fa_status check_bytes(const struct fad_client_region *region, uint64_t offset,
                                  uint64_t size, struct fa_error *error)
{
    const uint64_t whole = region->region.size;

    if (fad_inside(offset, size, whole))
        return FA_OK;
    return fa_error_set(error, FA_INVALID_ARGUMENT, "offset",
                        "offset %" PRIu64 " and %" PRIu64 " bytes reach past the region's %" PRIu64,
                        offset, size, whole);
}

enum fa_status fad_handle_write_region(struct fad_connection *connection,
                                       struct fad_message *message, struct fa_error *error)
{
    const Fad__WriteRegion *in = fad__write_region__unpack(
        fad_message_allocator(), message->frame.message_length, message->bytes);
    const uint64_t size = message->frame.payload_length;
    struct fad_client_region *region;

    if (!in)
        return not_a(error, "WriteRegion");
    if (fad_expect_no_descriptor(message, error) != FA_OK ||
        !(region = find(connection, in->has_region, in->region, error)))
        return error->status;
    if (!in->has_offset)
        return missing(error, "offset");
    if (size == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "header.payload_length",
                            "there is nothing to write");
    if (!region->writable)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "region",
                            "it was registered without writable");
    if (check_bytes(region, in->offset, size, error) != FA_OK)
        return error->status;
    return fad_transfer_begin(connection, message->frame.type, message->frame.id, region,
                              in->offset, size, error);
}

enum fa_status fad_handle_read_region(struct fad_connection *connection,
                                      struct fad_message *message, struct fa_error *error)
{
    const Fad__ReadRegion *in = fad__read_region__unpack(
        fad_message_allocator(), message->frame.message_length, message->bytes);
    struct fad_client_region *region;

    if (!in)
        return not_a(error, "ReadRegion");
    if (fad_expect_bare(message, error) != FA_OK ||
        !(region = find(connection, in->has_region, in->region, error)))
        return error->status;
    if (!in->has_offset)
        return missing(error, "offset");
    if (!in->has_length)
        return missing(error, "length");
    if (in->length == 0 || in->length > connection->service->payload_max)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "length",
                            "must be from 1 to %" PRIu64 ", the largest payload",
                            connection->service->payload_max);
    if (check_bytes(region, in->offset, in->length, error) != FA_OK)
        return error->status;
    return fad_transfer_begin(connection, message->frame.type, message->frame.id, region,
                              in->offset, in->length, error);
}

enum fa_status fad_handle_release_region(struct fad_connection *connection,
                                         struct fad_message *message, struct fa_error *error)
{
    const Fad__ReleaseRegion *in = fad__release_region__unpack(
        fad_message_allocator(), message->frame.message_length, message->bytes);
    struct fad_client_region *region;

    if (!in)
        return not_a(error, "ReleaseRegion");
    if (fad_expect_bare(message, error) != FA_OK ||
        !(region = find(connection, in->has_region, in->region, error)))
        return error->status;
    fad_region_release(region, message->frame.type, message->frame.id);
    return FA_OK;
}
