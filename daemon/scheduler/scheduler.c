#include "daemon/scheduler/scheduler.h"

#include "daemon/scheduler/cut.h"
#include "daemon/scheduler/flow.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* What a launch costs besides its work: tiny jobs are not free. */
#define LAUNCH_NS 3000

/* What a group may owe at most for its short works to go out on express streams while another group
 * with time left waits for its turn: a long range, so that a flow that asks little is not held back
 * because of its group's hog. A flow may owe nothing, or connections would be cut short to run up
 * debts. */
#define GROUP_DEBT_NS RANGE_NS_MAX

struct fad_slot {
    struct fad_range_op range;
    struct fad_scheduler *scheduler;
    struct fad_work *work; /* NULL: free */
    int64_t charged_ns;    /* for the range under way */
    bool express;
    bool takes_short, takes_long; /* works */
};

/* A device's places for long works before those for short ones: what long works owe is known when
 * short ones are to be held back for it. And every stream's first place before any stream's second:
 * work spreads before it queues up. */
static void add_slots(struct fad_scheduler *scheduler, bool express, uint32_t *next)
{
    const struct fad_backend *backend = scheduler->backend;

    for (uint32_t ahead = 0; ahead < FAD_RANGES_AHEAD; ahead++) {
        for (uint32_t d = 0; d < backend->device_count; d++) {
            for (uint32_t s = 0; s < backend->devices[d].streams; s++) {
                struct fad_slot *slot = &scheduler->slots[*next];
                if (fad_is_express(&backend->devices[d], s) != express)
                    continue;
                slot->scheduler = scheduler;
                slot->express = express;
                slot->takes_short = express || backend->devices[d].express == 0;
                slot->takes_long = !express;
                slot->range.device = d;
                slot->range.stream = s;
                ++*next;
            }
        }
    }
}

int fad_scheduler_init(struct fad_scheduler *scheduler, struct fad_backend *backend)
{
    uint32_t count = 0, next = 0;

    *scheduler = (struct fad_scheduler){.backend = backend};
    TAILQ_INIT(&scheduler->deadlines);
    assert(backend->device_count > 0 && backend->device_count <= FAD_DEVICES_MAX);
    for (uint32_t d = 0; d < backend->device_count; d++) {
        fad_ring_init(&scheduler->rings[d]);
        if (fad_processor_init(&scheduler->processors[d], &backend->devices[d]) < 0)
            goto fail;
        count += backend->devices[d].streams * FAD_RANGES_AHEAD;
    }
    scheduler->slots = calloc(count, sizeof *scheduler->slots);
    if (!scheduler->slots)
        goto fail;
    scheduler->slot_count = count;
    add_slots(scheduler, false, &next);
    add_slots(scheduler, true, &next);
    return 0;
fail:
    for (uint32_t d = 0; d < backend->device_count; d++)
        fad_processor_deinit(&scheduler->processors[d]);
    return -ENOMEM;
}

void fad_scheduler_deinit(struct fad_scheduler *scheduler)
{
    assert(scheduler->queued == 0 && scheduler->under_way == 0);
    assert(TAILQ_EMPTY(&scheduler->deadlines));
    for (uint32_t d = 0; d < scheduler->backend->device_count; d++)
        fad_processor_deinit(&scheduler->processors[d]);
    free(scheduler->slots);
    scheduler->slots = NULL;
}

/* --- Load ------------------------------------------------------------------------------------ */

/* Each work knows its part of the sum, so that the sum is exact. */
static void update_load(struct fad_scheduler *scheduler, struct fad_work *work)
{
    scheduler->load_ns[work->device] -= work->load_ns;
    work->load_ns = (uint64_t)fad_cut_estimate_ns(work, work->units_left);
    scheduler->load_ns[work->device] += work->load_ns;
}

uint32_t fad_scheduler_least_loaded(struct fad_scheduler *scheduler)
{
    const uint32_t count = scheduler->backend->device_count, first = scheduler->next_device;
    uint32_t least = first;

    for (uint32_t i = 1; i < count; i++) {
        const uint32_t d = (first + i) % count;
        if (scheduler->load_ns[d] < scheduler->load_ns[least])
            least = d;
    }
    scheduler->next_device = (least + 1) % count;
    return least;
}

/* --- Works ----------------------------------------------------------------------------------- */

static void add_deadline(struct fad_scheduler *scheduler, struct fad_work *work)
{
    struct fad_work *before = TAILQ_LAST(&scheduler->deadlines, fad_works);

    while (before && before->deadline_ns > work->deadline_ns)
        before = TAILQ_PREV(before, fad_works, deadline_link);
    if (before)
        TAILQ_INSERT_AFTER(&scheduler->deadlines, before, work, deadline_link);
    else
        TAILQ_INSERT_HEAD(&scheduler->deadlines, work, deadline_link);
    work->timed = true;
}

static void drop_deadline(struct fad_scheduler *scheduler, struct fad_work *work)
{
    if (work->timed)
        TAILQ_REMOVE(&scheduler->deadlines, work, deadline_link);
    work->timed = false;
}

uint64_t fad_scheduler_next_deadline(const struct fad_scheduler *scheduler)
{
    const struct fad_work *first = TAILQ_FIRST(&scheduler->deadlines);
    return first ? first->deadline_ns : 0;
}

void fad_scheduler_submit(struct fad_scheduler *scheduler, struct fad_work *work)
{
    work->units = work->units_left = work->kernel->units(work->problem);
    assert(work->units > 0 && !work->queued);
    assert(work->device < scheduler->backend->device_count);
    assert(work->priority >= 1 && work->priority <= FAD_PRIORITIES);
    fad_cut_begin(work, &scheduler->backend->devices[work->device]);
    update_load(scheduler, work);
    fad_flow_enqueue(scheduler, work);
    if (work->deadline_ns != 0)
        add_deadline(scheduler, work);
}

/* Ends a work that has nothing left to launch, if nothing of it is under way. */
static void settle(struct fad_scheduler *scheduler, struct fad_work *work)
{
    if (work->queued || work->under_way > 0)
        return;
    assert(work->load_ns == 0);
    drop_deadline(scheduler, work);
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
    drop_deadline(scheduler, work);
    if (!work->queued)
        return;
    fad_flow_unqueue(scheduler, work);
    work->units_left -= work->units - work->next_unit;
    update_load(scheduler, work);
}

void fad_scheduler_abandon(struct fad_scheduler *scheduler, struct fad_work *work, int status)
{
    fail(scheduler, work, status, NULL);
    settle(scheduler, work);
}

/* --- Ranges ---------------------------------------------------------------------------------- */

static void add_time(struct fad_work *work, const struct fad_range_op *range, bool shared)
{
    const struct fad_op *op = &range->op;

    if (work->started_ns == 0 || op->started_ns < work->started_ns)
        work->started_ns = op->started_ns;
    work->range_ns += op->finished_ns - op->started_ns;
    work->streams_used[range->stream / 64] |= (uint64_t)1 << range->stream % 64;
    if (shared)
        fad_span_add(&work->span, op->started_ns, op->finished_ns);
}

uint64_t fad_work_kernel_ns(const struct fad_work *work)
{
    int streams = 0;

    if (work->span.until_ns > 0)
        return fad_span_ns(&work->span);
    for (size_t i = 0; i < sizeof work->streams_used / sizeof work->streams_used[0]; i++)
        streams += __builtin_popcountll(work->streams_used[i]);
    return streams ? work->range_ns / (uint64_t)streams : 0;
}

static int64_t cost_ns(double ns)
{
    return ns > LAUNCH_NS ? (int64_t)ns : LAUNCH_NS;
}

static void on_range_done(struct fad_op *op)
{
    struct fad_slot *slot = fad_container_of(op, struct fad_slot, range.op);
    struct fad_scheduler *scheduler = slot->scheduler;
    struct fad_work *work = slot->work;
    const uint64_t units = slot->range.launch.range.count;
    struct fad_processor *processor = &scheduler->processors[slot->range.device];
    const struct fad_taken took = fad_processor_took(processor, &slot->range);

    slot->work = NULL;
    scheduler->under_way--;
    work->under_way--;
    fad_flow_ended(scheduler, work);
    add_time(work, &slot->range, processor->device->shared);
    fad_flow_charge(scheduler, work, cost_ns(took.charge_ns) - slot->charged_ns);
    work->units_left -= units;
    fad_cut_correct(work, processor->device, units, took.ns);
    update_load(scheduler, work);
    if (op->status != 0)
        fail(scheduler, work, op->status, op->text);
    settle(scheduler, work);
}

static const struct fad_slot *slot_of(const struct fad_range_op *place)
{
    return fad_container_of(place, struct fad_slot, range);
}

static bool may_run_on(const struct fad_work *work, const struct fad_range_op *place)
{
    if (!(work->is_short ? slot_of(place)->takes_short : slot_of(place)->takes_long))
        return false;
    return !work->kernel->in_order || work->next_unit == 0 || work->stream == place->stream;
}

/* A queue's first work that may run at the place; NULL: none. */
static struct fad_work *runnable(const struct fad_share *share, const struct fad_range_op *place)
{
    const struct fad_queue *queue = fad_container_of(share, struct fad_queue, share);
    struct fad_work *work;

    TAILQ_FOREACH (work, &queue->works, link)
        if (may_run_on(work, place))
            return work;
    return NULL;
}

static bool queue_can_run(struct fad_share *share, const struct fad_range_op *place)
{
    return runnable(share, place) != NULL;
}

static struct fad_ring *ring_of_group(struct fad_share *share, uint32_t device)
{
    return &fad_container_of(share - device, struct fad_group, shares)->rings[device];
}

static int64_t flow_debt_ns(const struct fad_range_op *place)
{
    return slot_of(place)->express ? 0 : FAD_ANY_DEBT;
}

static bool group_can_run(struct fad_share *share, const struct fad_range_op *place)
{
    return fad_ring_can_run(ring_of_group(share, place->device), place, queue_can_run,
                            flow_debt_ns(place));
}

static struct fad_work *next_work(struct fad_scheduler *scheduler, const struct fad_range_op *place)
{
    const uint32_t device = place->device;
    const int64_t debt_ns = slot_of(place)->express ? GROUP_DEBT_NS : FAD_ANY_DEBT;
    struct fad_share *share =
        fad_ring_pick(&scheduler->rings[device], place, group_can_run, debt_ns);

    if (!share)
        return NULL;
    share = fad_ring_pick(ring_of_group(share, device), place, queue_can_run, flow_debt_ns(place));
    return runnable(share, place);
}

static void launch(struct fad_scheduler *scheduler, struct fad_slot *slot, struct fad_work *work)
{
    struct fad_processor *processor = &scheduler->processors[work->device];
    const uint64_t left = work->units - work->next_unit;
    const uint64_t even = fad_cut_units(work, processor->device);
    const uint64_t count = left < even ? left : even;
    const double expected_ns = fad_cut_estimate_ns(work, count);
    int status;

    slot->range.op = (struct fad_op){.done = on_range_done};
    slot->range.kernel = work->kernel;
    slot->range.expected_ns = (uint64_t)expected_ns;
    slot->range.launch = (struct fa_launch){.problem = work->problem,
                                            .tensors = &work->tensors,
                                            .problem_count = 1,
                                            .range = {work->next_unit, count},
                                            .state = work->state,
                                            .stop = &work->stop};
    status = scheduler->backend->ops->launch_range(scheduler->backend, &slot->range);
    if (status != 0) {
        fail(scheduler, work, status, NULL);
        settle(scheduler, work);
        return;
    }
    fad_processor_launched(processor, &slot->range, (double)count * work->guessed_ns,
                           scheduler->now_ns);
    slot->work = work;
    slot->charged_ns = cost_ns(expected_ns);
    fad_flow_charge(scheduler, work, slot->charged_ns);
    work->stream = slot->range.stream;
    scheduler->under_way++;
    work->under_way++;
    fad_flow_began(scheduler, work);
    work->next_unit += count;
    if (work->next_unit == work->units)
        fad_flow_unqueue(scheduler, work);
}

bool fad_scheduler_dispatch(struct fad_scheduler *scheduler, uint64_t now_ns)
{
    const uint32_t before = scheduler->under_way;
    struct fad_work *work;

    scheduler->now_ns = now_ns;
    while ((work = TAILQ_FIRST(&scheduler->deadlines)) && work->deadline_ns <= now_ns)
        fad_scheduler_abandon(scheduler, work, FA_DEADLINE_EXCEEDED);
    for (uint32_t i = 0; i < scheduler->slot_count && scheduler->queued > 0; i++) {
        struct fad_slot *slot = &scheduler->slots[i];
        while (!slot->work && (work = next_work(scheduler, &slot->range)))
            launch(scheduler, slot, work);
    }
    return scheduler->under_way > before;
}
