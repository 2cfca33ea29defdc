/* internal.h: what the files of libfa share. Nothing here is for users of fa.h.
 *
 * client.c opens, closes and keeps errors; request.c has a request's life; send.c and receive.c
 * move bytes; wait.c waits; call.c makes a call of a request; info.c takes in the hello; tensor.c
 * checks and places a request's tensors, cuda_tensor.c those in device memory; forward.c puts a
 * forward pass together; region.c has regions; stats.c fetches the daemon's statistics; shared.c
 * makes shared memory. */
#ifndef FA_CLIENT_INTERNAL_H
#define FA_CLIENT_INTERNAL_H

#include "client/cuda_memory.h"
#include "client/fa.h"
#include "fad.pb-c.h"
#include "proto/fa_arena.h"
#include "proto/fa_frame.h"

#include <stdarg.h>
#include <sys/queue.h>
#include <sys/uio.h>
#include <sys/un.h>

/* Cut to fit; an absent string is empty. */
#define FA_TAKE_STRING(to, from) snprintf((to), sizeof(to), "%s", (from) ? (from) : "")

/* --- Limits ---------------------------------------------------------------------------------- */

/* Requests of a client that are not taken yet, when another is submitted. */
#define FA_REQUESTS_MAX 16384u
/* Taken ones that are kept for the next. */
#define FA_IDLE_MAX 64u
/* Allocations that were shared by CUDA IPC and whose handles are kept. */
#define FA_EXPORTS_MAX 64u
/* Where those in flight are found by their ids, which count up: a power of two. */
#define FA_BUCKETS 1024u
/* A request's message; the longest is a forward's with all tensors by CUDA IPC: 930. */
#define FA_MESSAGE_MAX 1024u
/* The wire's rule for offsets, whatever the element. */
#define FA_OFFSET_ALIGN 4
/* A request's payload: q pad k pad v. */
#define FA_OUT_MAX 5
/* A reply's: o pad lse. */
#define FA_IN_MAX 3

/* --- A request ------------------------------------------------------------------------------- */

/* Memory still to be sent from or received into. */
struct fa_pieces {
    struct iovec list[1 + FA_OUT_MAX];
    int next, count;
};

void fa_pieces_add(struct fa_pieces *pieces, struct iovec piece);
bool fa_pieces_done(const struct fa_pieces *pieces);
/* Takes away up to size bytes at the front; returns how many. */
size_t fa_pieces_advance(struct fa_pieces *pieces, size_t size);

enum { FA_Q, FA_K, FA_V, FA_O, FA_LSE, FA_TENSORS };

enum fa_request_state {
    FA_REQUEST_QUEUED, /* no byte was sent */
    FA_REQUEST_SENDING,
    FA_REQUEST_SENT,
    FA_REQUEST_DONE, /* error says what it came to */
};

/* Takes in an OK reply, whose payload is there. Answers nonsense with fa_client_refuse_reply. */
typedef void fa_accept(struct fa_client *client, struct fa_request *request,
                       const Fad__Reply *reply);

struct fa_request {
    TAILQ_ENTRY(fa_request) link;      /* in flight, done or idle */
    struct fa_request *next_in_bucket; /* while in flight */
    struct fa_client *client;
    void *user;
    uint64_t id;
    uint16_t type;
    enum fa_request_state state;
    bool refused; /* already, with error, but the frame is not sent to its end yet */
    struct fa_error error;

    struct fa_pieces out;
    int fd;        /* goes with the first byte; then, or when there is none: -1 */
    bool fd_owned; /* the request's own, to be closed; else the user's */

    struct iovec in[FA_IN_MAX]; /* where the payload of an OK reply goes */
    int in_count;
    uint64_t in_bytes; /* their sum: what the payload must have */
    fa_accept *accept; /* may be NULL */
    bool keeps_reply;  /* for fa_call_run */
    const Fad__Reply *reply;

    uint64_t o_bytes; /* of a forward's inline o */
    struct fa_copy copies[FA_TENSORS];
    union {
        struct fa_forward_result forward;
        struct {
            uint64_t id, size;
        } region;
        bool cancel_found;
    } answer;

    uint8_t head[FA_FRAME_HEADER_SIZE + FA_MESSAGE_MAX];
};

TAILQ_HEAD(fa_request_list, fa_request);

/* --- The client ------------------------------------------------------------------------------ */

enum fa_phase { FA_AT_HEADER, FA_AT_MESSAGE, FA_AT_PAYLOAD };

/* The reply that comes in. */
struct fa_reader {
    enum fa_phase phase;
    struct fa_frame frame;
    struct fa_request *request; /* that the frame answers; NULL: a last word to none */
    const Fad__Reply *reply;    /* from FA_AT_PAYLOAD on */
    struct fa_pieces payload;   /* what is missing */
    uint64_t payload_waits;     /* requests in flight whose reply has a payload */
    size_t start, end;          /* bytes not looked at yet */
    uint8_t buffer[FA_FRAME_MESSAGE_MAX + FA_FRAME_HEADER_SIZE];
};

struct fa_region {
    TAILQ_ENTRY(fa_region) link;
    struct fa_client *client;
    uint64_t connection; /* the client's when it was made */
    uint64_t id;
    uint64_t base; /* where in the daemon's region it begins */
    uint64_t size; /* bytes from there */
    bool writable;
    struct fa_cuda_home home; /* of fa_region_register_cuda's; driver NULL: it is another */
};

TAILQ_HEAD(fa_region_list, fa_region);

struct fa_client {
    int fd;                     /* nonblocking; -1 when closed */
    struct sockaddr_un address; /* empty path: none was found */
    uint64_t connection;        /* counts them; regions of earlier ones are lost */
    int timeout_ms;             /* -1: none */
    bool broken;                /* the daemon takes no more bytes: read what it said, then close */
    enum fa_status closed_by;   /* what was returned when the connection was closed */
    struct fa_error fault;      /* what requests in flight then ended with */
    bool untold;                /* there were none: the next call returns it */
    struct fa_error error;
    char error_line[sizeof(struct fa_error) + 32]; /* the same, formatted */
    struct fa_info info;
    struct fa_device *devices; /* what info points to */
    struct fa_version_info *versions;

    uint64_t next_id;
    size_t flying_count, done_count, idle_count;
    struct fa_request_list flying; /* in flight, in the order of their frames */
    struct fa_request *unsent;     /* the first of them that is not sent to its end */
    struct fa_request_list done;   /* in the order in which they got done */
    struct fa_request_list idle;
    struct fa_request *buckets[FA_BUCKETS]; /* in flight, by id */
    struct fa_region_list regions;
    struct fa_cuda_memory exports[FA_EXPORTS_MAX]; /* id 0: none */
    size_t next_export;                            /* the oldest */

    uint8_t gap[FA_PAYLOAD_ALIGN]; /* takes the bytes between a payload's tensors */
    struct fa_reader reader;
    struct fa_arena arena; /* the reply that comes in */
    struct fa_arena kept;  /* fa_call_run's, until the next */
};

/* Keeps the error for fa_last_error and returns status. */
enum fa_status fa_client_fail(struct fa_client *client, enum fa_status status, const char *field,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));
enum fa_status fa_client_keep_error(struct fa_client *client, const struct fa_error *error);

/* fa_error_set with the format's arguments in a list. */
enum fa_status fa_error_set_list(struct fa_error *error, enum fa_status status, const char *field,
                                 const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

/* --- call.c ---------------------------------------------------------------------------------- */

struct fa_call {
    uint16_t type;
    struct iovec message; /* at most FA_MESSAGE_MAX; copied */
    struct iovec payload[FA_OUT_MAX];
    int payload_count;
    int fd; /* travels with the frame; -1: none */
    struct iovec in[FA_IN_MAX];
    int in_count;
    fa_accept *accept;
    int64_t deadline; /* for fa_call_run: see fa_deadline_after */
};

/* Sends the request and waits for its reply. FA_OK: *reply is the daemon's, with status OK and the
 * call's payload received; it lives until the next fa_call_run. Any other return is the daemon's
 * refusal or a fault of the connection, and is kept for fa_last_error; the connection is closed
 * where it cannot go on. */
enum fa_status fa_call_run(struct fa_client *client, const struct fa_call *call,
                           const Fad__Reply **reply);

/* Waits until the request in flight is done. On a timeout it is done too, and the connection
 * closed. */
void fa_request_complete(struct fa_client *client, struct fa_request *request, int64_t deadline);

/* Submits it and does that, in the time that the user gave. */
void fa_request_run(struct fa_client *client, struct fa_request *request);

/* --- request.c ------------------------------------------------------------------------------- */

/* A request that is not in flight yet; NULL, with the error kept, when there can be none. What call
 * points to, but for the message, stays the caller's and is used until the request is done. */
struct fa_request *fa_request_new(struct fa_client *client, const struct fa_call *call);

/* Puts it in flight and sends what the socket takes now. A descriptor that it does not take yet is
 * duplicated: the user's may be closed. */
void fa_request_submit(struct fa_client *client, struct fa_request *request);

/* In flight, by its id, or NULL. */
struct fa_request *fa_request_find(const struct fa_client *client, uint64_t id);

/* Forgets its descriptor, which was sent or never will be. */
void fa_request_drop_fd(struct fa_request *request);

/* In flight -> done. error NULL: it came to FA_OK. */
void fa_request_finish(struct fa_request *request, const struct fa_error *error);

/* Done -> idle or freed. Returns what it came to, and keeps that if it is an error. */
enum fa_status fa_request_take(struct fa_client *client, struct fa_request *request);

/* Frees all of a client's. */
void fa_requests_release(struct fa_client *client);

/* Closes the connection because of a fault of its own: all in flight end with it. */
void fa_client_break(struct fa_client *client, const struct fa_error *fault);
void fa_client_break_with(struct fa_client *client, enum fa_status status, const char *field,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Breaks it with PROTOCOL_ERROR: the reply that comes in makes no sense. */
void fa_client_refuse_reply(struct fa_client *client, const char *field, const char *text);

/* The same for a reply that fa_call_run returned. Keeps the error and returns its status. */
enum fa_status fa_client_distrust(struct fa_client *client, const char *field, const char *text);

/* Closes it after a request or a call ended with because, which costs the connection: what else is
 * in flight ends with FA_DISCONNECTED. */
void fa_client_disconnect(struct fa_client *client, enum fa_status because);

/* Keeps the error of a call on a closed connection and returns its status: FA_DISCONNECTED, or the
 * fault that no call has told yet. */
enum fa_status fa_client_tell_closed(struct fa_client *client);

/* --- send.c, receive.c, wait.c --------------------------------------------------------------- */

/* Sends what the socket takes now. A request that cannot be sent ends alone, unless its frame has
 * begun. Closes the connection when that takes no more at all. */
void fa_send(struct fa_client *client);

/* Receives what the socket has; the connection is closed when that, or its end, is a fault. */
void fa_receive(struct fa_client *client);

/* Forgets what came in, for a new connection. */
void fa_receive_init(struct fa_client *client);

/* A moment on CLOCK_MONOTONIC in nanoseconds; FA_NEVER is none. */
#define FA_NEVER INT64_MAX
int64_t fa_deadline_after(int milliseconds);
/* Milliseconds until then, rounded up, for poll(): 0 when it has passed, -1 for FA_NEVER. */
int fa_deadline_left(int64_t deadline);

/* Sends and receives until the request is done, or, where it is NULL, any. False: the deadline has
 * passed. One of them must be in flight or done. */
bool fa_await(struct fa_client *client, const struct fa_request *request, int64_t deadline);

/* --- info.c ---------------------------------------------------------------------------------- */

/* Copies a hello into client->info, in place of what was there. PROTOCOL_MISMATCH for another major
 * version. */
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

    Fad__Tensor message;
    Fad__InlineLocation inline_bytes;
    Fad__MemfdLocation memfd;
    Fad__RegionLocation region;
    Fad__CudaIpcLocation cuda_ipc;
    struct fa_cuda_memory memory; /* of FA_CUDA_IPC */
    struct fa_cuda_home home;     /* of FA_CUDA_COPY; driver NULL: it is in host memory */
};

/* True when it is meant to be there. */
bool fa_tensor_present(const struct fa_tensor *tensor);

/* Checks a tensor and fills in the rest of *placed, whose name, tensor, extents, element and output
 * are set. *shared is the shared memory of the request so far, NULL for none. */
enum fa_status fa_tensor_place(struct fa_client *client, struct fa_placed *placed,
                               const struct fa_shared **shared);

/* True when the tensor's bytes go through the socket. */
bool fa_tensor_is_inline(const struct fa_placed *placed);

/* Bytes that an inline tensor has on the wire. */
uint64_t fa_tensor_wire_bytes(const struct fa_placed *placed);

/* Makes *out the memory that an inline tensor is sent from or received into: the user's own where
 * the host can reach it and it has the wire's form, else a packed copy, for an input filled. */
enum fa_status fa_tensor_buffer(struct fa_client *client, const struct fa_placed *placed,
                                struct fa_copy *copy, struct iovec *out);

/* Copies a received output to its place, if it was received into a copy. Only to device memory can
 * that fail. */
enum fa_status fa_copy_scatter(const struct fa_copy *copy, struct fa_error *error);

/* Frees it. */
void fa_copy_release(struct fa_copy *copy);

/* --- cuda_tensor.c --------------------------------------------------------------------------- */

/* Finds the allocation that a pointer points into, which the daemon must be able to open. A refusal
 * is of that field. */
enum fa_status fa_cuda_share(struct fa_client *client, const void *pointer, const char *field,
                             struct fa_cuda_memory *out);

/* What of a CUDA IPC location names an allocation; *location points to *memory. */
void fa_cuda_locate(struct fa_cuda_memory *memory, Fad__CudaIpcLocation *location);

/* fa_tensor_place's part for one in device memory that has elements. */
enum fa_status fa_cuda_place(struct fa_client *client, struct fa_placed *placed);

/* Makes the request, whose tensors are placed, wait for the event: the daemon for those that it
 * gets by CUDA IPC or has in a region of it, this call for those that are copied. *handle is what
 * the message points to. */
enum fa_status fa_cuda_place_event(struct fa_client *client, struct fa_placed tensors[FA_TENSORS],
                                   void *event, struct fa_cuda_handle *handle);

/* --- region.c -------------------------------------------------------------------------------- */

/* Refuses a region of another client, or one that is lost, as a fault of this field. */
enum fa_status fa_region_check(struct fa_client *client, const struct fa_region *region,
                               const char *field);

/* Frees all of a client's. */
void fa_regions_release(struct fa_client *client);

#endif
