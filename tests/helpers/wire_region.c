#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Ids of the requests that are awaited here. */
static uint64_t next_id(void)
{
    static uint64_t next = UINT64_C(1) << 32;
    return next++;
}

/* --- Frames ---------------------------------------------------------------------------------- */

void wire_append_message(struct wire_bytes *bytes, uint16_t type, uint64_t id,
                         const ProtobufCMessage *message, const void *payload, size_t size)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(length + 1);
    struct wire_frame frame;

    ck_assert_ptr_nonnull(packed);
    protobuf_c_message_pack(message, packed);
    frame = wire_make(type, id, packed, length, payload, size);
    frame.nfds = type == FA_FRAME_REGISTER_REGION;
    wire_append_frame(bytes, &frame);
    free(packed);
}

void wire_append_alloc(struct wire_bytes *bytes, uint64_t id, uint64_t size)
{
    Fad__AllocRegion message = FAD__ALLOC_REGION__INIT;

    message.has_size = true;
    message.size = size;
    wire_append_message(bytes, FA_FRAME_ALLOC_REGION, id, &message.base, NULL, 0);
}

void wire_append_register(struct wire_bytes *bytes, uint64_t id, bool writable)
{
    Fad__RegisterRegion message = FAD__REGISTER_REGION__INIT;

    message.has_writable = message.writable = writable;
    wire_append_message(bytes, FA_FRAME_REGISTER_REGION, id, &message.base, NULL, 0);
}

void wire_append_write(struct wire_bytes *bytes, uint64_t id, uint64_t region, uint64_t offset,
                       const void *data, size_t size)
{
    Fad__WriteRegion message = FAD__WRITE_REGION__INIT;

    message.has_region = message.has_offset = true;
    message.region = region;
    message.offset = offset;
    wire_append_message(bytes, FA_FRAME_WRITE_REGION, id, &message.base, data, size);
}

void wire_append_read(struct wire_bytes *bytes, uint64_t id, uint64_t region, uint64_t offset,
                      uint64_t length)
{
    Fad__ReadRegion message = FAD__READ_REGION__INIT;

    message.has_region = message.has_offset = message.has_length = true;
    message.region = region;
    message.offset = offset;
    message.length = length;
    wire_append_message(bytes, FA_FRAME_READ_REGION, id, &message.base, NULL, 0);
}

void wire_append_release(struct wire_bytes *bytes, uint64_t id, uint64_t region)
{
    Fad__ReleaseRegion message = FAD__RELEASE_REGION__INIT;

    message.has_region = true;
    message.region = region;
    wire_append_message(bytes, FA_FRAME_RELEASE_REGION, id, &message.base, NULL, 0);
}

void wire_append_cancel(struct wire_bytes *bytes, uint64_t id, uint64_t request)
{
    Fad__Cancel message = FAD__CANCEL__INIT;

    message.has_id = true;
    message.id = request;
    wire_append_message(bytes, FA_FRAME_CANCEL, id, &message.base, NULL, 0);
}

void wire_send_bytes(int fd, struct wire_bytes *bytes)
{
    wire_send(fd, bytes->data, bytes->size);
    wire_free(bytes);
}

void wire_send_bytes_fds(int fd, struct wire_bytes *bytes, const int *fds, int count)
{
    ck_assert(wire_try_send_fds(fd, bytes->data, bytes->size, bytes->size, fds, count));
    wire_free(bytes);
}

void wire_bytes_refused(int fd, struct wire_bytes *bytes, enum fa_status status, const char *field,
                        const char *words)
{
    wire_send_bytes(fd, bytes);
    wire_expect_text(fd, 5, status, field, words);
    wire_serves(fd);
}

/* --- Requests that are awaited --------------------------------------------------------------- */

static void expect_ok(const struct wire_reply *reply, uint64_t id, uint16_t type)
{
    ck_assert_msg(reply->message->status == FAD__STATUS__OK, "%s: %s: %s",
                  fa_status_name((enum fa_status)reply->message->status), reply->message->field,
                  reply->message->text);
    ck_assert_uint_eq(reply->frame.id, id);
    ck_assert_uint_eq(reply->frame.type, FA_FRAME_REPLY | type);
}

/* Awaits the reply to a request that was sent. */
static void receive_ok(int fd, uint64_t id, uint16_t type, struct wire_reply *reply)
{
    wire_receive(fd, reply);
    expect_ok(reply, id, type);
}

static uint64_t receive_region(int fd, uint64_t id, uint16_t type, uint64_t size)
{
    struct wire_reply reply;
    uint64_t region;

    receive_ok(fd, id, type, &reply);
    ck_assert_ptr_nonnull(reply.message->region);
    region = reply.message->region->region;
    ck_assert_uint_gt(region, 0);
    ck_assert_uint_eq(reply.message->region->size, size);
    ck_assert_uint_eq(reply.frame.payload_length, 0);
    wire_release(&reply);
    return region;
}

void wire_region_alloc(struct wire_region *region, int fd, size_t size)
{
    struct wire_bytes bytes = {0};
    uint64_t id = next_id();

    *region = (struct wire_region){.memory = malloc(size), .size = size, .memfd = -1};
    ck_assert_ptr_nonnull(region->memory);
    memset(region->memory, 0xff, size);
    wire_append_alloc(&bytes, id, size);
    wire_send_bytes(fd, &bytes);
    region->id = receive_region(fd, id, FA_FRAME_ALLOC_REGION, size);
}

uint64_t wire_register(int fd, int memfd, bool writable)
{
    struct wire_bytes bytes = {0};
    uint64_t id = next_id();
    off_t size = lseek(memfd, 0, SEEK_END);

    wire_append_register(&bytes, id, writable);
    wire_send_bytes_fds(fd, &bytes, &memfd, 1);
    return receive_region(fd, id, FA_FRAME_REGISTER_REGION, (uint64_t)size);
}

void wire_region_register(struct wire_region *region, int fd, size_t size, bool writable)
{
    *region = (struct wire_region){.size = size, .memfd = wire_memfd(size, F_SEAL_SHRINK)};
    region->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, region->memfd, 0);
    ck_assert_ptr_ne(region->memory, MAP_FAILED);
    region->id = wire_register(fd, region->memfd, writable);
}

void wire_write(int fd, uint64_t region, uint64_t offset, const void *data, size_t size)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    uint64_t id = next_id();

    wire_append_write(&bytes, id, region, offset, data, size);
    wire_send_bytes(fd, &bytes);
    receive_ok(fd, id, FA_FRAME_WRITE_REGION, &reply);
    ck_assert_uint_eq(reply.frame.payload_length, 0);
    wire_release(&reply);
}

void wire_read(int fd, uint64_t region, uint64_t offset, void *data, size_t size)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    uint64_t id = next_id();

    wire_append_read(&bytes, id, region, offset, size);
    wire_send_bytes(fd, &bytes);
    receive_ok(fd, id, FA_FRAME_READ_REGION, &reply);
    ck_assert_uint_eq(reply.frame.payload_length, size);
    memcpy(data, reply.payload, size);
    wire_release(&reply);
}

void wire_region_push(const struct wire_region *region, int fd)
{
    ck_assert_int_lt(region->memfd, 0);
    wire_write(fd, region->id, 0, region->memory, region->size);
}

void wire_region_pull(const struct wire_region *region, int fd)
{
    ck_assert_int_lt(region->memfd, 0);
    wire_read(fd, region->id, 0, region->memory, region->size);
}

void wire_release_region(int fd, uint64_t region)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    uint64_t id = next_id();

    wire_append_release(&bytes, id, region);
    wire_send_bytes(fd, &bytes);
    receive_ok(fd, id, FA_FRAME_RELEASE_REGION, &reply);
    wire_release(&reply);
}

void wire_region_free(struct wire_region *region)
{
    if (region->memfd < 0) {
        free(region->memory);
        return;
    }
    munmap(region->memory, region->size);
    close(region->memfd);
}

void wire_region_release(struct wire_region *region, int fd)
{
    wire_release_region(fd, region->id);
    wire_region_free(region);
}

/* --- Forwards -------------------------------------------------------------------------------- */

void wire_forward_use_region(struct wire_forward *f, enum fad_tensor tensor,
                             const struct wire_region *region, uint64_t offset)
{
    uint64_t span = wire_forward_span(f, tensor);

    ck_assert(offset <= region->size && span <= region->size - offset);
    if (tensor == FAD_O || tensor == FAD_LSE)
        memset(region->memory + offset, 0xff, span); /* NaN */
    else
        memcpy(region->memory + offset, wire_forward_bytes(f, tensor), span);
    f->tensors[tensor].inline_bytes = NULL;
    f->tensors[tensor].memfd = NULL;
    f->tensors[tensor].cuda_ipc = NULL;
    f->tensors[tensor].region = &f->lodged[tensor];
    f->lodged[tensor].has_region = f->lodged[tensor].has_offset = true;
    f->lodged[tensor].region = region->id;
    f->lodged[tensor].offset = offset;
    f->regions[tensor] = region;
}

void wire_forward_use_regions(struct wire_forward *f, unsigned tensors,
                              const struct wire_region *region)
{
    uint64_t offset = 0;

    for (int t = 0; t < FAD_TENSORS; t++) {
        if (!(tensors & 1u << t))
            continue;
        wire_forward_use_region(f, (enum fad_tensor)t, region, offset);
        offset += (wire_forward_span(f, (enum fad_tensor)t) + 63) / 64 * 64;
    }
}

/* --- What is held ---------------------------------------------------------------------------- */

void wire_stats(int fd, struct wire_reply *reply)
{
    Fad__Stats message = FAD__STATS__INIT;
    struct wire_bytes bytes = {0};
    uint64_t id = next_id();

    wire_append_message(&bytes, FA_FRAME_STATS, id, &message.base, NULL, 0);
    wire_send_bytes(fd, &bytes);
    receive_ok(fd, id, FA_FRAME_STATS, reply);
    ck_assert(reply->message->stats && reply->message->stats->daemon);
}

bool wire_cancel(int fd, uint64_t request)
{
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    uint64_t id = next_id();
    bool found;

    wire_append_cancel(&bytes, id, request);
    wire_send_bytes(fd, &bytes);
    receive_ok(fd, id, FA_FRAME_CANCEL, &reply);
    ck_assert(reply.message->cancel && reply.message->cancel->has_found);
    found = reply.message->cancel->found;
    wire_release(&reply);
    return found;
}

void wire_expect_idle(int fd)
{
    long long deadline = test_now_ms() + WIRE_SECONDS * 1000LL;

    for (;;) {
        struct wire_reply reply;
        const Fad__Usage *held;
        bool idle;

        wire_stats(fd, &reply);
        held = reply.message->stats->daemon;
        idle = held->connections == 1 && held->jobs == 0 && held->staged_bytes == 0 &&
               held->mapped_bytes == 0 && held->regions == 0;
        ck_assert_msg(idle || test_now_ms() < deadline,
                      "the daemon holds %" PRIu64 " connections, %" PRIu64 " jobs, %" PRIu64
                      " staged bytes, %" PRIu64 " mapped bytes, %" PRIu64 " regions",
                      held->connections, held->jobs, held->staged_bytes, held->mapped_bytes,
                      held->regions);
        wire_release(&reply);
        if (idle)
            return;
        test_sleep_ms(1);
    }
}
