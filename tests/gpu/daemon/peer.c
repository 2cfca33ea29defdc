#include "tests/gpu/daemon/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* --- The process ----------------------------------------------------------------------------- */

/* The child: becomes the exporter. */
static void become(const char *program, uid_t uid, int in, int out, pid_t parent)
{
    char text[24];

    snprintf(text, sizeof text, "%u", (unsigned)uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(126);
    close_range(3, ~0u, 0);
    execl(program, program, uid ? text : NULL, NULL);
    _exit(127);
}

static void read_all(struct peer *peer, void *data, size_t size)
{
    for (uint8_t *at = data; size > 0;) {
        struct pollfd polled = {peer->from, POLLIN, 0};
        ssize_t got;

        ck_assert_msg(poll(&polled, 1, PEER_SECONDS * 1000) == 1, "the exporter says nothing");
        got = read(peer->from, at, size);
        ck_assert_msg(got > 0, "the exporter has ended");
        at += got;
        size -= (size_t)got;
    }
}

static void write_all(struct peer *peer, const void *data, size_t size)
{
    for (const uint8_t *at = data; size > 0;) {
        ssize_t sent = write(peer->to, at, size);

        ck_assert_msg(sent > 0, "the exporter has ended: %s", strerror(errno));
        at += sent;
        size -= (size_t)sent;
    }
}

static const char *read_answer(struct peer *peer)
{
    static char line[1024];
    size_t length = 0;

    do {
        ck_assert_uint_lt(length, sizeof line);
        read_all(peer, &line[length], 1);
    } while (line[length++] != '\n');
    line[length - 1] = '\0';
    return line;
}

static const char *expect_ok(const char *answer, const char *what)
{
    ck_assert_msg(strncmp(answer, "ok", 2) == 0, "the exporter's %s: %s", what, answer);
    return answer + (answer[2] == ' ' ? 3 : 2);
}

void peer_start(struct peer *peer, uid_t uid)
{
    const char *program = test_program("gpu/daemon/exporter");
    const pid_t parent = getpid();
    int in[2], out[2];

    ck_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    *peer = (struct peer){.pid = fork(), .to = in[1], .from = out[0]};
    ck_assert_int_ge(peer->pid, 0);
    if (peer->pid == 0)
        become(program, uid, in[0], out[1], parent);
    close(in[0]);
    close(out[1]);
    expect_ok(read_answer(peer), "start");
}

static void end(struct peer *peer)
{
    close(peer->to);
    test_wait(peer->pid, PEER_SECONDS);
    close(peer->from);
}

void peer_stop(struct peer *peer)
{
    end(peer);
}

void peer_kill(struct peer *peer)
{
    ck_assert_int_eq(kill(peer->pid, SIGKILL), 0);
    end(peer);
}

static void send_line(struct peer *peer, const char *format, va_list arguments)
{
    char line[256];
    int length = vsnprintf(line, sizeof line - 1, format, arguments);

    ck_assert(length > 0 && length < (int)sizeof line - 1);
    line[length++] = '\n';
    write_all(peer, line, (size_t)length);
}

const char *peer_ask(struct peer *peer, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    send_line(peer, format, arguments);
    va_end(arguments);
    return read_answer(peer);
}

const char *peer_tell(struct peer *peer, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    send_line(peer, format, arguments);
    va_end(arguments);
    return expect_ok(read_answer(peer), format);
}

uint64_t peer_gpu_free(struct peer *peer)
{
    return strtoull(peer_tell(peer, "memory"), NULL, 10);
}

void peer_expect_freed(struct peer *peer, uint64_t before)
{
    const uint64_t slack = (uint64_t)64 << 20;
    const long long deadline = test_now_ms() + PEER_SECONDS * 1000LL;
    uint64_t now;

    while ((now = peer_gpu_free(peer)) + slack < before) {
        ck_assert_msg(test_now_ms() < deadline,
                      "%" PRIu64 " MiB of the GPU's memory are not given back",
                      (before - now) >> 20);
        test_sleep_ms(50);
    }
}

/* --- Hexadecimal ----------------------------------------------------------------------------- */

static const char *take_hex(const char *text, uint8_t *out, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const char digits[3] = {text[2 * i], text[2 * i] ? text[2 * i + 1] : '\0', '\0'};
        char *end_of_it;

        out[i] = (uint8_t)strtoul(digits, &end_of_it, 16);
        ck_assert(end_of_it == digits + 2);
    }
    return text + 2 * size;
}

void peer_event(struct peer *peer, unsigned number, uint8_t handle[64])
{
    take_hex(peer_tell(peer, "event %u", number), handle, 64);
}

/* --- Its memory ------------------------------------------------------------------------------ */

static void make(struct peer_memory *memory)
{
    const char *text;
    char *rest;

    peer_tell(memory->peer, "alloc %u %zu malloc", memory->slot, memory->allocated);
    text = take_hex(peer_tell(memory->peer, "handle %u", memory->slot), memory->handle, 64);
    memory->buffer_id = strtoull(text, &rest, 10);
    text = take_hex(rest + 1, memory->uuid, 16);
    memory->offset = strtoull(text, &rest, 10);
    memory->whole = strtoull(rest, NULL, 10);
}

static void alloc(struct peer *peer, struct peer_memory *memory, size_t size, size_t unit)
{
    unsigned slot = 0;

    while (peer->slots & 1u << slot)
        slot++;
    ck_assert_uint_lt(slot, 31);
    peer->slots |= 1u << slot;
    *memory = (struct peer_memory){.peer = peer, .slot = slot};
    memory->allocated = (size + unit - 1) / unit * unit;
    memory->region = (struct wire_region){.memory = malloc(size), .size = size, .memfd = -1};
    ck_assert_ptr_nonnull(memory->region.memory);
    memset(memory->region.memory, 0xff, size); /* NaN */
    make(memory);
    peer_push(memory, 0);
}

void peer_alloc(struct peer *peer, struct peer_memory *memory, size_t size)
{
    alloc(peer, memory, size, (size_t)2 << 20);
}

void peer_alloc_exact(struct peer *peer, struct peer_memory *memory, size_t size)
{
    alloc(peer, memory, size, 1);
}

void peer_free(struct peer_memory *memory)
{
    peer_tell(memory->peer, "free %u", memory->slot);
    memory->peer->slots &= ~(1u << memory->slot);
    free(memory->region.memory);
}

void peer_renew(struct peer_memory *memory)
{
    peer_tell(memory->peer, "free %u", memory->slot);
    make(memory);
}

void peer_push(const struct peer_memory *memory, unsigned milliseconds)
{
    char line[96];
    int length = snprintf(line, sizeof line, "put %u 0 %zu %u\n", memory->slot, memory->region.size,
                          milliseconds);

    write_all(memory->peer, line, (size_t)length);
    write_all(memory->peer, memory->region.memory, memory->region.size);
    expect_ok(read_answer(memory->peer), "put");
}

void peer_pull(const struct peer_memory *memory)
{
    peer_tell(memory->peer, "get %u 0 %zu", memory->slot, memory->region.size);
    read_all(memory->peer, memory->region.memory, memory->region.size);
}

/* --- Requests -------------------------------------------------------------------------------- */

void peer_drop_payload(struct wire_forward *f)
{
    for (int t = 0; t <= FAD_V; t++)
        if (f->tensors[t].inline_bytes)
            return;
    f->payload.size = 0;
}

void peer_use(struct wire_forward *f, enum fad_tensor tensor, const struct peer_memory *memory,
              uint64_t offset)
{
    Fad__CudaIpcLocation *ipc = &f->ipc[tensor];

    wire_forward_use_region(f, tensor, &memory->region, offset);
    f->tensors[tensor].region = NULL;
    f->tensors[tensor].cuda_ipc = ipc;
    ipc->has_handle = ipc->has_buffer_id = ipc->has_device_uuid = ipc->has_offset = true;
    ipc->handle = (ProtobufCBinaryData){64, (uint8_t *)(uintptr_t)memory->handle};
    ipc->device_uuid = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)memory->uuid};
    ipc->buffer_id = memory->buffer_id;
    ipc->offset = memory->offset + offset;
    peer_drop_payload(f);
}

void peer_use_all(struct wire_forward *f, unsigned tensors, const struct peer_memory *memory)
{
    uint64_t offset = 0;

    for (int t = 0; t < FAD_TENSORS; t++) {
        if (!(tensors & 1u << t))
            continue;
        peer_use(f, (enum fad_tensor)t, memory, offset);
        offset += (wire_forward_span(f, (enum fad_tensor)t) + 63) / 64 * 64;
    }
}

uint64_t peer_bytes(const struct wire_forward *f, unsigned tensors)
{
    uint64_t bytes = 0;

    for (int t = 0; t < FAD_TENSORS; t++)
        if (tensors & 1u << t)
            bytes += (wire_forward_span(f, (enum fad_tensor)t) + 63) / 64 * 64;
    return bytes;
}

void peer_forward_make(struct wire_forward *f, struct peer *peer, struct peer_memory *memory,
                       struct wire_shape shape)
{
    const unsigned all = (1u << FAD_TENSORS) - 1;

    wire_forward_make(f, shape, 0);
    peer_alloc(peer, memory, peer_bytes(f, all));
    peer_use_all(f, all, memory);
    peer_push(memory, 0);
}

void peer_await(struct wire_forward *f, enum fad_tensor tensor, uint8_t handle[64])
{
    ck_assert_ptr_nonnull(f->tensors[tensor].cuda_ipc);
    f->ipc[tensor].has_event = true;
    f->ipc[tensor].event = (ProtobufCBinaryData){64, handle};
}

void peer_append_register(struct wire_bytes *bytes, uint64_t id, const struct peer_memory *memory,
                          bool writable)
{
    Fad__RegisterRegion message = FAD__REGISTER_REGION__INIT;
    Fad__CudaIpcLocation ipc = FAD__CUDA_IPC_LOCATION__INIT;
    struct wire_frame frame;
    uint8_t packed[512];

    ipc.has_handle = ipc.has_buffer_id = ipc.has_device_uuid = true;
    ipc.handle = (ProtobufCBinaryData){64, (uint8_t *)(uintptr_t)memory->handle};
    ipc.device_uuid = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)memory->uuid};
    ipc.buffer_id = memory->buffer_id;
    message.has_writable = message.writable = writable;
    message.cuda_ipc = &ipc;
    ck_assert_uint_le(fad__register_region__get_packed_size(&message), sizeof packed);
    frame = wire_make(FA_FRAME_REGISTER_REGION, id, packed,
                      fad__register_region__pack(&message, packed), NULL, 0);
    wire_append_frame(bytes, &frame);
}

void peer_register(struct peer_memory *memory, int fd, bool writable)
{
    static uint64_t next = UINT64_C(1) << 40;
    struct wire_bytes bytes = {0};
    struct wire_reply reply;

    peer_append_register(&bytes, next, memory, writable);
    wire_send_bytes(fd, &bytes);
    wire_receive(fd, &reply);
    ck_assert_msg(reply.message->status == FAD__STATUS__OK, "%s: %s", reply.message->field,
                  reply.message->text);
    ck_assert_uint_eq(reply.frame.id, next++);
    ck_assert_ptr_nonnull(reply.message->region);
    ck_assert_uint_ge(reply.message->region->size, memory->whole);
    memory->region.id = reply.message->region->region;
    wire_release(&reply);
}

void peer_run(int fd, const struct wire_forward *f, uint64_t id, const struct peer_memory *memory)
{
    struct wire_reply reply;

    ck_assert(wire_forward_send(fd, f, id));
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    peer_pull(memory);
    wire_forward_check(f, &reply);
    wire_release(&reply);
}

void peer_expect(int fd, uint64_t id, enum fa_status status)
{
    struct wire_reply reply;

    wire_receive(fd, &reply);
    ck_assert_msg(reply.frame.id == id && (enum fa_status)reply.message->status == status,
                  "request %" PRIu64 ": %s: %s", reply.frame.id,
                  fa_status_name((enum fa_status)reply.message->status), reply.message->text);
    wire_release(&reply);
}

uint64_t peer_mapped(int fd)
{
    struct wire_reply reply;
    uint64_t mapped;

    wire_stats(fd, &reply);
    mapped = reply.message->stats->daemon->mapped_bytes;
    wire_release(&reply);
    return mapped;
}
