#include "daemon/scheduler/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* How long a range should take. Long ones make others wait; short ones cost a hand-over each, about
 * 10 us on the CPU. */
#define RANGE_NS     250e3
#define RANGE_NS_MIN 25e3

struct fad_slot {
    struct fad_range_op range;
    struct fad_scheduler *scheduler;
    struct fad_work *work; /* NULL: free */
};

int fad_scheduler_init(struct fad_scheduler *scheduler, struct fad_backend *backend)
{
    uint32_t count = 0, next = 0;

    *scheduler = (struct fad_scheduler){.backend = backend};
    TAILQ_INIT(&scheduler->works);
    for (uint32_t d = 0; d < backend->device_count; d++) {
        assert(backend->devices[d].streams <= FAD_STREAMS_MAX);
        count += backend->devices[d].streams * FAD_RANGES_AHEAD;
    }
    assert(count > 0);
    scheduler->slots = calloc(count, sizeof *scheduler->slots);
    if (!scheduler->slots)
        return -ENOMEM;
    scheduler->slot_count = count;
    /* Every stream's first place before any stream's second: work spreads before it queues up. */
    for (uint32_t ahead = 0; ahead < FAD_RANGES_AHEAD; ahead++) {
        for (uint32_t d = 0; d < backend->device_count; d++) {
            for (uint32_t s = 0; s < backend->devices[d].streams; s++) {
                struct fad_slot *slot = &scheduler->slots[next++];
                slot->scheduler = scheduler;
                slot->range.device = d;
                slot->range.stream = s;
            }
        }
    }
    return 0;
}

void fad_scheduler_deinit(struct fad_scheduler *scheduler)
{
    assert(TAILQ_EMPTY(&scheduler->works) && scheduler->under_way == 0);
    free(scheduler->slots);
    scheduler->slots = NULL;
}

/* Units a range: about RANGE_NS long, but a job that is too short for that still spreads over the
 * device's streams, in ranges of no less than RANGE_NS_MIN. */
static uint64_t units_per_range(const struct fad_work *work, uint32_t streams)
{
    double unit_ns = fa_kernel_seconds(work->kernel, work->problem) * 1e9 / (double)work->units;
    double target = RANGE_NS / (unit_ns + 1e-3), least = RANGE_NS_MIN / (unit_ns + 1e-3);
    uint64_t even = (work->units - 1) / streams + 1;
    double spread = (double)even;

    if (target > spread)
        target = spread > least ? spread : least;
    if (target < 1)
        return 1;
    return target >= (double)work->units ? work->units : (uint64_t)target;
}

void fad_scheduler_submit(struct fad_scheduler *scheduler, struct fad_work *work)
{
    work->units = work->kernel->units(work->problem);
    assert(work->units > 0 && !work->queued);
    work->range_units = units_per_range(work, scheduler->backend->devices[work->device].streams);
    TAILQ_INSERT_TAIL(&scheduler->works, work, link);
    work->queued = true;
}

static void unqueue(struct fad_scheduler *scheduler, struct fad_work *work)
{
    if (work->queued)
        TAILQ_REMOVE(&scheduler->works, work, link);
    work->queued = false;
}

/* Ends a work that has nothing left to launch, if nothing of it is under way. */
static void settle(struct fad_work *work)
{
    if (!work->queued && work->under_way == 0)
        work->finished(work);
}

static void fail(struct fad_scheduler *scheduler, struct fad_work *work, int status,
                 const char *text)
{
    if (work->status == 0) {
        work->status = status;
        work->text = text;
    }
    if (status < 0 && scheduler->fatal == 0)
        scheduler->fatal = status;
    __atomic_store_n(&work->stop, true, __ATOMIC_RELAXED);
    unqueue(scheduler, work);
}

void fad_scheduler_abandon(struct fad_scheduler *scheduler, struct fad_work *work, int status)
{
    bool was_queued = work->queued;
    fail(scheduler, work, status, NULL);
    if (was_queued)
        settle(work);
}

static void add_time(struct fad_work *work, const struct fad_range_op *range)
{
    const struct fad_op *op = &range->op;

    if (work->started_ns == 0 || op->started_ns < work->started_ns)
        work->started_ns = op->started_ns;
    work->range_ns += op->finished_ns - op->started_ns;
    work->streams_used[range->stream / 64] |= (uint64_t)1 << range->stream % 64;
}

uint64_t fad_work_kernel_ns(const struct fad_work *work)
{
    int streams = 0;

    for (size_t i = 0; i < sizeof work->streams_used / sizeof work->streams_used[0]; i++)
        streams += __builtin_popcountll(work->streams_used[i]);
    return streams ? work->range_ns / (uint64_t)streams : 0;
}

static void on_range_done(struct fad_op *op)
{
    struct fad_slot *slot = fad_container_of(op, struct fad_slot, range.op);
    struct fad_scheduler *scheduler = slot->scheduler;
    struct fad_work *work = slot->work;

    slot->work = NULL;
    scheduler->under_way--;
    work->under_way--;
    add_time(work, &slot->range);
    if (op->status != 0)
        fail(scheduler, work, op->status, op->text);
    settle(work);
}

static bool may_run_on(const struct fad_work *work, const struct fad_range_op *place)
{
    if (work->device != place->device)
        return false;
    return !work->kernel->in_order || work->next_unit == 0 || work->stream == place->stream;
}

static struct fad_work *next_work(struct fad_scheduler *scheduler, const struct fad_range_op *place)
{
    struct fad_work *work;
    TAILQ_FOREACH (work, &scheduler->works, link)
        if (may_run_on(work, place))
            return work;
    return NULL;
}

static void launch(struct fad_scheduler *scheduler, struct fad_slot *slot, struct fad_work *work)
{
    uint64_t left = work->units - work->next_unit;
    uint64_t count = left < work->range_units ? left : work->range_units;
    int status;

    slot->range.op.done = on_range_done;
    slot->range.kernel = work->kernel;
    slot->range.launch = (struct fa_launch){.problem = work->problem,
                                            .tensors = &work->tensors,
                                            .problem_count = 1,
                                            .range = {work->next_unit, count},
                                            .state = work->state,
                                            .stop = &work->stop};
    status = scheduler->backend->ops->launch_range(scheduler->backend, &slot->range);
    if (status != 0) {
        fail(scheduler, work, status, NULL);
        settle(work);
        return;
    }
    slot->work = work;
    work->stream = slot->range.stream;
    scheduler->under_way++;
    work->under_way++;
    work->next_unit += count;
    if (work->next_unit == work->units)
        unqueue(scheduler, work);
}

bool fad_scheduler_dispatch(struct fad_scheduler *scheduler)
{
    const uint32_t before = scheduler->under_way;

    for (uint32_t i = 0; i < scheduler->slot_count && !TAILQ_EMPTY(&scheduler->works); i++) {
        struct fad_slot *slot = &scheduler->slots[i];
        struct fad_work *work;
        while (!slot->work && (work = next_work(scheduler, &slot->range)))
            launch(scheduler, slot, work);
    }
    return scheduler->under_way > before;
}
