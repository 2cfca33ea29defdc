#include "client/internal.h"

#include <assert.h>
#include <stdlib.h>

/* A region is written and read in requests of at most this many bytes, so that two of them, side by
 * side, keep the socket busy and hold little of the daemon's memory. */
#define CHUNK_MAX ((uint64_t)16 << 20)
/* Enough for the messages of regions: three numbers, or a location by CUDA IPC. */
#define MESSAGE_MAX 128

/* --- Making ---------------------------------------------------------------------------------- */

static void accept_region(struct fa_client *client, struct fa_request *request,
                          const Fad__Reply *reply)
{
    if (!reply->region || reply->region->region == 0) {
        fa_client_refuse_reply(client, "region", "the daemon's reply has none");
    } else {
        request->answer.region.id = reply->region->region;
        request->answer.region.size = reply->region->size;
    }
}

/* Runs the call that makes a region of at least size bytes. */
static enum fa_status make(struct fa_client *client, struct fa_region **out, struct fa_call *call,
                           uint64_t size, bool writable)
{
    struct fa_region *region = malloc(sizeof *region);
    struct fa_request *request;
    enum fa_status status;

    if (!region)
        return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, NULL, "no memory for a region");
    call->accept = accept_region;
    request = fa_request_new(client, call);
    if (!request) {
        free(region);
        return client->error.status;
    }
    fa_request_run(client, request);
    *region = (struct fa_region){.client = client,
                                 .connection = client->connection,
                                 .id = request->answer.region.id,
                                 .size = request->answer.region.size,
                                 .writable = writable};
    status = fa_request_take(client, request);
    if (status == FA_OK && region->size < size)
        status = fa_client_distrust(client, "region.size",
                                    "the daemon's region is smaller than asked for");
    if (status != FA_OK) {
        free(region);
        return status;
    }
    TAILQ_INSERT_TAIL(&client->regions, region, link);
    *out = region;
    return FA_OK;
}

/* Checks what the calls that make a region have in common. */
static enum fa_status make_check(struct fa_client *client, struct fa_region **out)
{
    if (out)
        *out = NULL;
    if (!client)
        return FA_INVALID_ARGUMENT;
    return out ? FA_OK : fa_client_fail(client, FA_INVALID_ARGUMENT, "out", "is NULL");
}

enum fa_status fa_region_alloc(struct fa_client *client, struct fa_region **out, uint64_t size,
                               const uint8_t *uuid)
{
    struct fa_call call = {.type = FA_FRAME_ALLOC_REGION, .fd = -1};
    Fad__AllocRegion alloc = FAD__ALLOC_REGION__INIT;
    uint8_t message[MESSAGE_MAX];
    enum fa_status status = make_check(client, out);

    if (status != FA_OK)
        return status;
    if (size == 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "size", "is 0");
    alloc.has_size = true;
    alloc.size = size;
    alloc.has_device_uuid = uuid != NULL;
    alloc.device_uuid = (ProtobufCBinaryData){uuid ? 16 : 0, (uint8_t *)(uintptr_t)uuid};
    assert(fad__alloc_region__get_packed_size(&alloc) <= sizeof message);
    call.message = (struct iovec){message, fad__alloc_region__pack(&alloc, message)};
    return make(client, out, &call, size, true);
}

enum fa_status fa_region_register(struct fa_client *client, struct fa_region **out,
                                  const struct fa_shared *shared, bool writable)
{
    struct fa_call call = {.type = FA_FRAME_REGISTER_REGION};
    Fad__RegisterRegion registered = FAD__REGISTER_REGION__INIT;
    uint8_t message[MESSAGE_MAX];
    enum fa_status status = make_check(client, out);

    if (status != FA_OK)
        return status;
    if (!shared || !shared->data || shared->fd < 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "shared",
                              "is not one that fa_shared_create made");
    registered.has_writable = true;
    registered.writable = writable;
    assert(fad__register_region__get_packed_size(&registered) <= sizeof message);
    call.message = (struct iovec){message, fad__register_region__pack(&registered, message)};
    call.fd = shared->fd;
    return make(client, out, &call, shared->size, writable);
}

enum fa_status fa_region_register_cuda(struct fa_client *client, struct fa_region **out,
                                       const void *pointer, bool writable)
{
    struct fa_call call = {.type = FA_FRAME_REGISTER_REGION, .fd = -1};
    Fad__RegisterRegion registered = FAD__REGISTER_REGION__INIT;
    Fad__CudaIpcLocation location = FAD__CUDA_IPC_LOCATION__INIT;
    struct fa_cuda_memory memory;
    uint8_t message[MESSAGE_MAX];
    enum fa_status status = make_check(client, out);

    if (status != FA_OK)
        return status;
    if ((uintptr_t)pointer % FA_OFFSET_ALIGN != 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "pointer", "is not a multiple of 4");
    status = fa_cuda_share(client, pointer, "pointer", &memory);
    if (status != FA_OK)
        return status;
    fa_cuda_locate(&memory, &location);
    registered.cuda_ipc = &location;
    registered.has_writable = true;
    registered.writable = writable;
    assert(fad__register_region__get_packed_size(&registered) <= sizeof message);
    call.message = (struct iovec){message, fad__register_region__pack(&registered, message)};
    status = make(client, out, &call, memory.size, writable);
    if (status == FA_OK) { /* the daemon's may be larger, by what the driver rounds up to */
        assert(*out);
        (*out)->base = (uintptr_t)pointer - memory.base;
        (*out)->home = memory.home;
        (*out)->size = memory.size - (*out)->base;
    }
    return status;
}

/* --- Writing and reading --------------------------------------------------------------------- */

enum fa_status fa_region_check(struct fa_client *client, const struct fa_region *region,
                               const char *field)
{
    if (!region || region->client != client)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, field, "is none of this client's");
    if (region->connection != client->connection)
        return fa_client_fail(client, FA_REGION_LOST, field,
                              "it ended with the connection that it was made on; release it and "
                              "make another");
    return FA_OK;
}

/* A part of a region that is copied in one request. */
struct chunk {
    const struct fa_region *region;
    uint64_t offset; /* in the region */
    struct iovec memory;
};

static struct fa_request *write_new(struct fa_client *client, struct chunk chunk)
{
    Fad__WriteRegion message = FAD__WRITE_REGION__INIT;
    uint8_t packed[MESSAGE_MAX];
    struct fa_call call = {
        .type = FA_FRAME_WRITE_REGION, .fd = -1, .payload = {chunk.memory}, .payload_count = 1};

    message.has_region = message.has_offset = true;
    message.region = chunk.region->id;
    message.offset = chunk.region->base + chunk.offset;
    assert(fad__write_region__get_packed_size(&message) <= sizeof packed);
    call.message = (struct iovec){packed, fad__write_region__pack(&message, packed)};
    return fa_request_new(client, &call);
}

static struct fa_request *read_new(struct fa_client *client, struct chunk chunk)
{
    Fad__ReadRegion message = FAD__READ_REGION__INIT;
    uint8_t packed[MESSAGE_MAX];
    struct fa_call call = {
        .type = FA_FRAME_READ_REGION, .fd = -1, .in = {chunk.memory}, .in_count = 1};

    message.has_region = message.has_offset = message.has_length = true;
    message.region = chunk.region->id;
    message.offset = chunk.region->base + chunk.offset;
    message.length = chunk.memory.iov_len;
    assert(fad__read_region__get_packed_size(&message) <= sizeof packed);
    call.message = (struct iovec){packed, fad__read_region__pack(&message, packed)};
    return fa_request_new(client, &call);
}

static uint64_t chunk_bytes(const struct fa_client *client)
{
    const struct fa_info *info = &client->info;
    uint64_t bytes = CHUNK_MAX;

    if (info->payload_bytes > 0 && bytes > info->payload_bytes)
        bytes = info->payload_bytes;
    if (info->staged_bytes >= 2 && bytes > info->staged_bytes / 2) /* two side by side */
        bytes = info->staged_bytes / 2;
    return bytes;
}

typedef struct fa_request *chunk_new(struct fa_client *client, struct chunk chunk);

/* Submits the next chunk of the rest, and takes it away from there. NULL on failure. */
static struct fa_request *start_chunk(struct fa_client *client, struct chunk *rest,
                                      chunk_new *make_request)
{
    const uint64_t most = chunk_bytes(client);
    struct chunk next = *rest;
    struct fa_request *request;

    if (next.memory.iov_len > most)
        next.memory.iov_len = most;
    request = make_request(client, next);
    if (!request)
        return NULL;
    fa_request_submit(client, request);
    rest->offset += next.memory.iov_len;
    rest->memory.iov_base = (char *)rest->memory.iov_base + next.memory.iov_len;
    rest->memory.iov_len -= next.memory.iov_len;
    return request;
}

/* Copies chunk by chunk, two of them in flight where the daemon takes two more requests. Ends at
 * the first error, which is the one that is kept. */
static enum fa_status copy(struct fa_client *client, struct chunk rest, chunk_new *make_request)
{
    const int64_t deadline = fa_deadline_after(client->timeout_ms);
    const uint32_t jobs = client->info.jobs;
    const int side_by_side = jobs > 0 && client->flying_count + 2 > jobs ? 1 : 2;
    struct fa_request *flying[2] = {NULL, NULL};
    struct fa_error first = {.status = FA_OK};
    int count = 0;

    while (count > 0 || (first.status == FA_OK && rest.memory.iov_len > 0)) {
        struct fa_request *started = NULL;

        if (first.status == FA_OK && rest.memory.iov_len > 0 && count < side_by_side)
            started = start_chunk(client, &rest, make_request);
        if (started) {
            flying[count++] = started;
        } else if (count == 0) { /* none could be started */
            first = client->error;
        } else {
            fa_request_complete(client, flying[0], deadline);
            if (fa_request_take(client, flying[0]) != FA_OK && first.status == FA_OK)
                first = client->error;
            flying[0] = flying[1];
            count--;
        }
    }
    return first.status == FA_OK ? FA_OK : fa_client_keep_error(client, &first);
}

static enum fa_status copy_check(struct fa_client *client, const struct chunk *chunk)
{
    enum fa_status status = fa_region_check(client, chunk->region, "region");

    if (status != FA_OK)
        return status;
    if (chunk->offset > chunk->region->size ||
        chunk->memory.iov_len > chunk->region->size - chunk->offset)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "offset",
                              "the bytes do not lie inside the region, which has %llu",
                              (unsigned long long)chunk->region->size);
    if (!chunk->memory.iov_base && chunk->memory.iov_len > 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "data", "is NULL");
    return FA_OK;
}

enum fa_status fa_region_write(struct fa_client *client, const struct fa_region *region,
                               uint64_t offset, const void *data, uint64_t size)
{
    const struct chunk all = {region, offset, {(void *)(uintptr_t)data, size}};
    enum fa_status status;

    if (!client)
        return FA_INVALID_ARGUMENT;
    status = copy_check(client, &all);
    if (status == FA_OK && !region->writable)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "region", "is not writable");
    return status == FA_OK ? copy(client, all, write_new) : status;
}

enum fa_status fa_region_read(struct fa_client *client, const struct fa_region *region,
                              uint64_t offset, void *data, uint64_t size)
{
    const struct chunk all = {region, offset, {data, size}};
    enum fa_status status;

    if (!client)
        return FA_INVALID_ARGUMENT;
    status = copy_check(client, &all);
    return status == FA_OK ? copy(client, all, read_new) : status;
}

/* --- Ending ---------------------------------------------------------------------------------- */

static enum fa_status release(struct fa_client *client, const struct fa_region *region)
{
    struct fa_call call = {.type = FA_FRAME_RELEASE_REGION, .fd = -1};
    Fad__ReleaseRegion message = FAD__RELEASE_REGION__INIT;
    uint8_t packed[MESSAGE_MAX];
    const Fad__Reply *reply;

    if (region->connection != client->connection)
        return FA_OK; /* the daemon freed it with its connection */
    message.has_region = true;
    message.region = region->id;
    assert(fad__release_region__get_packed_size(&message) <= sizeof packed);
    call.message = (struct iovec){packed, fad__release_region__pack(&message, packed)};
    call.deadline = fa_deadline_after(client->timeout_ms);
    return fa_call_run(client, &call, &reply);
}

enum fa_status fa_region_release(struct fa_client *client, struct fa_region *region)
{
    enum fa_status status;

    if (!client)
        return FA_INVALID_ARGUMENT;
    if (!region)
        return FA_OK;
    if (region->client != client)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "region", "is none of this client's");
    status = release(client, region);
    TAILQ_REMOVE(&client->regions, region, link);
    free(region);
    return status;
}

uint64_t fa_region_size(const struct fa_region *region)
{
    return region ? region->size : 0;
}

void fa_regions_release(struct fa_client *client)
{
    struct fa_region *region = TAILQ_FIRST(&client->regions);

    TAILQ_INIT(&client->regions);
    while (region) {
        struct fa_region *next = TAILQ_NEXT(region, link);
        free(region);
        region = next;
    }
}
