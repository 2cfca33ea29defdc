/* job.h: one admitted forward pass, from its payload's first byte to its result.
 *
 *     RECEIVING -> OPENING -> RUNNING -> CLOSING -> DONE -> freed
 *
 * A job owns its payload, its output, its descriptor and the regions it opened, and what they were
 * charged; it uses those of its connection that its tensors lie in.
 * done() tells its owner (handle_forward.c) that the result is known and that nothing but the
 * output is held any more; the owner then makes the reply and frees the job. */
#ifndef FAD_JOB_H
#define FAD_JOB_H

#include "daemon/connection/engine.h"
#include "daemon/connection/memfd.h"
#include "daemon/connection/pending.h"
#include "daemon/connection/request.h"
#include "daemon/util/account.h"

enum fad_job_state {
    FAD_JOB_RECEIVING, /* the payload is being read */
    FAD_JOB_OPENING,   /* regions are being opened */
    FAD_JOB_RUNNING,   /* with the scheduler */
    FAD_JOB_CLOSING,   /* status and output stand; regions are being closed */
    FAD_JOB_DONE       /* done() was called */
};

/* A region that the job opened, and the call under way on it. */
struct fad_job_region {
    struct fad_op op;
    struct fad_job *job;
    struct fad_region region;
    bool open;
};

struct fad_job {
    struct fad_pending pending;
    void (*done)(struct fad_job *job);
    struct fad_engine *engine;
    struct fad_account *account;
    struct fad_amounts charge;

    enum fad_job_state state;
    enum fa_status abandoned; /* FA_OK: it is not */
    struct fad_request request;
    struct fa_choice choice;
    uint32_t device;
    struct fad_flow *flow; /* its connection's turns */
    void *payload;
    uint64_t payload_size;
    void *output;
    struct fad_job_region regions[FAD_TENSORS + 1];
    uint32_t region_count;
    int region_of[FAD_TENSORS]; /* index into regions; -1: not there */
    int state_region;           /* index of the kernel's state; -1: it has none */
    uint32_t calls;             /* region calls under way */
    struct fad_work work;

    struct fa_error error; /* status FA_OK: success */
    uint64_t header_ns;    /* the frame's header and message were there */
    uint64_t ready_ns;     /* all data was there */
    uint64_t done_ns;
};

/* Chooses what will run a request and where: the device that its tensors' memory fixes, else the
 * least loaded. Any status but FA_OK names the field at fault. */
enum fa_status fad_job_place(struct fad_engine *engine, const struct fad_request *request,
                             uint32_t *device, struct fa_choice *choice, struct fa_error *error);

/* Admits a checked and placed request: charges the account, allocates payload and output. The job
 * takes the memfd's descriptor on success only. On any status but FA_OK *error tells why and
 * nothing is held. The caller then sets pending and done, has the payload filled, and calls
 * fad_job_start or fad_job_abandon. */
enum fa_status fad_job_new(struct fad_job **out, struct fad_engine *engine,
                           struct fad_account *account, const struct fad_request *request,
                           uint32_t device, const struct fa_choice *choice, uint64_t payload_size,
                           const struct fad_memfd *memfd, struct fa_error *error);

/* The payload is there: runs the job, in its connection's turns. done() may be called from
 * inside. */
void fad_job_start(struct fad_job *job, struct fad_flow *flow);

/* Ends it as soon as can be, whatever it has reached, with the status (FA_CANCELLED: nobody wants
 * the result any more). done() follows, at once if nothing is under way. Not in state DONE. */
void fad_job_abandon(struct fad_job *job, enum fa_status status);

/* Takes the output from a job that is DONE, with the part of its charge that keeps the reply: one
 * job and the output's bytes. NULL when there is none. Freed by the backend's host_free. */
void *fad_job_take_output(struct fad_job *job, struct fad_amounts *charge);

/* Frees a job that is DONE and gives back what is left of its charge. */
void fad_job_free(struct fad_job *job);

#endif
