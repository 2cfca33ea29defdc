/* staging.h: a job's tensors that lie in host memory (inline, in a memfd or a region of one), where
 * the backend's kernels reach the device's only.
 *
 * They get places in one allocation on the device, the job's image: the payload as it is at its
 * start, then what lies elsewhere, each at a multiple of 64. Inputs are copied there, the payload
 * while it still arrives, and outputs copied from there. A tensor whose span is no longer than its
 * elements keeps its strides and is copied as it lies; of others only the elements are, and the
 * kernel finds and leaves them packed. Between an output's elements nothing is touched. */
#ifndef FAD_STAGING_H
#define FAD_STAGING_H

#include "daemon/connection/job.h"

/* Plans the image of a job whose request, device and kernel are set, in job->staging, and gives the
 * staged tensors the strides that they have there. False: no memory. */
bool fad_staging_plan(struct fad_job *job);

/* The bytes of the image; 0: there is none. UINT64_MAX: more than any memory has. */
uint64_t fad_staging_size(const struct fad_job *job);

/* The place in the open image of a tensor that has elements; NULL when it is not staged. */
void *fad_staging_address(const struct fad_job *job, enum fad_tensor tensor);

/* So many bytes of the payload are where they belong. */
void fad_staging_arrived(struct fad_job *job, uint64_t bytes);

/* Gives the backend what copies of inputs can be made by now. To be called after whatever may let
 * one begin: an opening, an event, the complete frame. */
void fad_staging_advance(struct fad_job *job);

/* Gives the backend the copies of the outputs. False: none is under way. */
bool fad_staging_return(struct fad_job *job);

/* When all inputs were on the device, and how long copying took besides receiving. */
uint64_t fad_staging_ready_ns(const struct fad_job *job);
uint64_t fad_staging_copying_ns(const struct fad_job *job);

#endif
