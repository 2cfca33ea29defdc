/* job.h: one admitted forward pass, from its payload's first byte to its result.
 *
 *     RECEIVING -> PREPARING -> RUNNING -> RETURNING -> CLOSING -> DONE -> freed
 *
 * A job owns its payload, its output, its descriptor and the regions it opened, and what they were
 * charged; it uses those of its connection that its tensors lie in. Where the device reaches its
 * own memory only, tensors elsewhere are copied there and back: staging.h. It waits for its
 * client's events: events.h.
 * One that fails or is abandoned goes to CLOSING as soon as none of its calls is under way any
 * more, from any state. Abandoned while RECEIVING, it awaits them in PREPARING.
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
    FAD_JOB_RECEIVING, /* the payload is being read, and copied to the device */
    FAD_JOB_PREPARING, /* regions are being opened, inputs copied to the device, events awaited */
    FAD_JOB_RUNNING,   /* with the scheduler */
    FAD_JOB_RETURNING, /* outputs are being copied from the device */
    FAD_JOB_CLOSING,   /* status and output stand; regions are being closed */
    FAD_JOB_DONE       /* done() was called */
};

/* A region that the job opened, and the call under way on it. */
struct fad_job_region {
    struct fad_op op;
    struct fad_job *job;
    struct fad_region region;
    bool given; /* to the backend, and with it the descriptor */
    bool open;
};

struct fad_events;  /* events.h */
struct fad_staging; /* staging.h */

struct fad_job {
    struct fad_pending pending;
    void (*done)(struct fad_job *job);
    struct fad_engine *engine;
    struct fad_account *account;
    struct fad_amounts charge;

    enum fad_job_state state;
    enum fa_status abandoned;   /* FA_OK: it is not */
    struct fad_request request; /* strides of staged tensors as in the image */
    struct fa_choice choice;
    uint32_t device;
    struct fad_flow *flow; /* its connection's turns */
    void *payload;
    uint64_t payload_size;
    void *output;
    struct fad_job_region regions[FAD_TENSORS + 2];
    uint32_t region_count;
    int region_of[FAD_TENSORS];  /* index into regions; -1: not there */
    int state_region;            /* index of the kernel's state; -1: it has none */
    int image_region;            /* index of staged tensors' memory; -1: none is staged */
    struct fad_staging *staging; /* NULL: none is */
    struct fad_events *events;   /* NULL: there are none to wait for */
    uint32_t calls;              /* the backend's, under way; ranges are the scheduler's */
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
 * nothing is held. The caller then sets pending and done, calls fad_job_begin, has the payload
 * filled, and calls fad_job_start or fad_job_abandon. */
enum fa_status fad_job_new(struct fad_job **out, struct fad_engine *engine,
                           struct fad_account *account, const struct fad_request *request,
                           uint32_t device, const struct fa_choice *choice, uint64_t payload_size,
                           const struct fad_memfd *memfd, struct fa_error *error);

/* The payload is about to come. */
void fad_job_begin(struct fad_job *job);

/* So many bytes of the payload are there, of more. */
void fad_job_progress(struct fad_job *job, uint64_t bytes);

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

/* --- For staging.c and events.c -------------------------------------------------------------- */

/* Something of it went wrong: no more is begun, and with this status (of the backend's, < 0 too) it
 * will end. The first one counts. text may be NULL. */
void fad_job_fail(struct fad_job *job, int status, const char *field, const char *text);

static inline bool fad_job_goes_on(const struct fad_job *job)
{
    return job->error.status == FA_OK && job->abandoned == FA_OK;
}

/* One of job->calls has ended, and what follows from its end has been begun. */
void fad_job_call_ended(struct fad_job *job);

/* When the request's time is up, on the clock of uv_hrtime(); 0: never. */
uint64_t fad_job_deadline(const struct fad_job *job);

#endif
