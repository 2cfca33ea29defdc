/* fake_daemon.h: a thread that plays the daemon for libfa, as a script of the test's says.
 *
 * It shares none of the daemon's code: what libfa sends is read as plain bytes, what it gets can be
 * anything. Assertions hold in the thread too (Check forks, so a failed one ends the test). */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include "client/fa.h"
#include "fad.pb-c.h"
#include "proto/fa_frame.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_daemon;

/* Serves one connection, which is closed when it returns. round counts them from 0. */
typedef void fake_script(struct fake_daemon *fake, int fd, int round);

struct fake_daemon {
    char directory[64];
    char path[80];
    int listen_fd;
    int descriptors; /* of this process before the start */
    int rounds;      /* connections to serve */
    fake_script *script;
    void *data; /* the script's */
    pthread_t thread;
};

/* Listens at fake->path and serves rounds connections. */
void fake_start(struct fake_daemon *fake, fake_script *script, void *data, int rounds);

/* Listens again at fake->path, when its listening socket is closed. */
void fake_listen(struct fake_daemon *fake);

/* Serves rounds more, when those of fake_start are served and their thread is joined. */
void fake_serve(struct fake_daemon *fake, int rounds);

/* Waits for the script's end. Fails the test if the process has more descriptors open than before
 * fake_start. */
void fake_stop(struct fake_daemon *fake);

/* Opens a client on it. */
struct fa_client *fake_open(const struct fake_daemon *fake);

/* That every call says that the connection is closed, and by what. */
void fake_check_closed(struct fa_client *client, enum fa_status by);

/* A request as it came. */
struct fake_frame {
    uint8_t header[FA_FRAME_HEADER_SIZE];
    struct fa_frame frame;
    uint8_t *message;
    uint8_t *payload;
    int fd; /* that came with the header's first byte, or -1 */
};

/* Reads header and message; payload is NULL. False when the client closed instead. */
bool fake_read_head(int fd, struct fake_frame *out);
void fake_read_payload(int fd, struct fake_frame *frame);
/* Both. */
bool fake_read(int fd, struct fake_frame *out);
void fake_frame_release(struct fake_frame *frame);

/* Sends all, or less when the client has gone. */
void fake_send(int fd, const void *bytes, size_t size);

/* Bytes of a reply frame, malloc'ed. payload may be NULL: zeroes. */
uint8_t *fake_reply_bytes(uint16_t type, uint64_t id, const Fad__Reply *reply, const void *payload,
                          size_t payload_size, size_t *size);

/* A constant string as protobuf-c's structs want it; it only reads it. */
#define FAKE_TEXT(text) ((char *)(uintptr_t)(text))

/* Answers a request. fake_answer says OK and no more than it must. */
void fake_answer(int fd, const struct fake_frame *to, const void *payload, size_t payload_size);
void fake_reply(int fd, const struct fake_frame *to, const Fad__Reply *reply, const void *payload,
                size_t payload_size);
void fake_refuse(int fd, const struct fake_frame *to, int status, const char *field,
                 const char *text);

/* A small problem: q and o [2,2,3,3], k and v [2,1,5,3], lse [2,2,3], all inline, with the payloads
 * that follow from it, padding included. The outputs are poisoned with -1. */
struct fake_problem {
    float q[36], k[30], v[30], o[36], lse[12];
    double scale;
    struct fa_forward_args args;
};
#define FAKE_REQUEST_PAYLOAD 440u /* q at 0, k at 192, v at 320 */
#define FAKE_REPLY_PAYLOAD   240u /* o at 0, lse at 192 */
void fake_problem_init(struct fake_problem *problem);

/* The bytes of an OK for it, whose o counts up from 1000 and lse from 2000; 0xee between them. */
uint8_t *fake_problem_reply(uint64_t id, size_t *size);
void fake_answer_problem(int fd, const struct fake_frame *to);

/* That the outputs have that. */
void fake_problem_check(const struct fake_problem *problem);

/* A forward's message, to be freed by fad__forward__free_unpacked. */
Fad__Forward *fake_unpack_forward(const struct fake_frame *frame);

/* That it is packed and inline, an input at this place of the payload. */
void fake_check_input(const Fad__Tensor *tensor, uint64_t offset, uint64_t length);
void fake_check_output(const Fad__Tensor *tensor);

/* Reads the hello and answers it as a daemon with two devices, v0 and v4, and these limits. */
#define FAKE_PAYLOAD_LIMIT ((uint64_t)96 << 20)
void fake_hello(int fd);

/* The same after change has been at it. */
typedef void fake_hello_change(Fad__HelloReply *hello, const void *data);
void fake_hello_as(int fd, fake_hello_change *change, const void *data);

#endif
