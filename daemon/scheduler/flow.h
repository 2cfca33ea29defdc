/* flow.h: the scheduler's bookkeeping of whose work waits: flows in their group's ring, groups in
 * the device's (scheduler.h has the objects). */
#ifndef FAD_FLOW_H
#define FAD_FLOW_H

#include "daemon/scheduler/scheduler.h"

/* The work's flow and group take so much time; ns < 0: give it back. */
void fad_flow_charge(struct fad_scheduler *scheduler, const struct fad_work *work, int64_t ns);

/* The work has ranges to launch, and has none any more. */
void fad_flow_enqueue(struct fad_scheduler *scheduler, struct fad_work *work);
void fad_flow_unqueue(struct fad_scheduler *scheduler, struct fad_work *work);

/* A range of the work is under way, and has ended. While one is that short works may pass, the flow
 * and its group stay in their rings: else who sends those would have all rounds, and the range no
 * time to end. */
void fad_flow_began(struct fad_scheduler *scheduler, struct fad_work *work);
void fad_flow_ended(struct fad_scheduler *scheduler, struct fad_work *work);

#endif
