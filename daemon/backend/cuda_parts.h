/* cuda_parts.h: what the files of the CUDA backend share.
 *
 *     cuda.c          begin and end, and the table of functions
 *     cuda_devices.c  which GPUs, and what each needs
 *     cuda_queue.c    what runs in order on a CUDA stream: fences, polling and waking up
 *     cuda_range.c    ranges of kernels' work
 *     cuda_memory.c   regions, pinned memory
 *     cuda_copy.c     copies: by the GPU's engines, or through bounce buffers by threads
 *     cuda_ipc.c      memory of clients, by CUDA IPC: the table of mappings
 *     cuda_forged.c   which memory handles no driver has made
 *     cuda_event.c    events of clients, by CUDA IPC
 *
 * The driver has a lock that a launch takes, too, so what a request calls on any thread must be
 * short: memory comes from CUDA's stream-ordered pool, pinned memory from a pool made at start, and
 * handles stay open for a while. Everything is called on the loop thread, but what the workers and
 * copy threads run, which says so. */
#ifndef FAD_CUDA_PARTS_H
#define FAD_CUDA_PARTS_H

#include "daemon/backend/cuda.h"
#include "daemon/backend/extents.h"
#include "daemon/backend/host.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

struct cuda_backend;
struct cuda_device;

/* --- cuda_queue.c ---------------------------------------------------------------------------- */

/* A point in a stream, and what is to happen when the stream has got there. */
struct cuda_fence {
    TAILQ_ENTRY(cuda_fence) link; /* its queue's, or the spare ones' */
    cudaEvent_t begin;            /* ranges only: when the range's turn on the stream came */
    cudaEvent_t end;
    uint64_t due_ns; /* when it is expected, by uv_hrtime() */
    bool brief;      /* it will not be long: worth polling for */
    /* status < 0: the device is lost. */
    void (*reached)(struct cuda_backend *backend, struct cuda_fence *fence, int status);
    void *subject;
};

TAILQ_HEAD(cuda_fences, cuda_fence);

/* A CUDA stream of a device. */
struct cuda_queue {
    TAILQ_ENTRY(cuda_queue) link; /* the backend's busy ones */
    struct cuda_device *device;
    cudaStream_t stream;
    struct cuda_fences fences; /* in the order of the stream */
    uint64_t ended_ns;         /* the ranges': when the last one ended that is known to have */
};

TAILQ_HEAD(cuda_queues, cuda_queue);

/* A thread that sleeps until a fence is reached, where polling is not worth it. */
struct cuda_waiter {
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    cudaEvent_t event; /* under lock, as is stop: what to wait for; NULL: nothing */
    bool stop;
    bool started;
    bool waiting; /* the loop thread's: it was given an event and has not come back */
    uv_async_t woken;
};

/* Makes device the calling thread's current one. Any thread. */
cudaError_t cuda_use(const struct cuda_device *device);

/* A fence of the device's without events recorded; the device is then the thread's current one. 0
 * or a status as of cuda_status. cuda_fence_drop gives it back unused. */
int cuda_fence_new(struct cuda_device *device, struct cuda_fence **out);
void cuda_fence_drop(struct cuda_device *device, struct cuda_fence *fence);

/* What is expected to take longer is not polled for: the waiter's wake-up takes about 40 us. */
#define CUDA_BRIEF_NS 150000u

/* Puts the fence at the end of what the queue's stream has been given, expected so many nanoseconds
 * after what is before it. 0; or -EIO, and the fence is dropped: a stream whose end cannot be seen
 * counts as a lost device, since nothing that it uses could ever be given back. */
int cuda_fence_put(struct cuda_queue *queue, struct cuda_fence *fence, uint64_t expected_ns);

/* A queue on a new stream of the device. */
int cuda_queue_init(struct cuda_queue *queue, struct cuda_device *device, int priority);
void cuda_queue_deinit(struct cuda_queue *queue);

/* fad_backend_ops.poll. The loop is woken for what is not worth polling: by the waiter, and at the
 * latest by the timer, which runs while there is anything to be seen. */
bool cuda_poll(struct fad_backend *backend);

/* Sees to the wake-up: by the timer at the latest, and by the waiter, unless the loop polls for
 * what is brief. Whoever puts a fence that is not brief while no call is taken calls it. */
void cuda_wake_later(struct cuda_backend *backend);
void cuda_start_timer(struct cuda_backend *backend);

/* The waiter's thread, and what its handle calls when it is back. */
void cuda_on_woken(uv_async_t *handle);
int cuda_waiter_begin(struct cuda_backend *backend);
void cuda_waiter_end(struct cuda_backend *backend);

/* What a CUDA call's failure means: FA_RESOURCE_EXHAUSTED for memory, FA_INTERNAL, or -EIO when the
 * device can no longer be used, which is then known, and in the log. Any thread. */
int cuda_status(struct cuda_device *device, cudaError_t error, const char *what);

/* Whether it is known. Any thread. */
bool cuda_is_lost(const struct cuda_backend *backend);

/* Puts an op on the completion list that is done. Any thread. */
void cuda_complete(struct cuda_backend *backend, struct fad_op *op, int status, const char *text);

/* --- cuda_copy.c ----------------------------------------------------------------------------- */

#define CUDA_COPIERS_MAX 8u

/* Threads that copy what the GPU's engines cannot: all take pieces of all copies in turn. */
struct cuda_copiers {
    struct cuda_backend *backend;
    uv_mutex_t lock;
    uv_cond_t wake;
    STAILQ_HEAD(cuda_copies, fad_op) copies; /* under lock, as is stop: those with pieces left */
    bool stop;
    uint32_t count;
    struct cuda_copier {
        struct cuda_copiers *all;
        uv_thread_t thread;
        void *bounce; /* a piece, pinned */
        cudaStream_t streams[FAD_DEVICES_MAX];
    } copier[CUDA_COPIERS_MAX];
};

/* How many there are to be, each with a stream on every device. */
uint32_t cuda_copiers_wanted(void);

/* Takes their bounce buffers from the pinned memory. 0 or a negative errno. */
int cuda_copiers_begin(struct cuda_backend *backend);
void cuda_copiers_end(struct cuda_backend *backend);

int cuda_copy(struct fad_backend *backend, struct fad_copy *copy);

/* --- cuda_ipc.c, cuda_event.c ---------------------------------------------------------------- */

struct cuda_handle;
TAILQ_HEAD(cuda_handles, cuda_handle);

/* A client's memory or event, opened once for all who name it. */
struct cuda_handle {
    TAILQ_ENTRY(cuda_handle) link; /* its device's list, the one used last first */
    struct cuda_device *device;
    bool is_event;
    uint8_t bytes[64];  /* cudaIpcMemHandle_t or cudaIpcEventHandle_t */
    uint64_t buffer_id; /* of memory: with the bytes what names it; of an event 0 */
    bool open;          /* else it is being opened */
    uint32_t uses;      /* those that wait for its opening, too */
    uint64_t idle_ns;   /* since when there are none, by uv_hrtime() */
    void *base;         /* of memory: the allocation, and its bytes */
    size_t size;
    cudaEvent_t event;
    uint64_t pass;                                /* of cuda_events_poll: when it was asked last, */
    cudaError_t answer;                           /* and what it said */
    struct fad_op op;                             /* the worker's, that opens it */
    STAILQ_HEAD(cuda_handle_waits, fad_op) waits; /* for its opening */
};

int cuda_ipc_open(struct cuda_device *device, struct fad_region *region, struct fad_op *op);
void cuda_ipc_close(struct cuda_device *device, struct fad_region *region, struct fad_op *op);

/* An event that op, of a fad_event_wait, has waited for is open; and another use of a handle is
 * over. */
void cuda_event_opened(struct cuda_handle *handle, struct fad_op *op);
void cuda_handle_unuse(struct cuda_handle *handle);

/* Opens the handle, or finds it open, and then goes on with op: see cuda_ipc.c. 0 or a status. */
int cuda_handle_use(struct cuda_device *device, bool is_event, const uint8_t bytes[64],
                    uint64_t buffer_id, struct fad_op *op);

/* Closes what nobody has used for a while; and, when nothing is in use, everything at once. */
void cuda_handles_tick(struct cuda_device *device, uint64_t now_ns);
void cuda_handles_close(struct cuda_device *device);

int cuda_event_wait(struct fad_backend *backend, struct fad_event_wait *wait);

/* Asks each event that is waited for. */
void cuda_events_poll(struct cuda_backend *backend, uint64_t now_ns);

/* --- cuda_forged.c --------------------------------------------------------------------------- */

/* Finds out whether handles can be told from forged ones; the log says if not. */
void cuda_learn_handles(struct cuda_backend *backend);

/* Whether opening a memory handle would map what is not its allocation. Any thread. */
bool cuda_is_forged(const struct cuda_backend *backend, const uint8_t bytes[64]);

/* --- cuda_memory.c --------------------------------------------------------------------------- */

/* host_alloc's pinned memory. */
struct cuda_pinned {
    char *base; /* NULL: there is none */
    size_t size;
    struct fad_extents extents;
};

int cuda_pinned_init(struct cuda_pinned *pinned, size_t size, struct fa_error *error);
void cuda_pinned_deinit(struct cuda_pinned *pinned);
bool cuda_is_pinned(const struct cuda_backend *backend, const void *memory);

void *cuda_host_alloc(struct fad_backend *backend, size_t size);
void cuda_host_free(struct fad_backend *backend, void *memory, size_t size);
int cuda_region_open(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);
int cuda_region_close(struct fad_backend *backend, struct fad_region *region, struct fad_op *op);

/* Memory of the pool was asked for. */
void cuda_pool_used(struct cuda_device *device);

/* Gives memory back to the system that the pool has kept, when it has been unused for a while. */
void cuda_memory_tick(struct cuda_device *device, uint64_t now_ns);

/* --- cuda_range.c ---------------------------------------------------------------------------- */

int cuda_launch_range(struct fad_backend *backend, struct fad_range_op *range);

/* --- cuda_devices.c -------------------------------------------------------------------------- */

/* Device memory that a pool has from the start and never gives back: allocating what is there takes
 * a microsecond, else the pool grows, by some 1.5 ms a GiB. */
#define CUDA_POOL_KEPT ((size_t)256 << 20)

struct cuda_device {
    struct cuda_backend *backend;
    int ordinal;
    cudaMemPool_t pool;
    struct cuda_fences spare;
    struct cuda_queue memory, in, out; /* allocations; copies to the device, and from it */
    struct cuda_queue *streams;        /* the ranges' */
    uint32_t stream_count;
    struct fad_worker worker; /* what may take long: handles, the pool's growing and trimming */
    bool worker_started;
    uint64_t used_bytes; /* OWNED regions */
    uint64_t unused_ns;  /* since when it is 0, and the pool was asked for nothing */
    bool may_trim;       /* the pool may have grown since it was last trimmed */
    struct fad_op trim;
    bool trimming; /* atomic */
    struct cuda_handles handles;
    uint32_t handle_count;
};

/* Driver functions, found at run time. */
struct cuda_driver {
    CUresult (*get_address_range)(CUdeviceptr *base, size_t *size, CUdeviceptr address);
};

struct cuda_backend {
    struct fad_backend base;
    struct fad_device devices[FAD_DEVICES_MAX];
    struct cuda_device parts[FAD_DEVICES_MAX];
    uint32_t device_count;
    struct cuda_driver driver;
    bool knows_handles; /* cuda_forged.c's */
    bool lost;          /* atomic */
    bool told;          /* that it is lost, where nothing under way could tell */
    struct fad_op telling;
    struct cuda_queues busy; /* with fences */
    uint32_t brief;          /* fences under way that are */
    struct cuda_waiter waiter;
    struct cuda_pinned pinned;
    struct cuda_copiers copiers;
    struct fad_worker closer; /* gives host memory back */
    bool closer_started;
    STAILQ_HEAD(cuda_event_waits, fad_op) event_waits; /* for events that are open */
    uint64_t event_pass;
    uint64_t event_spin_ns; /* until when they are worth polling for */
    uv_timer_t timer;
    uint32_t handles; /* of the loop's that are open: the timer, the waiter's */
};

static inline struct cuda_backend *cuda_backend_of(struct fad_backend *backend)
{
    return fad_container_of(backend, struct cuda_backend, base);
}

static inline uv_loop_t *cuda_loop(const struct cuda_backend *backend)
{
    return backend->base.completions->wake.loop;
}

/* Finds what config asks for and readies it. 0, or a negative errno as of probe with *error filled;
 * cuda_devices_deinit in either case. */
int cuda_devices_init(struct cuda_backend *backend, const struct fad_backend_config *config,
                      struct fa_error *error);
void cuda_devices_deinit(struct cuda_backend *backend);

#endif
