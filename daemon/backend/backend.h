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
};

enum fad_region_kind {
    FAD_REGION_MEMFD, /* shared memory of a client */
    FAD_REGION_IPC,   /* GPU memory of a client, by CUDA IPC */
    FAD_REGION_OWNED, /* memory of the daemon's on the device, all zeroes, 64-byte aligned */
};

/* What a region is to be opened from. */
struct fad_region_source {
    enum fad_region_kind kind;
    uint32_t device;
    int fd;        /* MEMFD: checked (memfd.h); region_open takes and closes it when it returns 0 */
    bool fixed;    /* MEMFD: its file can grow no more */
    bool writable; /* MEMFD */
    uint64_t size; /* MEMFD, OWNED: bytes */
    uint8_t handle[64]; /* IPC: cudaIpcMemHandle_t */
    uint64_t buffer_id; /* IPC: CU_POINTER_ATTRIBUTE_BUFFER_ID */
};

/* Memory as the backend's kernels see it. */
struct fad_region {
    struct fad_region_source source;
    void *base;    /* first byte of the allocation */
    uint64_t size; /* its real size, whatever the client said */
};

/* A copy between any two places the backend's device or host memory. From the call on its places
 * and size are the backend's own. */
struct fad_copy {
    struct fad_op op;
    uint32_t device;
    void *to;
    const void *from;
    size_t size;
};

/* A range of a kernel's work on a stream. */
struct fad_range_op {
    struct fad_op op;
    uint32_t device;
    uint32_t stream;
    const struct fa_kernel *kernel;
    struct fa_launch launch; /* scratch and stream are the backend's to fill */
};

struct fad_backend_config {
    uint32_t workers; /* CPU: streams; 0: one for each processor that this process may use */
};

struct fad_backend_ops {
    const char *name; /* "cpu" */

    /* Finds the devices and starts what is needed. On success *out is to be ended with deinit. */
    int (*probe)(const struct fad_backend_config *config, struct fad_completions *completions,
                 struct fad_backend **out, struct fa_error *error);

    /* Opens region->source; done: base and size are set. IPC: FA_IPC_REFUSED when the driver will
     * not. close undoes it, once nothing uses the region any more, and base and size with it; its
     * op always ends with status 0. */
    int (*region_open)(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);
    int (*region_close)(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);

    int (*copy)(struct fad_backend *backend, struct fad_copy *copy);

    /* At most FAD_RANGES_AHEAD of a stream are under way at once; the caller sees to it. Those of
     * an in_order kernel run in the order of their launches on their stream; others in any. */
    int (*launch_range)(struct fad_backend *backend, struct fad_range_op *range);

    /* Looks for finished calls, of every kind, and puts them on the completion list. True when it
     * should be called again at the loop's next turn, false when the backend will wake the loop by
     * itself from now on. NULL: it always does. Called first after a call was taken. */
    bool (*poll)(struct fad_backend *backend);

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
    struct fad_completions *completions;
    const struct fad_device *devices;
    uint32_t device_count;
};

/* Ranges given to one stream at once: one that runs and one that follows without a gap. */
#define FAD_RANGES_AHEAD 2u

#endif
