/* internal.h: what the files of libfa share. Nothing here is for users of fa.h.
 *
 * client.c opens, closes and keeps errors; io.c moves one request and its reply; info.c takes in
 * the hello; tensor.c checks and places a request's tensors; forward.c puts a forward pass
 * together; shared.c makes shared memory. */
#ifndef FA_CLIENT_INTERNAL_H
#define FA_CLIENT_INTERNAL_H

#include "client/fa.h"
#include "fad.pb-c.h"
#include "proto/fa_arena.h"
#include "proto/fa_frame.h"

#include <sys/uio.h>

struct fa_client {
    int fd;                   /* nonblocking; -1 when closed */
    enum fa_status closed_by; /* what the call returned that closed it */
    int timeout_ms;           /* -1: none */
    uint64_t next_id;
    struct fa_error error;
    char error_line[sizeof(struct fa_error) + 32]; /* the same, formatted */
    struct fa_info info;
    struct fa_device *devices; /* what info points to */
    struct fa_version_info *versions;
    struct fa_arena arena;                 /* the last reply, until the next call */
    uint8_t message[FA_FRAME_MESSAGE_MAX]; /* the last reply's bytes */
};

/* Keeps the error for fa_last_error and returns status. */
enum fa_status fa_client_fail(struct fa_client *client, enum fa_status status, const char *field,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Cut to fit; an absent string is empty. */
#define FA_TAKE_STRING(to, from) snprintf((to), sizeof(to), "%s", (from) ? (from) : "")

/* --- io.c: one request and its reply --------------------------------------------------------- */

/* header | message | q pad k pad v */
#define FA_CALL_OUT_MAX 7
/* o pad lse */
#define FA_CALL_IN_MAX 3

/* A moment on CLOCK_MONOTONIC in nanoseconds; FA_NEVER is none. */
#define FA_NEVER INT64_MAX
int64_t fa_deadline_after(int milliseconds);
/* Milliseconds until then, rounded up, for poll(): 0 when it has passed, -1 for FA_NEVER. */
int fa_deadline_left(int64_t deadline);

struct fa_call {
    uint16_t type;
    struct iovec message;
    struct iovec payload[FA_CALL_OUT_MAX - 2]; /* sent as it lies there */
    int payload_count;
    int fd; /* travels with the frame; -1: none */
    struct iovec
        in[FA_CALL_IN_MAX]; /* where the payload of an OK reply goes; its length is exact */
    int in_count;
    int64_t deadline;
};

/* Sends the request and waits for its reply, reading while it writes. FA_OK: *reply is the
 * daemon's, with status OK and the call's payload received; it lives until the next call. Any other
 * return is the daemon's refusal or a fault of the connection, and is kept for fa_last_error; the
 * connection is closed where it cannot go on. */
enum fa_status fa_call_run(struct fa_client *client, const struct fa_call *call,
                           const Fad__Reply **reply);

/* Closes the connection; later calls name because as the reason. */
void fa_client_disconnect(struct fa_client *client, enum fa_status because);

/* Fails with PROTOCOL_ERROR and closes: the daemon's reply makes no sense. */
enum fa_status fa_client_distrust(struct fa_client *client, const char *field, const char *text);

/* --- info.c ---------------------------------------------------------------------------------- */

/* Copies a hello into client->info. PROTOCOL_MISMATCH for another major version. */
enum fa_status fa_info_take(struct fa_client *client, const Fad__HelloReply *hello);

/* --- tensor.c -------------------------------------------------------------------------------- */

/* One tensor of a request: the user's, what it comes to in bytes, and its place on the wire. */
struct fa_placed {
    const char *name; /* its field: "q" */
    const struct fa_tensor *tensor;
    struct fa_extents extents;
    struct fa_strides strides; /* given, or packed */
    size_t element;            /* bytes of one */
    bool output;
    bool present;
    uint64_t span_bytes;   /* from its first element to its last */
    uint64_t packed_bytes; /* without gaps */
    void *scratch;         /* packed copy of an input with gaps, or of an output to be scattered */

    Fad__Tensor message;
    Fad__InlineLocation inline_bytes;
    Fad__MemfdLocation memfd;
};

/* Checks a tensor and fills in the rest of *placed, whose name, tensor, extents, element and output
 * are set. *shared is the shared memory of the request so far, NULL for none. */
enum fa_status fa_tensor_place(struct fa_client *client, struct fa_placed *placed,
                               const struct fa_shared **shared);

/* True when the tensor's bytes go through the socket. */
bool fa_tensor_is_inline(const struct fa_placed *placed);

/* Bytes that an inline tensor has on the wire. */
uint64_t fa_tensor_wire_bytes(const struct fa_placed *placed);

/* Makes *out the memory that an inline tensor is sent from or received into: the user's own where
 * it has the wire's form, else scratch, which for an input is filled. */
enum fa_status fa_tensor_buffer(struct fa_client *client, struct fa_placed *placed,
                                struct iovec *out);

/* Copies a received output from scratch to its place, if it went there. */
void fa_tensor_scatter(const struct fa_placed *placed);

/* Frees scratch. */
void fa_tensor_release(struct fa_placed *placed);

#endif
