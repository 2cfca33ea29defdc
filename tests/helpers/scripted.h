/* scripted.h: a backend that does as a test says: refuses, fails, holds back or reorders its calls.
 * Two devices with two streams each (a test may give them up to eight), memory of the host's, IPC
 * handles that open malloc'd memory. Ranges run in virtual time, those of a stream one by one.
 * When a test sets base.separate, every range is held to tensors in open OWNED and IPC regions. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include "daemon/backend/backend.h"

enum scripted_call {
    SCRIPTED_OPEN,
    SCRIPTED_CLOSE,
    SCRIPTED_COPY,
    SCRIPTED_LAUNCH,
    SCRIPTED_EVENT,
    SCRIPTED_CALLS
};

struct scripted_held {
    struct fad_op *op;
    enum scripted_call call;
    struct fad_range_op *range;  /* LAUNCH */
    struct fad_region *region;   /* OPEN, CLOSE */
    struct fad_copy *copy;       /* COPY */
    struct fad_event_wait *wait; /* EVENT */
    uint64_t taken_ns, takes_ns; /* LAUNCH: in virtual time */
};

#define SCRIPTED_STREAMS_MAX 8

/* What uncleared memory is full of. */
#define SCRIPTED_POISON 0xa5

struct scripted {
    /* The script: */
    bool hold[SCRIPTED_CALLS];  /* calls wait for scripted_finish */
    int refuse[SCRIPTED_CALLS]; /* the status the call itself returns; 0: it is taken */
    int fail[SCRIPTED_CALLS];   /* the status that done() finds */
    bool polled;                /* what is finished shows at the next poll */
    bool poll_no_more;          /* poll says that the backend will wake the loop by itself */
    uint64_t ipc_size;          /* real size of what an IPC handle opens */
    size_t host_memory;         /* bytes that host_alloc may give at once */
    uint64_t now_ns; /* the virtual time; finishing a range moves it on to the range's end */
    uint64_t (*takes_ns)(const struct fad_range_op *range); /* NULL: 1000 ns a range */

    /* What happened: */
    unsigned calls[SCRIPTED_CALLS];
    unsigned polls;
    const struct fad_region *opened[64]; /* open_regions of them, in any order */
    unsigned open_regions;
    size_t host_used;
    struct scripted_held held[64];
    unsigned held_count;
    uint64_t free_ns[2][SCRIPTED_STREAMS_MAX]; /* when a stream ended its last finished range */

    struct fad_backend base;
    struct fad_device devices[2];
};

/* The one instance, as scripted_reset left it and the test set it since. */
extern struct scripted scripted;
extern const struct fad_backend_ops scripted_ops;

/* Clears script and record. For the pure scheduler, which needs no completion list, this is enough
 * to use scripted.base. */
void scripted_reset(void);

/* Finishes a held call (by its place in held[]): does its work, then done() through the completion
 * list, or at once when there is none. */
void scripted_finish(unsigned index);

/* Which held range ends first, when all that are held run on; and when. False: none is held. */
bool scripted_first_end(unsigned *index, uint64_t *end_ns);

#endif
