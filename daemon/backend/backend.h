/* backend.h: what the daemon asks of a device: a table of functions, and the objects they work on.
 *
 * There is one backend of each kind a build has (cpu.h), and a scripted one in the tests. All of
 * them keep these rules:
 *  - Everything is called on the loop thread.
 *  - Calls that take a fad_op are asynchronous. They return 0, and the op's done() is called later,
 *    on the loop thread, from the completion list (completions.h), never from inside the call; or
 *    they return a status, and done() is never called. done() finds the outcome in op->status.
 *  - A status is 0, an enum fa_status (> 0: one client's affair), or a negative errno (< 0: the
 *    daemon cannot go on). A lost device is one of the latter, whoever found it.
 *  - What an op points to stays alive and in place until done(). */
#ifndef FAD_BACKEND_H
#define FAD_BACKEND_H

#include "kernels/fa_attention.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct fad_backend;
struct fad_completions;

/* One asynchronous call. Embedded in its owner, which done() finds with fad_container_of. */
struct fad_op {
    STAILQ_ENTRY(fad_op) link; /* the completion list's */
    void (*done)(struct fad_op *op);
    int status;
    const char *text; /* why, where there is more to say than the status does; static, or NULL */
    /* launch_range: when the range began and ended on its stream, on the clock of uv_hrtime().
     * Where the device has a clock of its own, the difference is that clock's. */
    uint64_t started_ns;
    uint64_t finished_ns;

    /* The backend's own, from the call to done(): */
    bool (*work)(struct fad_op *op, void *scratch);
    void *subject;
};

#define fad_container_of(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Devices, and streams that a device may have. */
#define FAD_DEVICES_MAX 16u
#define FAD_STREAMS_MAX 256u

struct fad_device {
    struct fa_target target;
    char name[64];
    uint8_t uuid[16];
    uint64_t memory_bytes;
    uint32_t streams; /* at most FAD_STREAMS_MAX; numbered from 0 */
    /* The streams share one processor: a range takes the longer, the more of them run beside it.
     * Kernels' rates are then the whole device's. Else each stream has a processor of its own. */
    bool shared;
    /* Shared devices: the last so many of the streams take short works only, which the device
     * prefers; the others take all other works. 0: every stream takes every work. */
    uint32_t express;
};

enum fad_region_kind {
    FAD_REGION_MEMFD, /* shared memory of a client */
    FAD_REGION_IPC,   /* GPU memory of a client, by CUDA IPC */
    FAD_REGION_OWNED, /* memory of the daemon's on the device, 64-byte aligned */
};

/* What a region is to be opened from. */
struct fad_region_source {
    enum fad_region_kind kind;
    uint32_t device;
    int fd;        /* MEMFD: checked (memfd.h); region_open takes and closes it when it returns 0 */
    bool fixed;    /* MEMFD: its file can grow no more */
    bool writable; /* MEMFD */
    uint64_t size; /* MEMFD, OWNED: bytes */
    bool uncleared;     /* OWNED: any bytes may be in it, also another client's; else all zeroes */
    uint8_t handle[64]; /* IPC: cudaIpcMemHandle_t */
    uint64_t buffer_id; /* IPC: CU_POINTER_ATTRIBUTE_BUFFER_ID */
};

/* Memory as the backend's kernels see it. */
struct fad_region {
    struct fad_region_source source;
    void *base;    /* first byte of the allocation */
    uint64_t size; /* its real size, whatever the client said */
};

/* How bytes that are packed on one side of a copy lie in host memory on the other: in pieces of
 * width bytes, piece [i, j, k] of counts[0] x counts[1] x counts[2] at i * strides[0] +
 * j * strides[1] + k * strides[2] bytes, packed in that order (k fastest). */
struct fad_layout {
    uint64_t counts[3];
    uint64_t strides[3];
    uint64_t width;
};

/* A copy between any two places of the backend's device or host memory. From the call on its places
 * and size are the backend's own. */
struct fad_copy {
    struct fad_op op;
    uint32_t device;
    void *to;
    const void *from;
    size_t size; /* bytes; with a layout the product of its counts and width */
    /* NULL: packed on both sides. Else on one side, which is host memory: `from` if gathers, else
     * `to`. What lies between the pieces is neither read nor written. Alive until done(). */
    const struct fad_layout *layout;
    bool gathers;
};

/* A wait for a client's CUDA event: done() finds 0 when it has happened; FA_IPC_REFUSED when the
 * driver does not open it. */
struct fad_event_wait {
    struct fad_op op;
    uint32_t device;
    uint8_t handle[64]; /* cudaIpcEventHandle_t */
    uint64_t until_ns;  /* on the clock of uv_hrtime(): then it ends with: */
    int late;           /* a status > 0 */
    bool given_up;      /* the caller sets it when nobody waits any more: it ends soon, anyhow */

    uint64_t opened; /* the backend's own */
};

/* A range of a kernel's work on a stream. */
struct fad_range_op {
    struct fad_op op;
    uint32_t device;
    uint32_t stream;
    uint64_t expected_ns; /* about how long it takes */
    const struct fa_kernel *kernel;
    struct fa_launch launch; /* scratch and stream are the backend's to fill */
};

struct fad_backend_config {
    uint32_t workers; /* CPU: streams; 0: one for each processor that this process may use */
    const char
        *devices;     /* CUDA: ordinals or UUIDs, separated by commas; NULL: all that can serve */
    uint32_t streams; /* CUDA: of each device, at least 1 */
    uint64_t pinned_bytes; /* CUDA: of host_alloc's memory that is pinned, made at start */
};

struct fad_backend_ops {
    const char *name; /* "cpu" */

    /* Finds the devices and starts what is needed. On success *out is to be ended with deinit. Else
     * a negative errno: -ENODEV when the machine has nothing that this backend could use. */
    int (*probe)(const struct fad_backend_config *config, struct fad_completions *completions,
                 struct fad_backend **out, struct fa_error *error);

    /* Opens region->source; done: base and size are set. IPC: FA_IPC_REFUSED when the driver will
     * not. close undoes it, once nothing uses the region any more, and base and size with it; its
     * op always ends with status 0. */
    int (*region_open)(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);
    int (*region_close)(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);

    int (*copy)(struct fad_backend *backend, struct fad_copy *copy);

    /* NULL where opens_ipc is false. */
    int (*event_wait)(struct fad_backend *backend, struct fad_event_wait *wait);

    /* At most FAD_RANGES_AHEAD of a stream are under way at once; the caller sees to it. Those of
     * an in_order kernel run in the order of their launches on their stream; others in any. */
    int (*launch_range)(struct fad_backend *backend, struct fad_range_op *range);

    /* Looks for finished calls, of every kind, and puts them on the completion list. True when it
     * should be called again at the loop's next turn, false when the backend will wake the loop by
     * itself from now on. NULL: it always does. Called first after a call was taken. */
    bool (*poll)(struct fad_backend *backend);

    /* Called about every half second, for what is kept and grows old. NULL: nothing is. */
    void (*tick)(struct fad_backend *backend);

    /* Staging memory that payloads are received into and outputs sent from: 64-byte aligned,
     * uncleared, NULL when there is none. Synchronous, and quick: made ready at start where making
     * is slow. */
    void *(*host_alloc)(struct fad_backend *backend, size_t size);
    void (*host_free)(struct fad_backend *backend, void *memory, size_t size);

    /* Ends it. Nothing may be under way. NULL is legal. */
    void (*deinit)(struct fad_backend *backend);
};

/* Begins every backend's own struct. */
struct fad_backend {
    const struct fad_backend_ops *ops;
    bool opens_ipc; /* false: region_open knows no FAD_REGION_IPC here */
    bool separate;  /* kernels reach only device memory: OWNED and IPC regions. What lies in host
                       memory (host_alloc's, MEMFD regions) is to be copied there and back */
    struct fad_completions *completions;
    const struct fad_device *devices;
    uint32_t device_count;
};

/* Ranges given to one stream at once: one that runs and one that follows without a gap. */
#define FAD_RANGES_AHEAD 2u

#endif
