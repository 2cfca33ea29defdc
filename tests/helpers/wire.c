#include "tests/helpers/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* --- Bytes ----------------------------------------------------------------------------------- */

void wire_append(struct wire_bytes *bytes, const void *data, size_t size)
{
    uint8_t *grown = realloc(bytes->data, bytes->size + size + 1);

    if (!grown)
        ck_abort_msg("no memory");
    memcpy(grown + bytes->size, size ? data : "", size);
    bytes->data = grown;
    bytes->size += size;
}

void wire_free(struct wire_bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct wire_bytes){0};
}

struct wire_frame wire_make(uint16_t type, uint64_t id, const void *message, size_t message_size,
                            const void *payload, size_t payload_size)
{
    return (struct wire_frame){.magic = FA_FRAME_MAGIC,
                               .type = type,
                               .id = id,
                               .message_length = (uint32_t)message_size,
                               .payload_length = payload_size,
                               .message = message,
                               .message_size = message_size,
                               .payload = payload,
                               .payload_size = payload_size};
}

struct wire_frame wire_ping_frame(uint64_t id)
{
    return wire_make(FA_FRAME_PING, id, NULL, 0, NULL, 0);
}

static void put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

void wire_append_frame(struct wire_bytes *bytes, const struct wire_frame *frame)
{
    uint8_t header[FA_FRAME_HEADER_SIZE];

    put(header, frame->magic, 4);
    put(header + 4, frame->type, 2);
    put(header + 6, frame->nfds, 1);
    put(header + 7, frame->flags, 1);
    put(header + 8, frame->id, 8);
    put(header + 16, frame->message_length, 4);
    put(header + 20, frame->reserved, 4);
    put(header + 24, frame->payload_length, 8);
    wire_append(bytes, header, sizeof header);
    wire_append(bytes, frame->message, frame->message_size);
    wire_append(bytes, frame->payload, frame->payload_size);
}

uint64_t wire_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* --- Sending --------------------------------------------------------------------------------- */

static void await(int fd, short events)
{
    struct pollfd polled = {fd, events, 0};

    ck_assert_msg(poll(&polled, 1, WIRE_SECONDS * 1000) == 1, "the daemon %s nothing for %d s",
                  events == POLLIN ? "sent" : "took", WIRE_SECONDS);
}

int wire_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", wire_daemon()->socket);
    ck_assert_msg(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect: %s",
                  strerror(errno));
    return fd;
}

void wire_hello(int fd)
{
    uint8_t message[] = {1 << 3, FA_PROTOCOL_MAJOR, 2 << 3, FA_PROTOCOL_MINOR};
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 1, message, sizeof message, NULL, 0);

    wire_send_frame(fd, &hello);
    wire_expect(fd, 1, FA_OK, "");
}

int wire_greet(void)
{
    int fd = wire_connect();

    wire_hello(fd);
    return fd;
}

bool wire_try_send_fds(int fd, const void *data, size_t size, size_t first_size, const int *fds,
                       int count)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(253 * sizeof(int))];
    } control;
    struct iovec iov = {(void *)(uintptr_t)data, first_size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t sent;

    memset(&control, 0, sizeof control);
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(&control.header), fds, (size_t)count * sizeof(int));
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return false;
    ck_assert_msg(sent == (ssize_t)first_size, "sendmsg: %s", strerror(errno));
    return wire_try_send(fd, (const uint8_t *)data + first_size, size - first_size);
}

bool wire_try_send(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;

    while (size > 0) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return false;
        if (sent < 0) {
            ck_assert_msg(errno == EAGAIN || errno == EINTR, "send: %s", strerror(errno));
            await(fd, POLLOUT);
            continue;
        }
        at += sent;
        size -= (size_t)sent;
    }
    return true;
}

void wire_send(int fd, const void *data, size_t size)
{
    ck_assert_msg(wire_try_send(fd, data, size), "the daemon closed while it was sent to");
}

void wire_send_pieces(int fd, const void *data, size_t size, size_t most, uint64_t seed)
{
    const uint8_t *at = data;

    while (size > 0) {
        size_t piece = 1 + wire_random(&seed) % most;

        if (piece > size)
            piece = size;
        wire_send(fd, at, piece);
        at += piece;
        size -= piece;
    }
}

void wire_send_frame(int fd, const struct wire_frame *frame)
{
    struct wire_bytes bytes = {0};

    wire_append_frame(&bytes, frame);
    wire_send(fd, bytes.data, bytes.size);
    wire_free(&bytes);
}

/* --- Receiving ------------------------------------------------------------------------------- */

/* Bytes received: fewer than size only when the daemon has closed. */
static size_t receive(int fd, void *data, size_t size)
{
    uint8_t *at = data;
    size_t got = 0;

    while (got < size) {
        ssize_t n = recv(fd, at + got, size - got, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno == ECONNRESET))
            break;
        if (n < 0) {
            ck_assert_msg(errno == EAGAIN || errno == EINTR, "recv: %s", strerror(errno));
            await(fd, POLLIN);
            continue;
        }
        got += (size_t)n;
    }
    return got;
}

static void receive_all(int fd, void *data, size_t size, const char *what)
{
    size_t got = receive(fd, data, size);
    ck_assert_msg(got == size, "the daemon closed after %zu of %zu bytes of a reply's %s", got,
                  size, what);
}

void wire_receive(int fd, struct wire_reply *reply)
{
    uint8_t header[FA_FRAME_HEADER_SIZE], *message;
    struct fa_error error;

    *reply = (struct wire_reply){0};
    receive_all(fd, header, sizeof header, "header");
    ck_assert_msg(fa_frame_decode(header, UINT64_MAX, &reply->frame, &error) == FA_OK,
                  "a reply's %s: %s", error.field, error.text);
    ck_assert_uint_eq(reply->frame.nfds, 0);
    message = malloc(reply->frame.message_length + 1);
    reply->payload = malloc(reply->frame.payload_length + 1);
    ck_assert(message && reply->payload);
    receive_all(fd, message, reply->frame.message_length, "message");
    receive_all(fd, reply->payload, reply->frame.payload_length, "payload");
    reply->message = fad__reply__unpack(NULL, reply->frame.message_length, message);
    free(message);
    ck_assert_msg(reply->message && reply->message->has_status, "a reply without a status");
    ck_assert((reply->frame.type & FA_FRAME_REPLY) != 0);
}

void wire_release(struct wire_reply *reply)
{
    fad__reply__free_unpacked(reply->message, NULL);
    free(reply->payload);
    *reply = (struct wire_reply){0};
}

static uint16_t expect(int fd, uint64_t id, enum fa_status status, const char *field,
                       const char *words)
{
    struct wire_reply reply;
    const char *got_field, *text;
    uint16_t type;

    wire_receive(fd, &reply);
    got_field = reply.message->field ? reply.message->field : "";
    text = reply.message->text ? reply.message->text : "";
    ck_assert_msg(reply.frame.id == id && (enum fa_status)reply.message->status == status &&
                      strcmp(got_field, field) == 0 && strstr(text, words),
                  "request %llu answered %s, field '%s': %s; expected request %llu, %s, field '%s'"
                  ", with '%s'",
                  (unsigned long long)reply.frame.id,
                  fa_status_name((enum fa_status)reply.message->status), got_field, text,
                  (unsigned long long)id, fa_status_name(status), field, words);
    ck_assert_msg(status == FA_OK || text[0], "a refusal that does not say what is wrong");
    type = reply.frame.type;
    wire_release(&reply);
    return type;
}

void wire_expect_text(int fd, uint64_t id, enum fa_status status, const char *field,
                      const char *words)
{
    ck_assert_uint_ne(expect(fd, id, status, field, words), FA_FRAME_REPLY);
}

void wire_expect(int fd, uint64_t id, enum fa_status status, const char *field)
{
    wire_expect_text(fd, id, status, field, "");
}

void wire_expect_last(int fd, uint64_t id, enum fa_status status, const char *field)
{
    ck_assert_uint_eq(expect(fd, id, status, field, ""), FA_FRAME_REPLY);
    wire_expect_end(fd);
}

void wire_expect_end(int fd)
{
    uint8_t byte;
    ck_assert_msg(receive(fd, &byte, 1) == 0, "a reply where the connection's end was expected");
    close(fd);
}

void wire_ping(int fd, uint64_t id)
{
    struct wire_frame ping = wire_ping_frame(id);
    wire_send_frame(fd, &ping);
    wire_expect(fd, id, FA_OK, "");
}

bool wire_has_news(int fd)
{
    struct pollfd polled = {fd, POLLIN, 0};
    return poll(&polled, 1, 0) != 0;
}
