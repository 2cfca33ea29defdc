/* handover.h: what a daemon that starts anew (loss.h) leaves to its successor: the program that it
 * executes in its own place, with the same process id.
 *
 * Descriptors stay open over the exec, and $FAD_HANDOVER says which is what, whose it is, and what
 * else goes on. It names the process that it is for: one that leaked into another's environment
 * is ignored. */
#ifndef FAD_HANDOVER_H
#define FAD_HANDOVER_H

#include "daemon/server/listener.h"

#include <stdbool.h>
#include <stdint.h>

/* The daemon starts anew after so many losses within so long; after one more it gives up. */
#define FAD_LOSSES_MAX       5
#define FAD_LOSSES_WITHIN_NS ((uint64_t)60 * 1000000000u)

/* When the device was lost, on the clock of uv_hrtime(), which an exec leaves alone. */
struct fad_losses {
    uint64_t count;                  /* all of them */
    uint64_t recent[FAD_LOSSES_MAX]; /* the last ones, newest first; 0: none */
};

/* Notes one. False when that is one too many to go on. */
bool fad_losses_note(struct fad_losses *losses, uint64_t now_ns);

struct fad_handover {
    bool taken; /* there was one: the rest is set */
    struct fad_listener_handle listener;
    int counters;             /* carried.h's descriptor; -1: none */
    uint64_t next_connection; /* the number that the next one gets */
    struct fad_losses losses;
    char backend[16]; /* the one that was found, by its own name */
};

/* Takes the handover for this process out of the environment, where it leaves none. Without one, or
 * with one that makes no sense (the log has a line), taken is false. Call it before there are
 * threads. */
void fad_handover_take(struct fad_handover *handover);

/* Executes this program anew, with the argv. Only the descriptors of the handover stay open.
 * Returns only when it failed, with a negative errno; then all is close-on-exec as before. */
int fad_handover_exec(const struct fad_handover *handover, char *const argv[]);

#endif
