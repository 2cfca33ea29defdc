#include "tests/helpers/loopback_forward.h"

#include "daemon/backend/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static ssize_t send_some(int client, const uint8_t *bytes, size_t size, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *c = &control.align;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    return sendmsg(loopback.sockets[client], &message, MSG_NOSIGNAL);
}

void loopback_send_bytes(int client, const uint8_t *bytes, size_t size, int fd)
{
    while (size > 0) {
        ssize_t sent = send_some(client, bytes, size, fd);

        if (sent < 0)
            ck_assert_int_eq(errno, EAGAIN);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
            fd = -1;
        }
        uv_run(&loopback.loop, UV_RUN_NOWAIT);
    }
}

void loopback_send_forward(int client, const struct wire_forward *f, uint64_t id)
{
    struct wire_bytes bytes = {0};

    wire_forward_append(f, id, &bytes);
    loopback_send_bytes(client, bytes.data, bytes.size, f->memfd);
    wire_free(&bytes);
}

static void receive_all(int client, uint8_t *bytes, uint64_t size)
{
    while (size > 0) {
        ssize_t got = recv(loopback.sockets[client], bytes, size, 0);

        if (got < 0) {
            ck_assert_int_eq(errno, EAGAIN);
            uv_run(&loopback.loop, UV_RUN_NOWAIT);
            continue;
        }
        ck_assert_int_gt(got, 0);
        bytes += got;
        size -= (uint64_t)got;
    }
}

void loopback_receive_reply(int client, struct wire_reply *reply)
{
    uint8_t header[FA_FRAME_HEADER_SIZE], message[4096];
    struct fa_error error;

    loopback_turn();
    ck_assert_msg(recv(loopback.sockets[client], header, sizeof header, 0) == sizeof header,
                  "no reply, where one was due");
    ck_assert_int_eq(fa_frame_decode(header, UINT64_MAX, &reply->frame, &error), FA_OK);
    ck_assert_uint_le(reply->frame.message_length, sizeof message);
    receive_all(client, message, reply->frame.message_length);
    reply->message = fad__reply__unpack(NULL, reply->frame.message_length, message);
    ck_assert_ptr_nonnull(reply->message);
    reply->payload = malloc(reply->frame.payload_length + 1);
    ck_assert_ptr_nonnull(reply->payload);
    receive_all(client, reply->payload, reply->frame.payload_length);
}

static uint64_t receive_region(int client, uint64_t id)
{
    struct wire_reply reply;
    uint64_t region;

    loopback_receive_reply(client, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    ck_assert_msg(reply.message->status == FAD__STATUS__OK, "%s", reply.message->text);
    region = reply.message->region->region;
    wire_release(&reply);
    return region;
}

uint64_t loopback_register(int client, int memfd, bool writable)
{
    struct wire_bytes bytes = {0};

    wire_append_register(&bytes, 90, writable);
    loopback_send_bytes(client, bytes.data, bytes.size, memfd);
    wire_free(&bytes);
    return receive_region(client, 90);
}

uint64_t loopback_alloc(int client, uint64_t size, uint8_t device)
{
    Fad__AllocRegion message = FAD__ALLOC_REGION__INIT;
    uint8_t uuid[16];

    memset(uuid, device, sizeof uuid);
    message.has_size = message.has_device_uuid = true;
    message.size = size;
    message.device_uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    loopback_send_message(client, FA_FRAME_ALLOC_REGION, 91, &message.base, 0);
    return receive_region(client, 91);
}

void loopback_region(struct wire_region *region, int client, size_t size, bool writable)
{
    *region = (struct wire_region){.size = size, .memfd = wire_memfd(size, F_SEAL_SHRINK)};
    region->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, region->memfd, 0);
    ck_assert_ptr_ne(region->memory, MAP_FAILED);
    region->id = loopback_register(client, region->memfd, writable);
}

void loopback_spread(struct wire_forward *f, enum fad_tensor tensor, int64_t batch, int64_t head,
                     int64_t row)
{
    const Fad__Forward *m = &f->message;
    const bool kv = tensor == FAD_K || tensor == FAD_V;
    const struct fa_extents extents = {m->batch, kv ? m->kv_heads : m->heads,
                                       kv ? m->kv_len : m->q_len,
                                       tensor == FAD_LSE ? 1 : m->head_dim};
    const struct fad_layout layout =
        fad_layout_of(extents, (struct fa_strides){batch, head, row}, sizeof(float));
    const uint64_t from = f->shared[tensor].offset, to = (f->memory_size + 63) / 64 * 64;

    wire_forward_set_strides(f, tensor, batch, head, row);
    wire_forward_grow(f, to - f->memory_size + wire_forward_span(f, tensor));
    f->shared[tensor].offset = to;
    fad_layout_copy(&layout, f->memory + to, f->memory + from, 0, fad_layout_size(&layout), false);
}

void loopback_cancel(int client, uint64_t id, uint64_t request)
{
    Fad__Cancel message = FAD__CANCEL__INIT;

    message.has_id = true;
    message.id = request;
    loopback_send_message(client, FA_FRAME_CANCEL, id, &message.base, 0);
    loopback_expect(client, id, FA_OK, NULL);
}

static unsigned find(enum scripted_call call)
{
    unsigned i = 0;

    while (i < scripted.held_count && scripted.held[i].call != call)
        i++;
    return i;
}

unsigned loopback_held(enum scripted_call call)
{
    unsigned count = 0;

    for (unsigned i = 0; i < scripted.held_count; i++)
        count += scripted.held[i].call == call;
    return count;
}

void loopback_finish(enum scripted_call call)
{
    const unsigned i = find(call);

    ck_assert_msg(i < scripted.held_count, "no such call is held");
    scripted_finish(i);
    loopback_turn();
}
