/* scheduler.h: decides which job's next range of work goes to which stream.
 *
 * Pure: no libuv, no clock, no memory but what its callers embed; it calls nothing but the
 * backend's launch_range and its works' finished(). One queue a device, first come first served:
 * the head job's ranges go out until it has none left, then the next job's. */
#ifndef FAD_SCHEDULER_H
#define FAD_SCHEDULER_H

#include "daemon/backend/backend.h"

/* A job as the scheduler sees it. Embedded in the job; the first block is set by it. */
struct fad_work {
    uint32_t device;
    const struct fa_kernel *kernel;
    const struct fa_problem *problem;
    struct fa_tensors tensors;
    void *state;                             /* fa_launch.state */
    void (*finished)(struct fad_work *work); /* once, when no range is left or under way */

    int status;          /* the first range's that failed; then no more ranges go out */
    const char *text;    /* why, static, or NULL */
    uint64_t started_ns; /* the first range's start; 0: none ran */
    uint64_t range_ns;   /* the sum over its ranges of what each took on its stream */
    uint64_t streams_used[FAD_STREAMS_MAX / 64]; /* a bit each */

    TAILQ_ENTRY(fad_work) link;
    uint64_t units, next_unit, range_units;
    uint32_t stream;    /* of an in_order kernel, once it has begun */
    uint32_t under_way; /* ranges launched and not done */
    bool queued;
    bool stop; /* told to the ranges under way (fa_launch.stop); written atomically */
};

struct fad_slot; /* a place for one range under way */

struct fad_scheduler {
    struct fad_backend *backend;
    TAILQ_HEAD(fad_works, fad_work) works; /* those with ranges left to launch */
    struct fad_slot *slots;                /* [device][stream][ahead] */
    uint32_t slot_count;
    uint32_t under_way;
    int fatal; /* a negative status of the backend's: the daemon cannot go on */
};

/* For a probed backend, which must outlive it. 0 or -ENOMEM. */
int fad_scheduler_init(struct fad_scheduler *scheduler, struct fad_backend *backend);

/* Nothing may be queued or under way. */
void fad_scheduler_deinit(struct fad_scheduler *scheduler);

/* Takes a work (its first block set, the rest zero) with at least one unit. finished() comes
 * from fad_scheduler_dispatch, fad_scheduler_abandon or a completed range. */
void fad_scheduler_submit(struct fad_scheduler *scheduler, struct fad_work *work);

/* Launches no more ranges of a submitted work and ends it with the status, when its last range
 * under way is done: at once if there is none. */
void fad_scheduler_abandon(struct fad_scheduler *scheduler, struct fad_work *work, int status);

/* How long the work's ranges took: range_ns divided by the number of streams that took part. */
uint64_t fad_work_kernel_ns(const struct fad_work *work);

/* Fills every free place with the next range. Call after submitting and after completions. True
 * when anything was launched. */
bool fad_scheduler_dispatch(struct fad_scheduler *scheduler);

#endif
