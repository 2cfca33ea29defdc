/* events.h: a job's waits for its client's CUDA events: its tensors are neither read nor written
 * before they have happened. */
#ifndef FAD_EVENTS_H
#define FAD_EVENTS_H

#include "daemon/connection/job.h"

/* Finds the events of the job's request, each once. False: no memory. */
bool fad_events_plan(struct fad_job *job);

/* Begins the waits, from job->ready_ns on: for FAD_EVENT_PATIENCE_NS, or to the job's deadline. */
void fad_events_begin(struct fad_job *job);

#define FAD_EVENT_PATIENCE_NS 10000000000u

/* Have all happened? */
bool fad_events_happened(const struct fad_job *job);

/* Nobody waits any more: what is under way ends soon. */
void fad_events_give_up(struct fad_job *job);

#endif
