/* fa.h: libfa, a client of the fad attention daemon. Link with libfa.a and -lprotobuf-c. No CUDA
 * is needed: with tensors in device memory libfa loads the driver, libcuda.so.1, at run time.
 * fa_cuda.h has device memory for programs without the CUDA toolkit.
 *
 * A client is one connection. Nothing here raises a signal, prints, or exits. Every call that can
 * fail returns an enum fa_status, and fa_last_error() then tells in words what was wrong and which
 * field was at fault. README.md has an example.
 *
 * Threads: libfa has no locks and starts no threads. A client, with its requests and regions, may
 * be used from any thread, by one at a time; different clients are independent. A struct fa_shared
 * may be used by several clients at once. A signal does not end a wait.
 *
 * There are two ways to use it, which mix freely. Calls that wait: fa_forward, fa_ping and the
 * calls on regions return when the daemon has answered. And requests in flight: fa_forward_submit
 * returns at once; fa_wait waits for one request and takes it, fa_next waits for whichever is done
 * first. Programs with an event loop of their own wait for fa_client_fd, call fa_client_process,
 * and find what is done with fa_done. The first way is a thin layer on the second, so a call that
 * waits also moves what else is in flight.
 *
 * Shapes, with B = batch, H = heads, G = kv_heads, M = q_len, N = kv_len, D = head_dim:
 *     q [B, H, M, D]   k, v [B, G, N, D]   o [B, H, M, D]   lse [B, H, M]
 * o = softmax(scale * q k^T + mask) v; lse is the natural logarithm of its denominator. */
#ifndef FA_H
#define FA_H

#include "proto/fa_status.h"
#include "proto/fa_types.h"

#include <stdbool.h>
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

/* Closes the connection; the daemon drops what was in flight. Requests not yet taken by fa_wait are
 * freed, and so are its regions: no pointer to either may be used any more. NULL is legal. */
void fa_client_close(struct fa_client *client);

/* Connects again, to the same socket, after the connection was lost or closed by an error (every
 * call then returns FA_DISCONNECTED); closes it first when it is open. What was in flight ends with
 * FA_DISCONNECTED, to be taken as ever: nothing is ever sent twice by libfa. Regions made before
 * are lost: using one fails with FA_REGION_LOST, and it is still to be released. Returns as
 * fa_client_open does; the client stays usable for trying again. */
enum fa_status fa_client_reconnect(struct fa_client *client);

/* The last failed call's error on this client, "STATUS: field: text". Never NULL; valid until the
 * next call on the client. A call that succeeds leaves it as it is. client NULL: the text for
 * running out of memory. */
const char *fa_last_error(const struct fa_client *client);

/* The same in parts: status FA_OK when no call has failed yet. Valid as long as the client. */
const struct fa_error *fa_last_error_record(const struct fa_client *client);

/* How long a call may wait, in milliseconds; -1 (at first): as long as it takes. A call that ran
 * into it returns FA_TIMEOUT. fa_wait and fa_next leave all as it is; any other call leaves the
 * connection closed, since its request cannot be taken back: what else is in flight ends with
 * FA_DISCONNECTED, and later calls return it. */
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

/* Unmaps and closes. Legal on a zeroed struct, and at any time but while a call uses it: what was
 * submitted before works on the same memory to its end, sent or not, and only its outputs there are
 * out of reach. */
void fa_shared_destroy(struct fa_shared *shared);

/* Memory that outlives a request: the daemon's own, or a fa_shared registered once instead of with
 * every request. Tensors in a region are not copied; any number of regions may be used by one
 * request. A region is its client's and ends with it. */
struct fa_region;

/* Zeroed memory of the daemon's, of size bytes (> 0), on the device with this UUID (16 bytes, as in
 * fa_device; FA_NOT_FOUND: none) or, for NULL, on its least loaded one, a client's later ones on
 * the same. *out is to be released; NULL on failure. FA_RESOURCE_EXHAUSTED: a limit. */
enum fa_status fa_region_alloc(struct fa_client *client, struct fa_region **out, uint64_t size,
                               const uint8_t *uuid);

/* Registers shared memory. writable: outputs may lie in it. *shared may be destroyed meanwhile; the
 * region keeps the memory. */
enum fa_status fa_region_register(struct fa_client *client, struct fa_region **out,
                                  const struct fa_shared *shared, bool writable);

/* Registers device memory as FA_CUDA_IPC tensors use it (below): the region is what lies between
 * pointer, a multiple of 4, and its allocation's end. The daemon maps the whole allocation and
 * keeps its memory until the region is released, also when it is freed here. Refused as those
 * tensors are, with the field "pointer". */
enum fa_status fa_region_register_cuda(struct fa_client *client, struct fa_region **out,
                                       const void *pointer, bool writable);

/* Copies between this process's memory and [offset, offset + size) of a region, in as many requests
 * as its size needs. FA_INVALID_ARGUMENT names the field: outside the region, or not writable. Not
 * ordered with requests in flight: take those first that use these bytes. */
enum fa_status fa_region_write(struct fa_client *client, const struct fa_region *region,
                               uint64_t offset, const void *data, uint64_t size);
enum fa_status fa_region_read(struct fa_client *client, const struct fa_region *region,
                              uint64_t offset, void *data, uint64_t size);

/* Gives it back; the pointer is invalid afterwards, whatever is returned. Returns when the daemon
 * has freed the memory, which it does after the last request in flight that uses it. On a closed
 * connection, whose end frees it too: FA_DISCONNECTED; once connected again: FA_OK. NULL is
 * legal. */
enum fa_status fa_region_release(struct fa_client *client, struct fa_region *region);

/* Its bytes. */
uint64_t fa_region_size(const struct fa_region *region);

/* Whether data is a pointer to device memory of this process, on a device that its CUDA driver has,
 * at any place in an allocation. A pointer that is not: FA_INVALID_ARGUMENT; no driver:
 * FA_UNAVAILABLE, and the connection stays open. */
enum fa_cuda {
    FA_CUDA_NO = 0, /* host memory */
    /* Shared with the daemon by CUDA IPC, which works on it in place: memory of cudaMalloc, at a
     * multiple of 4 bytes from its allocation's start, on a device that the daemon serves. Other
     * kinds (cudaMallocAsync, cudaMallocManaged, virtual memory management) and other devices:
     * FA_IPC_REFUSED, and so is all when fa_info.transports has no "cuda-ipc". The daemon keeps
     * the allocation mapped for some seconds after its last use: freed here, it is free then. */
    FA_CUDA_IPC = 1,
    /* Any device memory, and any daemon: copied through host memory, as an inline tensor. The
     * copies wait, on the default stream: of an input in the call that submits it, of an output in
     * the call that receives the answer, which in an event loop is fa_client_process. */
    FA_CUDA_COPY = 2,
};

/* A tensor: where its elements are and how they are strided. data and region NULL: absent, whatever
 * the rest is.
 *
 * region NULL: data is its first element, in this process's memory; inputs are only read. A tensor
 * without elements (an extent is 0) may have any pointer but NULL. Where shared is NULL too, and
 * cuda FA_CUDA_NO, it is sent and received over the socket ("inline"), one with gaps through a
 * packed copy: of an input when it is submitted, of an output when it is answered. With shared,
 * data points into that memory, at a multiple of 4 bytes from its start, and the daemon works on
 * it in place.
 *
 * region: its first element lies region_offset bytes into the region, a multiple of 4; data and
 * shared must be NULL, and cuda FA_CUDA_NO.
 *
 * strides NULL: packed. Those of outputs must nest (fa_strides_nest). */
struct fa_tensor {
    void *data;
    const struct fa_shared *shared;
    const struct fa_strides *strides;
    const struct fa_region *region;
    uint64_t region_offset;
    enum fa_cuda cuda; /* not with shared */
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
    const double *scale;       /* NULL: 1 / sqrt(head_dim) */
    const char *version;       /* NULL: "auto" */
    enum fa_priority priority; /* 0: FA_PRIORITY_NORMAL */
    uint64_t deadline_us;      /* after the daemon has all of the request; 0: none. Passed:
                             FA_DEADLINE_EXCEEDED */
    struct fa_tensor q, k, v, o;
    struct fa_tensor lse; /* absent (data NULL): not wanted */
    /* NULL: the inputs in device memory are ready now. Else a cudaEvent_t (or CUevent) made with
     * cudaEventInterprocess and cudaEventDisableTiming, recorded after the work that fills them:
     * the daemon reads and writes nothing before it has happened (after 10 s: FA_EVENT_TIMEOUT);
     * for FA_CUDA_COPY tensors the call that submits waits. Only with such tensors, or registered
     * device memory. It must live, and not be recorded again, until the request is done. */
    void *cuda_event;
};

struct fa_forward_result {
    char version[16]; /* that ran */
    char kernel[32];  /* that ran; equal names give equal bits */
    char device[64];
    bool redirected; /* not the version asked for, because of: */
    char redirect_reason[128];
    uint64_t queue_us;    /* from all data being there to the first range's start; events, too */
    uint64_t transfer_us; /* reading the payload, moving data to and from the device */
    uint64_t kernel_us;   /* while any of its ranges ran; on the CPU their sum, divided by the
                             workers that took part */
    uint64_t total_us;    /* in the daemon, from the frame's header to the reply */
};

/* Computes one forward pass and waits for it. result may be NULL. On any other return than FA_OK
 * the outputs' contents are undefined; after FA_TIMEOUT and FA_DISCONNECTED the daemon may go on
 * writing those in a fa_shared for a moment, so use that memory for nothing else (it may be
 * destroyed). The daemon never retries, and neither does this call. An output may be an inline
 * input's memory.
 * FA_INVALID_ARGUMENT: fa_last_error names the field. Some faults show only on the way. "shared":
 * the descriptor is not open. "data": an inline tensor's memory could not be read or written (with
 * gaps, where it is copied, that is a SIGSEGV instead); this, and FA_RESOURCE_EXHAUSTED for lack of
 * the system's memory, closes the connection if a part of the request was sent or of its answer
 * received, and costs nothing else if not. */
enum fa_status fa_forward(struct fa_client *client, const struct fa_forward_args *args,
                          struct fa_forward_result *result);

/* A round trip to the daemon's loop and back. */
enum fa_status fa_ping(struct fa_client *client);

/* --- Requests in flight ---------------------------------------------------------------------- */

/* A forward pass that was submitted and not yet taken. */
struct fa_request;

/* Starts a forward pass: checks *args, and sends what the socket takes now. *args, its scale,
 * version and strides are copied; inline tensors must stay as they are until the request is done. A
 * fa_shared may be destroyed, and regions released, before. On FA_OK *out (which may be NULL) is
 * the request, to be taken once by fa_wait; a fault that shows while it is sent is told there. Any
 * other return is as fa_forward's, and nothing is in flight. At most fa_info.jobs requests are
 * useful at once: the daemon refuses more. With 16384 that are not taken libfa submits no more:
 * FA_RESOURCE_EXHAUSTED. Calls that wait always may. */
enum fa_status fa_forward_submit(struct fa_client *client, const struct fa_forward_args *args,
                                 struct fa_request **out);

/* A pointer of the caller's, kept with the request; NULL at first. */
void fa_request_set_user(struct fa_request *request, void *user);
void *fa_request_user(const struct fa_request *request);

/* True when it is done: fa_wait then takes it without waiting. */
bool fa_request_done(const struct fa_request *request);

/* Waits for the request and takes it: the pointer is invalid afterwards. Returns what the request
 * came to, as fa_forward does; result may be NULL. Only FA_TIMEOUT (of fa_client_set_timeout)
 * leaves the request in flight. */
enum fa_status fa_wait(struct fa_client *client, struct fa_request *request,
                       struct fa_forward_result *result);

/* Waits until any request is done and not taken, and tells the first that got so. It stays so until
 * fa_wait takes it: another fa_next returns the same. FA_NOT_FOUND: nothing is in flight or done.
 * FA_TIMEOUT as for fa_wait. Any other fault of the connection ends the requests, and shows when
 * they are taken. */
enum fa_status fa_next(struct fa_client *client, struct fa_request **out);

/* The same without waiting, or a look at the socket: NULL when none is done. */
struct fa_request *fa_done(const struct fa_client *client);

/* Asks the daemon to drop a request, and waits for the answer: FA_OK: it will end with FA_CANCELLED
 * within about a millisecond of work, on a GPU when the ranges under way end (or as it would have,
 * if it just got done); FA_NOT_FOUND: it has already ended. It is still to be taken. */
enum fa_status fa_cancel(struct fa_client *client, struct fa_request *request);

/* For an event loop: the descriptor to wait for, -1 when the connection is closed, and the events
 * to wait for now: a set of POLLIN and POLLOUT. Both may change with every call on the client. Any
 * call on the client may get requests done, which then are nothing to wait for: before waiting for
 * the descriptor, take all that fa_done tells.
 *
 * fa_forward, fa_ping, fa_cancel, fa_stats, fa_client_reconnect and the calls on regions wait, and
 * the loop with them: mostly for a round trip, but as long as it takes without
 * fa_client_set_timeout; and with it, FA_TIMEOUT in one of them closes the connection. */
int fa_client_fd(const struct fa_client *client);
short fa_client_events(const struct fa_client *client);

/* Sends and receives what the socket takes and has, without waiting; fa_done then tells what is
 * done. Returns FA_OK, or the fault that closed the connection; every request in flight has then
 * ended with it. */
enum fa_status fa_client_process(struct fa_client *client);

/* --- Statistics ------------------------------------------------------------------------------ */

/* Of a set of times, in microseconds; all 0 when there are none. Percentiles are of a log-linear
 * histogram, each at most 1/32 above the true value; max is exact. */
struct fa_latency {
    uint64_t count;
    double mean_us, p50_us, p90_us, p99_us, p999_us, max_us;
};

/* Held now, and the limit at that level (0: none). */
struct fa_usage {
    uint64_t connections, connections_limit;
    uint64_t jobs, jobs_limit;
    uint64_t staged_bytes, staged_limit;
    uint64_t mapped_bytes, mapped_limit;
    uint64_t regions, regions_limit;
};

/* Statuses that travel have numbers below this, now and later. */
#define FA_STATUS_COUNTS 64

struct fa_counters {
    uint64_t requests; /* forwards that ended */
    uint64_t errors;   /* of them, not FA_OK: the sum of */
    uint64_t by_status[FA_STATUS_COUNTS];
    uint64_t received_bytes, sent_bytes; /* inline tensors */
};

struct fa_version_stats {
    char version[16];    /* that ran; empty for requests refused before that was known */
    enum fa_dtype dtype; /* 0: refused before that was known */
    struct fa_counters counters;
    struct fa_latency queue, transfer, kernel, total; /* as in fa_forward_result */
};

/* A connection, or all that a uid ever had (connection and pid 0). */
struct fa_client_stats {
    uint64_t connection; /* its number in the daemon's log */
    uint32_t uid;
    uint32_t pid;
    struct fa_counters counters;
    struct fa_latency total;
    struct fa_usage usage;
};

/* Since the daemon's start. Clients and users: those of the caller's uid, for root all. */
struct fa_stats {
    uint64_t uptime_us;
    uint64_t log_lines_held; /* log lines not written because of their rate */
    struct fa_usage daemon;
    struct fa_version_stats *versions;
    size_t version_count;
    struct fa_client_stats *clients; /* in the order of their numbers */
    size_t client_count;
    struct fa_client_stats *users;
    size_t user_count;
};

/* Fetches them; *out is to be freed by fa_stats_free. */
enum fa_status fa_stats(struct fa_client *client, struct fa_stats **out);

/* NULL is legal. */
void fa_stats_free(struct fa_stats *stats);

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
 * client; what devices and versions point to, until fa_client_reconnect. */
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
    uint32_t regions;
    uint64_t connection; /* this one's number in the daemon's log */
};

const struct fa_info *fa_client_info(const struct fa_client *client);

/* Whether "inline", "memfd", "region" or "cuda-ipc" is one of its transports. */
bool fa_info_has_transport(const struct fa_info *info, const char *name);

/* A device's UUID as text: xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. NVIDIA's tools write a GPU's with
 * "GPU-" before it. */
#define FA_UUID_TEXT 37
void fa_uuid_text(const uint8_t uuid[16], char out[FA_UUID_TEXT]);

#ifdef __cplusplus
}
#endif

#endif
