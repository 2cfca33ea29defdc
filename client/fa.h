/* fa.h: libfa, a client of the fad attention daemon. Link with libfa.a and -lprotobuf-c; no CUDA is
 * needed.
 *
 * A client is one connection. It may be used from any thread, by one at a time. Nothing here raises
 * a signal, prints, or exits. Every call that can fail returns an enum fa_status, and
 * fa_last_error() then tells in words what was wrong and which field was at fault. README.md has an
 * example.
 *
 * Shapes, with B = batch, H = heads, G = kv_heads, M = q_len, N = kv_len, D = head_dim:
 *     q [B, H, M, D]   k, v [B, G, N, D]   o [B, H, M, D]   lse [B, H, M]
 * o = softmax(scale * q k^T + mask) v; lse is the natural logarithm of the softmax's
 * denominator. */
#ifndef FA_H
#define FA_H

#include "proto/fa_status.h"
#include "proto/fa_types.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fa_client;

/* Connects and says hello. socket_path NULL: $FAD_SOCKET, else /run/fad/fad.sock, else
 * $XDG_RUNTIME_DIR/fad/fad.sock. On success *out is the client, to be closed with fa_client_close.
 * On failure *out is NULL, or, when there was memory for it, a client that is good only for
 * fa_last_error and fa_client_close.
 * FA_UNAVAILABLE: no daemon there; FA_PROTOCOL_MISMATCH; FA_TIMEOUT: no answer in 10 s;
 * FA_INVALID_ARGUMENT: the path is empty or longer than a socket's may be. */
enum fa_status fa_client_open(struct fa_client **out, const char *socket_path);

/* Closes the connection; the daemon drops what was in flight. NULL is legal. */
void fa_client_close(struct fa_client *client);

/* The last failed call's error on this client, "STATUS: field: text". Never NULL; valid until the
 * next call on the client. A call that succeeds leaves it as it is. client NULL: the text for
 * running out of memory. */
const char *fa_last_error(const struct fa_client *client);

/* The same in parts: status FA_OK when no call has failed yet. Valid as long as the client. */
const struct fa_error *fa_last_error_record(const struct fa_client *client);

/* How long a call may take, in milliseconds; -1 (at first): as long as it takes. A call that ran
 * into it returns FA_TIMEOUT and leaves the connection closed: later calls return
 * FA_DISCONNECTED. */
void fa_client_set_timeout(struct fa_client *client, int milliseconds);

/* --- Memory ---------------------------------------------------------------------------------- */

/* Memory shared with the daemon: a sealed memfd, mapped read-write and zeroed. Tensors in it are
 * not copied. Any number of tensors may lie in one; a forward pass can use one of these (and any
 * number of inline tensors). Not bound to a client. */
struct fa_shared {
    void *data;
    size_t size; /* bytes */
    int fd;
};

/* Makes one of size bytes (> 0). There is no client to keep an error: the status is all there is.
 * FA_INVALID_ARGUMENT: out is NULL or size 0; FA_RESOURCE_EXHAUSTED: the system gives no memory,
 * and errno says why. */
enum fa_status fa_shared_create(struct fa_shared *out, size_t size);

/* Unmaps and closes. Legal on a zeroed struct, and while the daemon still works on it. */
void fa_shared_destroy(struct fa_shared *shared);

/* A tensor: where its elements are and how they are strided. data NULL: absent, whatever the rest
 * is.
 *
 * data is its first element, in this process's memory; inputs are only read. A tensor without
 * elements (an extent is 0) may have any pointer but NULL.
 *
 * shared NULL: sent and received over the socket ("inline"). Else data points into that memory, at
 * a multiple of 4 bytes from its start, and the daemon works on it in place.
 *
 * strides NULL: packed. Those of outputs must nest (fa_strides_nest). */
struct fa_tensor {
    void *data;
    const struct fa_shared *shared;
    const struct fa_strides *strides;
};

/* --- Requests -------------------------------------------------------------------------------- */

struct fa_forward_args {
    uint32_t batch;
    uint32_t heads;
    uint32_t kv_heads; /* 0: as heads */
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t head_dim;
    enum fa_dtype dtype; /* 0: FA_DTYPE_FLOAT32 */
    enum fa_mask mask;
    const double *scale; /* NULL: 1 / sqrt(head_dim) */
    const char *version; /* NULL: "auto" */
    struct fa_tensor q, k, v, o;
    struct fa_tensor lse; /* absent (data NULL): not wanted */
};

struct fa_forward_result {
    char version[16]; /* that ran */
    char kernel[32];  /* that ran; equal names give equal bits */
    char device[64];
    bool redirected; /* not the version asked for, because of: */
    char redirect_reason[128];
    uint64_t queue_us;    /* from all data being there to the first range's start */
    uint64_t transfer_us; /* reading the payload, moving data to and from the device */
    uint64_t kernel_us;   /* of its ranges: their sum, divided by the streams that took part */
    uint64_t total_us;    /* in the daemon, from the frame's header to the reply */
};

/* Computes one forward pass and waits for it. result may be NULL. On any other return than FA_OK
 * the outputs' contents are undefined. FA_INVALID_ARGUMENT: fa_last_error names the field;
 * when that is "data", an inline tensor's memory could not be read or written, which shows only on
 * the way, so the connection is closed and later calls return FA_DISCONNECTED. The daemon never
 * retries, and neither does this call. An output may be an inline input's memory. */
enum fa_status fa_forward(struct fa_client *client, const struct fa_forward_args *args,
                          struct fa_forward_result *result);

/* A round trip to the daemon's loop and back. */
enum fa_status fa_ping(struct fa_client *client);

/* --- What the daemon is ---------------------------------------------------------------------- */

struct fa_device {
    char name[64];
    uint8_t uuid[16];
    uint64_t memory_bytes;
    uint32_t streams;
};

struct fa_version_info {
    char name[16];
    char title[64];
    char kernel[32];
};

/* What the daemon said of itself in its hello; all zeroes if it never did. Lives as long as the
 * client. */
struct fa_info {
    uint32_t protocol_major;
    uint32_t protocol_minor;
    char daemon_version[32];
    char backend[16];
    char transports[64]; /* names separated by a space: "inline memfd" */
    const struct fa_device *devices;
    size_t device_count;
    const struct fa_version_info *versions;
    size_t version_count;
    uint64_t message_bytes; /* limits, see fad.proto */
    uint64_t payload_bytes;
    uint32_t jobs;
    uint64_t staged_bytes;
    uint64_t mapped_bytes;
};

const struct fa_info *fa_client_info(const struct fa_client *client);

#ifdef __cplusplus
}
#endif

#endif
