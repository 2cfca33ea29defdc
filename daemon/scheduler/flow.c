#include "daemon/scheduler/flow.h"

#include "daemon/scheduler/cut.h"

/* So that NORMAL keeps the time of one range. */
static int64_t quantum_ns(enum fa_priority priority)
{
    const int64_t normal = (int64_t)RANGE_NS / FAD_ROUNDS_KEPT;
    return normal * fa_priority_weight(priority) / fa_priority_weight(FA_PRIORITY_NORMAL);
}

void fad_group_init(struct fad_group *group)
{
    for (uint32_t d = 0; d < FAD_DEVICES_MAX; d++) {
        fad_share_init(&group->shares[d], quantum_ns(FA_PRIORITY_NORMAL), 0, 0);
        fad_ring_init(&group->rings[d]);
    }
}

/* A flow begins with the debt of a range: it pays beforehand for the one that it may overdraw when
 * it ends. Else many short-lived connections would keep a long one from its turns. */
void fad_flow_init(struct fad_flow *flow, struct fad_group *group)
{
    flow->group = group;
    for (uint32_t d = 0; d < FAD_DEVICES_MAX; d++) {
        for (uint32_t p = 0; p < FAD_PRIORITIES; p++) {
            struct fad_queue *queue = &flow->queues[d][p];
            fad_share_init(&queue->share, quantum_ns((enum fa_priority)(p + 1)), -(int64_t)RANGE_NS,
                           group->rings[d].round);
            TAILQ_INIT(&queue->works);
        }
    }
}

static struct fad_queue *queue_of(const struct fad_work *work)
{
    return &work->flow->queues[work->device][work->priority - 1];
}

void fad_flow_charge(struct fad_scheduler *scheduler, const struct fad_work *work, int64_t ns)
{
    struct fad_group *group = work->flow->group;

    fad_ring_charge(&group->rings[work->device], &queue_of(work)->share, ns);
    fad_ring_charge(&scheduler->rings[work->device], &group->shares[work->device], ns);
}

void fad_flow_enqueue(struct fad_scheduler *scheduler, struct fad_work *work)
{
    struct fad_group *group = work->flow->group;
    struct fad_queue *queue = queue_of(work);

    if (!group->shares[work->device].list)
        fad_ring_enter(&scheduler->rings[work->device], &group->shares[work->device]);
    if (!queue->share.list)
        fad_ring_enter(&group->rings[work->device], &queue->share);
    TAILQ_INSERT_TAIL(&queue->works, work, link);
    work->queued = true;
    scheduler->queued++;
}

static void leave_if_idle(struct fad_scheduler *scheduler, const struct fad_work *work)
{
    struct fad_group *group = work->flow->group;
    struct fad_queue *queue = queue_of(work);

    if (!queue->share.list || !TAILQ_EMPTY(&queue->works) || queue->passable > 0)
        return;
    fad_ring_leave(&group->rings[work->device], &queue->share);
    if (fad_ring_is_empty(&group->rings[work->device]))
        fad_ring_leave(&scheduler->rings[work->device], &group->shares[work->device]);
}

void fad_flow_unqueue(struct fad_scheduler *scheduler, struct fad_work *work)
{
    struct fad_queue *queue = queue_of(work);

    TAILQ_REMOVE(&queue->works, work, link);
    work->queued = false;
    scheduler->queued--;
    leave_if_idle(scheduler, work);
}

/* Whether works on express streams may take the device from its ranges. */
static bool may_be_passed(const struct fad_scheduler *scheduler, const struct fad_work *work)
{
    return scheduler->backend->devices[work->device].express > 0 && !work->is_short;
}

void fad_flow_began(struct fad_scheduler *scheduler, struct fad_work *work)
{
    if (may_be_passed(scheduler, work))
        queue_of(work)->passable++;
}

void fad_flow_ended(struct fad_scheduler *scheduler, struct fad_work *work)
{
    if (!may_be_passed(scheduler, work))
        return;
    queue_of(work)->passable--;
    leave_if_idle(scheduler, work);
}
