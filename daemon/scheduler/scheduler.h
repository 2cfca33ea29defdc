/* scheduler.h: decides which job's next range of work goes to which stream.
 *
 * Pure: no libuv, no clock but the times its callers give, no memory but what they embed; it calls
 * nothing but the backend's launch_range and its works' finished().
 *
 * Turns are taken by deficit round robin in device time (ring.h), on each device by itself: first
 * between groups (uids, of equal weight), then between a group's flows, of the weight of their
 * priority (fa_priority_weight). A flow is a connection's works of one priority, in the order they
 * came. Its ranges are charged by the kernel's estimate, corrected by what earlier ranges of the
 * same work took, and when they are done by what they took themselves (cut.h, processor.h).
 *
 * Short works on a shared device go out whole, and on its express streams, if it has some, where
 * they pass long works, also those of their own flow. */
#ifndef FAD_SCHEDULER_H
#define FAD_SCHEDULER_H

#include "daemon/scheduler/processor.h"
#include "daemon/scheduler/ring.h"
#include "daemon/scheduler/span.h"

#define FAD_PRIORITIES 3 /* of enum fa_priority, index priority - 1 */

TAILQ_HEAD(fad_works, fad_work);

/* The works of one connection and priority on one device that have ranges left to launch. */
struct fad_queue {
    struct fad_share share;
    struct fad_works works;
    uint32_t passable; /* ranges under way that works on express streams may pass (flow.h) */
};

/* A uid. */
struct fad_group {
    struct fad_share shares[FAD_DEVICES_MAX];
    struct fad_ring rings[FAD_DEVICES_MAX];
};

/* A connection. */
struct fad_flow {
    struct fad_group *group;
    struct fad_queue queues[FAD_DEVICES_MAX][FAD_PRIORITIES];
};

/* How longer ranges do on a shared device (cut.c). */
struct fad_trial {
    int ranges; /* that count; < 0: so many still to come do not */
    double units, took_ns;
    double before_ns;     /* what a unit took when ranges were shorter */
    double cut_before_ns; /* how long they should take then */
};

/* A job as the scheduler sees it. Embedded in the job; the first block is set by it. */
struct fad_work {
    struct fad_flow *flow;
    enum fa_priority priority;
    uint64_t deadline_ns; /* from then on no range starts, those under way are to stop; 0: none */
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
    struct fad_span span;                        /* during which its ranges ran; shared devices */

    TAILQ_ENTRY(fad_work) link;          /* its queue's */
    TAILQ_ENTRY(fad_work) deadline_link; /* the scheduler's */
    uint64_t units, next_unit;
    uint64_t units_left; /* not done, of those launched or still to be launched */
    uint64_t load_ns;    /* its part of the device's */
    double unit_ns;      /* how long a unit takes: estimated, then as measured */
    double guessed_ns;   /* as estimated */
    double cut_ns;       /* how long a range should take */
    struct fad_trial trial;
    uint32_t stream;    /* of an in_order kernel, once it has begun */
    uint32_t under_way; /* ranges launched and not done */
    bool is_short;      /* shared devices */
    bool queued;        /* it has ranges left to launch */
    bool timed;         /* it is in deadlines */
    bool stop;          /* told to the ranges under way (fa_launch.stop); written atomically */
};

struct fad_slot; /* a place for one range under way */

struct fad_scheduler {
    struct fad_backend *backend;
    struct fad_ring rings[FAD_DEVICES_MAX]; /* of groups */
    struct fad_processor processors[FAD_DEVICES_MAX];
    uint64_t now_ns;                   /* of the last dispatch */
    uint64_t load_ns[FAD_DEVICES_MAX]; /* estimated time of what is submitted and not done */
    uint32_t next_device;              /* that is asked first for the least load */
    struct fad_works deadlines;        /* works that have one and may miss it, earliest first */
    struct fad_slot *slots;            /* [express][ahead][device][stream] */
    uint32_t slot_count;
    uint32_t queued;    /* works with ranges left to launch */
    uint32_t under_way; /* ranges */
    int fatal;          /* a negative status of the backend's: the daemon cannot go on */
};

/* For a probed backend, which must outlive it. 0 or -ENOMEM. */
int fad_scheduler_init(struct fad_scheduler *scheduler, struct fad_backend *backend);

/* Nothing may be queued or under way. */
void fad_scheduler_deinit(struct fad_scheduler *scheduler);

/* Both have nothing to be ended. A flow must outlive its works, a group its flows. What they owe
 * goes with them: keep a group while its uid may come back. */
void fad_group_init(struct fad_group *group);
void fad_flow_init(struct fad_flow *flow, struct fad_group *group);

/* Takes a work (its first block set, the rest zero) with at least one unit. finished() comes
 * from fad_scheduler_dispatch, fad_scheduler_abandon or a completed range. */
void fad_scheduler_submit(struct fad_scheduler *scheduler, struct fad_work *work);

/* Launches no more ranges of a submitted work and ends it with the status, when its last range
 * under way is done: at once if there is none. */
void fad_scheduler_abandon(struct fad_scheduler *scheduler, struct fad_work *work, int status);

/* How long the work's ranges took: on a shared device the time during which any of them ran, else
 * range_ns divided by the number of streams that took part. */
uint64_t fad_work_kernel_ns(const struct fad_work *work);

/* Abandons what has passed its deadline (FA_DEADLINE_EXCEEDED), then fills every free place with
 * the next range. Call after submitting, after completions, and at fad_scheduler_next_deadline.
 * True when anything was launched. now_ns is of the clock of the deadlines. */
bool fad_scheduler_dispatch(struct fad_scheduler *scheduler, uint64_t now_ns);

/* The earliest deadline of a work that has not ended, failed or been abandoned; 0: none has one. */
uint64_t fad_scheduler_next_deadline(const struct fad_scheduler *scheduler);

/* The device with the least estimated work; of several, each in its turn. */
uint32_t fad_scheduler_least_loaded(struct fad_scheduler *scheduler);

#endif
