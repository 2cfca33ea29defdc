#include "tests/helpers/fake_daemon.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int count_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;

    ck_assert_ptr_nonnull(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void *serve(void *arg)
{
    struct fake_daemon *fake = arg;

    for (int round = 0; round < fake->rounds; round++) {
        int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        fake->script(fake, fd, round);
        close(fd);
    }
    return NULL;
}

void fake_listen(struct fake_daemon *fake)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    unlink(fake->path);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", fake->path);
    fake->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fake->listen_fd, 0);
    ck_assert_int_eq(bind(fake->listen_fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fake->listen_fd, 0), 0);
}

void fake_start(struct fake_daemon *fake, fake_script *script, void *data, int rounds)
{
    memset(fake, 0, sizeof *fake);
    fake->descriptors = count_descriptors();
    fake->script = script;
    fake->data = data;
    snprintf(fake->directory, sizeof fake->directory, "/tmp/fa-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fake->directory));
    snprintf(fake->path, sizeof fake->path, "%s/sock", fake->directory);
    fake_listen(fake);
    fake_serve(fake, rounds);
}

void fake_serve(struct fake_daemon *fake, int rounds)
{
    sigset_t all, before;

    fake->rounds = rounds;
    sigfillset(&all); /* signals are for the thread that runs libfa */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ck_assert_int_eq(pthread_create(&fake->thread, NULL, serve, fake), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void fake_stop(struct fake_daemon *fake)
{
    ck_assert_int_eq(pthread_join(fake->thread, NULL), 0);
    close(fake->listen_fd);
    unlink(fake->path);
    rmdir(fake->directory);
    ck_assert_int_eq(count_descriptors(), fake->descriptors);
}

struct fa_client *fake_open(const struct fake_daemon *fake)
{
    struct fa_client *client;

    ck_assert_int_eq(fa_client_open(&client, fake->path), FA_OK);
    return client;
}

void fake_check_closed(struct fa_client *client, enum fa_status by)
{
    struct fake_problem problem;

    fake_problem_init(&problem);
    ck_assert_int_eq(fa_ping(client), FA_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(fa_last_error(client), fa_status_name(by)));
    ck_assert_int_eq(fa_forward(client, &problem.args, NULL), FA_DISCONNECTED);
}

/* --- Reading --------------------------------------------------------------------------------- */

/* Reads exactly size bytes and at most one descriptor, which must come with the first of them when
 * passed is not NULL, and not at all when it is. False when the stream ends before the first. */
static bool read_exact(int fd, void *out, size_t size, int *passed)
{
    size_t have = 0;

    while (have < size) {
        union {
            char buffer[CMSG_SPACE(4 * sizeof(int))];
            struct cmsghdr align;
        } control;
        /* One byte first, so that what comes with it is known to. */
        struct iovec piece = {(char *)out + have, have == 0 && passed ? 1 : size - have};
        struct msghdr message = {.msg_iov = &piece,
                                 .msg_iovlen = 1,
                                 .msg_control = control.buffer,
                                 .msg_controllen = sizeof control.buffer};
        ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        struct cmsghdr *first;

        if (got == 0 || (got < 0 && errno == ECONNRESET)) {
            ck_assert_uint_eq(have, 0);
            return false;
        }
        ck_assert_int_gt(got, 0);
        ck_assert(!(message.msg_flags & MSG_CTRUNC));
        first = CMSG_FIRSTHDR(&message);
        if (first) {
            ck_assert(passed && have == 0);
            ck_assert_int_eq(first->cmsg_type, SCM_RIGHTS);
            ck_assert_uint_eq(first->cmsg_len, CMSG_LEN(sizeof(int)));
            memcpy(passed, CMSG_DATA(first), sizeof(int));
        }
        have += (size_t)got;
    }
    return true;
}

bool fake_read_head(int fd, struct fake_frame *out)
{
    struct fa_error error;

    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (!read_exact(fd, out->header, sizeof out->header, &out->fd))
        return false;
    ck_assert_int_eq(fa_frame_decode(out->header, UINT64_MAX, &out->frame, &error), FA_OK);
    ck_assert_int_eq(out->frame.nfds, out->fd >= 0);
    out->message = malloc(out->frame.message_length + 1);
    ck_assert_ptr_nonnull(out->message);
    if (out->frame.message_length > 0)
        ck_assert(read_exact(fd, out->message, out->frame.message_length, NULL));
    return true;
}

void fake_read_payload(int fd, struct fake_frame *frame)
{
    frame->payload = malloc(frame->frame.payload_length + 1);
    ck_assert_ptr_nonnull(frame->payload);
    if (frame->frame.payload_length > 0)
        ck_assert(read_exact(fd, frame->payload, frame->frame.payload_length, NULL));
}

bool fake_read(int fd, struct fake_frame *out)
{
    if (!fake_read_head(fd, out))
        return false;
    fake_read_payload(fd, out);
    return true;
}

void fake_frame_release(struct fake_frame *frame)
{
    free(frame->message);
    free(frame->payload);
    if (frame->fd >= 0)
        close(frame->fd);
}

Fad__Forward *fake_unpack_forward(const struct fake_frame *frame)
{
    Fad__Forward *forward;

    ck_assert_int_eq(frame->frame.type, FA_FRAME_FORWARD);
    forward = fad__forward__unpack(NULL, frame->frame.message_length, frame->message);
    ck_assert_ptr_nonnull(forward);
    return forward;
}

void fake_check_input(const Fad__Tensor *tensor, uint64_t offset, uint64_t length)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert_ptr_nonnull(tensor->inline_bytes);
    ck_assert(!tensor->memfd && !tensor->cuda_ipc);
    ck_assert(!tensor->has_stride_batch && !tensor->has_stride_head && !tensor->has_stride_row);
    ck_assert(tensor->inline_bytes->has_offset && tensor->inline_bytes->has_length);
    ck_assert_uint_eq(tensor->inline_bytes->offset, offset);
    ck_assert_uint_eq(tensor->inline_bytes->length, length);
}

void fake_check_output(const Fad__Tensor *tensor)
{
    ck_assert_ptr_nonnull(tensor);
    ck_assert_ptr_nonnull(tensor->inline_bytes);
    ck_assert(!tensor->inline_bytes->has_offset && !tensor->inline_bytes->has_length);
    ck_assert(!tensor->has_stride_batch && !tensor->has_stride_head && !tensor->has_stride_row);
}

/* --- Answering ------------------------------------------------------------------------------- */

void fake_send(int fd, const void *bytes, size_t size)
{
    const char *next = bytes;

    while (size > 0) {
        ssize_t sent = send(fd, next, size, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
            return;
        ck_assert_int_gt(sent, 0);
        next += sent;
        size -= (size_t)sent;
    }
}

uint8_t *fake_reply_bytes(uint16_t type, uint64_t id, const Fad__Reply *reply, const void *payload,
                          size_t payload_size, size_t *size)
{
    size_t length = fad__reply__get_packed_size(reply);
    struct fa_frame frame = {
        .type = type, .id = id, .message_length = (uint32_t)length, .payload_length = payload_size};
    uint8_t *bytes;

    *size = FA_FRAME_HEADER_SIZE + length + payload_size;
    bytes = calloc(1, *size);
    ck_assert_ptr_nonnull(bytes);
    fa_frame_encode(&frame, bytes);
    fad__reply__pack(reply, bytes + FA_FRAME_HEADER_SIZE);
    if (payload && payload_size > 0)
        memcpy(bytes + FA_FRAME_HEADER_SIZE + length, payload, payload_size);
    return bytes;
}

void fake_reply(int fd, const struct fake_frame *to, const Fad__Reply *reply, const void *payload,
                size_t payload_size)
{
    size_t size;
    uint8_t *bytes = fake_reply_bytes(FA_FRAME_REPLY | to->frame.type, to->frame.id, reply, payload,
                                      payload_size, &size);
    fake_send(fd, bytes, size);
    free(bytes);
}

void fake_answer(int fd, const struct fake_frame *to, const void *payload, size_t payload_size)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;

    reply.has_status = true;
    reply.forward = to->frame.type == FA_FRAME_FORWARD ? &forward : NULL;
    fake_reply(fd, to, &reply, payload, payload_size);
}

void fake_refuse(int fd, const struct fake_frame *to, int status, const char *field,
                 const char *text)
{
    Fad__Reply reply = FAD__REPLY__INIT;

    reply.has_status = true;
    reply.status = (Fad__Status)status;
    reply.field = FAKE_TEXT(field);
    reply.text = FAKE_TEXT(text);
    fake_reply(fd, to, &reply, NULL, 0);
}

void fake_problem_init(struct fake_problem *problem)
{
    memset(problem, 0, sizeof *problem);
    for (int i = 0; i < 36; i++) {
        problem->q[i] = (float)i;
        problem->o[i] = -1;
    }
    for (int i = 0; i < 30; i++) {
        problem->k[i] = (float)(100 + i);
        problem->v[i] = (float)(200 + i);
    }
    for (int i = 0; i < 12; i++)
        problem->lse[i] = -1;
    problem->scale = 0;
    problem->args = (struct fa_forward_args){.batch = 2,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .q_len = 3,
                                             .kv_len = 5,
                                             .head_dim = 3,
                                             .mask = FA_MASK_CAUSAL_TOP_LEFT,
                                             .scale = &problem->scale,
                                             .version = "v4"};
    problem->args.q.data = problem->q;
    problem->args.k.data = problem->k;
    problem->args.v.data = problem->v;
    problem->args.o.data = problem->o;
    problem->args.lse.data = problem->lse;
}

uint8_t *fake_problem_reply(uint64_t id, size_t *size)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    uint8_t payload[FAKE_REPLY_PAYLOAD];

    memset(payload, 0xee, sizeof payload);
    for (int i = 0; i < 36; i++)
        memcpy(payload + 4 * i, &(float){(float)(1000 + i)}, 4);
    for (int i = 0; i < 12; i++)
        memcpy(payload + 192 + 4 * i, &(float){(float)(2000 + i)}, 4);
    reply.has_status = true;
    reply.forward = &forward;
    forward.version = FAKE_TEXT("v2");
    forward.kernel = FAKE_TEXT("tiled-2");
    forward.has_redirected = forward.redirected = true;
    forward.redirect_reason = FAKE_TEXT("v4 covers head_dim 64");
    forward.device = FAKE_TEXT("first");
    forward.has_queue_us = forward.has_transfer_us = true;
    forward.has_kernel_us = forward.has_total_us = forward.has_payload_o_bytes = true;
    forward.queue_us = 11;
    forward.transfer_us = 12;
    forward.kernel_us = 13;
    forward.total_us = 36;
    forward.payload_o_bytes = 144;
    return fake_reply_bytes(FA_FRAME_REPLY | FA_FRAME_FORWARD, id, &reply, payload, sizeof payload,
                            size);
}

void fake_answer_problem(int fd, const struct fake_frame *to)
{
    size_t size;
    uint8_t *bytes = fake_problem_reply(to->frame.id, &size);

    fake_send(fd, bytes, size);
    free(bytes);
}

void fake_problem_check(const struct fake_problem *problem)
{
    for (int i = 0; i < 36; i++)
        ck_assert(problem->o[i] == (float)(1000 + i));
    for (int i = 0; i < 12; i++)
        ck_assert(problem->lse[i] == (float)(2000 + i));
}
