/* loopback.h: two connections served by the scripted backend, all on one thread: the test writes to
 * its ends of two socket pairs and turns the loop itself. */
#ifndef LOOPBACK_H
#define LOOPBACK_H

#include "daemon/connection/connection.h"
#include "daemon/connection/job.h"
#include "tests/helpers/scripted.h"

#define LOOPBACK_CLIENTS 2

struct loopback {
    uv_loop_t loop;
    struct fad_engine engine;
    struct fad_account account;
    struct fad_users users;
    struct fad_statistics statistics;
    struct fad_service service;
    struct fad_connections list;
    struct fad_connection *connections[LOOPBACK_CLIENTS]; /* NULL once closing */
    int sockets[LOOPBACK_CLIENTS];                        /* the test's ends */
    int freed;                                            /* connections */
    int fatal;                                            /* what the backend told the engine */
};

extern struct loopback loopback;

/* A Check fixture. Teardown hangs up, finishes what is held, and asserts that nothing stays. */
void loopback_setup(void);
void loopback_teardown(void);

/* The loop turns until it has had time for every event that is ready. */
void loopback_turn(void);

void loopback_hang_up(int client);

/* Says hello and takes the reply. */
void loopback_hello(int client);

/* Takes the next reply and asserts what it says. field NULL: any. */
void loopback_expect(int client, uint64_t id, enum fa_status status, const char *field);
void loopback_expect_nothing(int client);

/* Sends any message; the payload is zeroes. */
void loopback_send_message(int client, uint16_t type, uint64_t id, const ProtobufCMessage *message,
                           size_t payload);

/* The next reply's message, to be freed by fad__reply__free_unpacked; its payload is read. NULL
 * when there is none. */
Fad__Reply *loopback_receive(int client, uint64_t *id);

/* A forward of (1, 1, rows, 8) whose five tensors are where a test puts them. */
struct forward {
    Fad__Forward message;
    Fad__Tensor tensors[FAD_TENSORS];
    Fad__CudaIpcLocation ipc[FAD_TENSORS];
    Fad__InlineLocation inlined[FAD_TENSORS];
    uint8_t handles[FAD_TENSORS][64], uuids[FAD_TENSORS][16];
    size_t payload; /* bytes */
};

void forward_init(struct forward *forward, uint32_t rows);
void forward_put_inline(struct forward *forward, enum fad_tensor t);

/* In the allocation of the handle (64 times that byte) on the device (16 times that byte: 1 or
 * 2). */
void forward_put_ipc(struct forward *forward, enum fad_tensor t, uint8_t handle, uint8_t device,
                     uint64_t offset);

/* All five in one allocation (handle 7) of the device, 4 KiB apart. */
void forward_put_all_ipc(struct forward *forward, uint8_t device);

/* Packs it, with a payload of zeroes, into bytes. Returns the size. */
size_t forward_pack(const struct forward *forward, uint64_t id, uint8_t *bytes, size_t capacity);

void loopback_send(int client, uint64_t id, const struct forward *forward);
void loopback_send_inline(int client, uint64_t id);
void loopback_send_ipc(int client, uint64_t id);

#endif
