#include "tests/helpers/loopback.h"

#include "daemon/util/log.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct loopback loopback;

static void on_fatal(void *user, int reason)
{
    (void)user;
    loopback.fatal = reason;
}

static void on_closing(void *user, struct fad_connection *connection)
{
    (void)user;
    TAILQ_REMOVE(&loopback.list, connection, link);
    for (int i = 0; i < LOOPBACK_CLIENTS; i++)
        if (loopback.connections[i] == connection)
            loopback.connections[i] = NULL;
}

static void on_freed(void *user)
{
    (void)user;
    loopback.freed++;
}

static void no_work(uv_work_t *work)
{
    (void)work;
}

static void on_no_work(uv_work_t *work, int status)
{
    (void)status;
    work->data = NULL;
}

/* Until the thread pool, which has one thread, has closed the descriptors that were discarded. */
static void await_discards(void)
{
    uv_work_t last = {.data = &last};

    ck_assert_int_eq(uv_queue_work(&loopback.loop, &last, no_work, on_no_work), 0);
    while (last.data)
        uv_run(&loopback.loop, UV_RUN_ONCE);
}

/* The loop turns until it has had time for every event that is ready. */
void loopback_turn(void)
{
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 20; i++)
            uv_run(&loopback.loop, UV_RUN_NOWAIT);
        await_discards();
    }
}

void loopback_setup(void)
{
    static const struct fad_backend_config config;
    static const struct fad_amounts limit = {{[FAD_JOBS] = 64,
                                              [FAD_STAGED] = 1 << 26,
                                              [FAD_MAPPED] = 1 << 26,
                                              [FAD_REGIONS] = 64,
                                              [FAD_CONNECTIONS] = LOOPBACK_CLIENTS}};
    struct fa_error error;

    ck_assert_int_eq(setenv("UV_THREADPOOL_SIZE", "1", 1), 0);
    scripted_reset();
    fad_log_set_level(FAD_LOG_ERROR);
    loopback.freed = loopback.fatal = 0;
    ck_assert_int_eq(uv_loop_init(&loopback.loop), 0);
    ck_assert_int_eq(fad_engine_init(&loopback.engine, &loopback.loop, &scripted_ops, &config,
                                     on_fatal, NULL, &error),
                     0);
    fad_account_init(&loopback.account, "the daemon", NULL, false, &limit);
    fad_users_init(&loopback.users, &loopback.account, &limit);
    ck_assert_int_eq(fad_statistics_init(&loopback.statistics, uv_hrtime()), 0);
    TAILQ_INIT(&loopback.list);
    loopback.service = (struct fad_service){.loop = &loopback.loop,
                                            .engine = &loopback.engine,
                                            .account = &loopback.account,
                                            .limit = limit,
                                            .users = &loopback.users,
                                            .connections = &loopback.list,
                                            .statistics = &loopback.statistics,
                                            .payload_max = 1 << 20,
                                            .stall_ns = (uint64_t)30e9,
                                            .on_closing = on_closing,
                                            .on_freed = on_freed};
    for (int i = 0; i < LOOPBACK_CLIENTS; i++) {
        int pair[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
                         0);
        loopback.sockets[i] = pair[0];
        ck_assert_int_eq(fad_connection_new(&loopback.connections[i], &loopback.service, pair[1],
                                            (uint64_t)i + 1),
                         0);
        TAILQ_INSERT_TAIL(&loopback.list, loopback.connections[i], link);
        fad_connection_admit(loopback.connections[i]);
    }
}

void loopback_hang_up(int client)
{
    if (loopback.sockets[client] >= 0)
        close(loopback.sockets[client]);
    loopback.sockets[client] = -1;
    loopback_turn();
}

/* Everything must go: connections, jobs, regions, memory, handles. */
void loopback_teardown(void)
{
    for (int i = 0; i < LOOPBACK_CLIENTS; i++)
        loopback_hang_up(i);
    while (scripted.held_count > 0) {
        scripted_finish(0);
        loopback_turn();
    }
    ck_assert_int_eq(loopback.freed, LOOPBACK_CLIENTS);
    fad_users_deinit(&loopback.users);
    fad_statistics_deinit(&loopback.statistics);
    fad_account_deinit(&loopback.account);
    fad_engine_deinit(&loopback.engine);
    uv_run(&loopback.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loopback.loop), 0);
}

static size_t pack(uint16_t type, uint64_t id, const ProtobufCMessage *message, size_t payload,
                   uint8_t *bytes, size_t capacity)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    struct fa_frame frame = {
        .type = type, .id = id, .message_length = (uint32_t)length, .payload_length = payload};

    ck_assert_uint_le(FA_FRAME_HEADER_SIZE + length + payload, capacity);
    fa_frame_encode(&frame, bytes);
    protobuf_c_message_pack(message, bytes + FA_FRAME_HEADER_SIZE);
    memset(bytes + FA_FRAME_HEADER_SIZE + length, 0, payload);
    return FA_FRAME_HEADER_SIZE + length + payload;
}

void loopback_send_message(int client, uint16_t type, uint64_t id, const ProtobufCMessage *message,
                           size_t payload)
{
    static uint8_t bytes[1 << 16];
    size_t length = pack(type, id, message, payload, bytes, sizeof bytes);
    ck_assert_int_eq(send(loopback.sockets[client], bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

Fad__Reply *loopback_receive(int client, uint64_t *id)
{
    uint8_t header[FA_FRAME_HEADER_SIZE], bytes[4096];
    struct fa_frame frame;
    struct fa_error error;
    Fad__Reply *reply;

    loopback_turn();
    if (recv(loopback.sockets[client], header, sizeof header, 0) != sizeof header)
        return NULL;
    ck_assert_int_eq(fa_frame_decode(header, 1 << 20, &frame, &error), FA_OK);
    ck_assert_int_eq(recv(loopback.sockets[client], bytes, frame.message_length, 0),
                     (ssize_t)frame.message_length);
    reply = fad__reply__unpack(NULL, frame.message_length, bytes);
    ck_assert_ptr_nonnull(reply);
    for (uint64_t left = frame.payload_length; left > 0;) {
        ssize_t size =
            recv(loopback.sockets[client], bytes, left < sizeof bytes ? left : sizeof bytes, 0);
        ck_assert_int_gt(size, 0);
        left -= (uint64_t)size;
    }
    *id = frame.id;
    return reply;
}

void loopback_expect(int client, uint64_t id, enum fa_status status, const char *field)
{
    uint64_t got = 0;
    Fad__Reply *reply = loopback_receive(client, &got);

    ck_assert_msg(reply != NULL, "no reply, where one to %d was due", (int)id);
    ck_assert_uint_eq(got, id);
    ck_assert_msg((int)reply->status == (int)status, "%s: %s", fa_status_name((int)reply->status),
                  reply->text ? reply->text : "");
    if (field)
        ck_assert_str_eq(reply->field ? reply->field : "", field);
    fad__reply__free_unpacked(reply, NULL);
}

void loopback_expect_nothing(int client)
{
    uint64_t id;
    ck_assert_ptr_null(loopback_receive(client, &id));
}

void loopback_hello(int client)
{
    Fad__Hello message = FAD__HELLO__INIT;
    message.has_protocol_major = true;
    message.protocol_major = FA_PROTOCOL_MAJOR;
    loopback_send_message(client, FA_FRAME_HELLO, 1, &message.base, 0);
    loopback_expect(client, 1, FA_OK, NULL);
}

/* --- Requests -------------------------------------------------------------------------------- */

void forward_init(struct forward *forward, uint32_t rows)
{
    Fad__Tensor **places[FAD_TENSORS] = {&forward->message.q, &forward->message.k,
                                         &forward->message.v, &forward->message.o,
                                         &forward->message.lse};

    memset(forward, 0, sizeof *forward);
    fad__forward__init(&forward->message);
    forward->message.has_batch = forward->message.has_heads = forward->message.has_q_len = true;
    forward->message.has_kv_len = forward->message.has_head_dim = forward->message.has_dtype = true;
    forward->message.batch = forward->message.heads = 1;
    forward->message.q_len = forward->message.kv_len = rows;
    forward->message.head_dim = 8;
    forward->message.dtype = FAD__DTYPE__FLOAT32;
    for (int t = 0; t < FAD_TENSORS; t++) {
        *places[t] = &forward->tensors[t];
        fad__tensor__init(&forward->tensors[t]);
    }
}

void forward_put_inline(struct forward *forward, enum fad_tensor t)
{
    fad__inline_location__init(&forward->inlined[t]);
    forward->tensors[t].inline_bytes = &forward->inlined[t];
    if (t < FAD_O) {
        forward->inlined[t].has_offset = forward->inlined[t].has_length = true;
        forward->inlined[t].offset = forward->payload;
        forward->inlined[t].length = 32 * forward->message.q_len;
        forward->payload += 32 * forward->message.q_len;
    }
}

void forward_put_ipc(struct forward *forward, enum fad_tensor t, uint8_t handle, uint8_t device,
                     uint64_t offset)
{
    Fad__CudaIpcLocation *ipc = &forward->ipc[t];

    fad__cuda_ipc_location__init(ipc);
    memset(forward->handles[t], handle, 64);
    memset(forward->uuids[t], device, 16);
    ipc->has_handle = ipc->has_buffer_id = ipc->has_device_uuid = ipc->has_offset = true;
    ipc->handle = (ProtobufCBinaryData){64, forward->handles[t]};
    ipc->device_uuid = (ProtobufCBinaryData){16, forward->uuids[t]};
    ipc->buffer_id = handle;
    ipc->offset = offset;
    forward->tensors[t].cuda_ipc = ipc;
}

/* All five in one allocation of device 1 (of 1 and 2), 4 KiB apart. */
void forward_put_all_ipc(struct forward *forward, uint8_t device)
{
    for (int t = 0; t < FAD_TENSORS; t++)
        forward_put_ipc(forward, (enum fad_tensor)t, 7, device, 4096u * (unsigned)t);
}

size_t forward_pack(const struct forward *forward, uint64_t id, uint8_t *bytes, size_t capacity)
{
    return pack(FA_FRAME_FORWARD, id, &forward->message.base, forward->payload, bytes, capacity);
}

void loopback_send(int client, uint64_t id, const struct forward *forward)
{
    loopback_send_message(client, FA_FRAME_FORWARD, id, &forward->message.base, forward->payload);
}

void loopback_send_inline(int client, uint64_t id)
{
    struct forward forward;
    forward_init(&forward, 4);
    for (int t = 0; t < FAD_TENSORS; t++)
        forward_put_inline(&forward, (enum fad_tensor)t);
    loopback_send(client, id, &forward);
}

void loopback_send_ipc(int client, uint64_t id)
{
    struct forward forward;
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    loopback_send(client, id, &forward);
}
