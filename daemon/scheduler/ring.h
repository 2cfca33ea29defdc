/* ring.h: turns in device time among those who share a device: deficit round robin.
 *
 * Everyone in a ring is given a quantum at the same time: a round, which comes when nobody that can
 * run has time left, so that a device never waits for one who cannot. Work is charged when it goes
 * out and corrected when it is done, so a balance may go below 0. Debts are kept whole, also of one
 * that is out of the ring; time left is kept up to FAD_ROUNDS_KEPT quanta, for one who asks little
 * to have it at once. So whoever pauses finds on return what it would have had by waiting: over any
 * time nobody is given more than a quantum a round and those kept, and whoever always has work is
 * given exactly a quantum a round.
 *
 * Where the device prefers what runs at a place (fad_device.express), one who runs there without
 * time left would take the device from whoever has some and waits for a place of another kind. No
 * rounds come for the sake of such a place while anybody with work has time left: that one's next
 * range is charged first, but for those whose debt is small.
 *
 * A quantum is short, and several rounds may come at once: turns then change after each range, also
 * among many with small jobs. */
#ifndef FAD_RING_H
#define FAD_RING_H

#include "daemon/backend/backend.h"

#define FAD_ROUNDS_KEPT 16

/* For places that are not preferred: who has no time left waits only for those who have some and
 * can run there. */
#define FAD_ANY_DEBT INT64_MAX

/* Somebody's place in a ring. */
struct fad_share {
    TAILQ_ENTRY(fad_share) link;
    struct fad_shares *list; /* the one of the ring's that it is in; NULL: it has no work */
    int64_t balance_ns;      /* device time it may still take; < 0: a debt */
    int64_t quantum_ns;      /* what a round gives */
    uint64_t round;          /* of the ring, when it left */
};

TAILQ_HEAD(fad_shares, fad_share);

struct fad_ring {
    struct fad_shares sparse; /* came with time left and have some: they go first */
    struct fad_shares steady; /* in the order of their turns: with time left, then without */
    uint64_t round;
};

/* Whether the share has work that may run at the place. */
typedef bool fad_share_can_run(struct fad_share *share, const struct fad_range_op *place);

void fad_ring_init(struct fad_ring *ring);
bool fad_ring_is_empty(const struct fad_ring *ring);

/* A share out of the ring that begins with the balance, as if it had left the ring at the round. */
void fad_share_init(struct fad_share *share, int64_t quantum_ns, int64_t balance_ns,
                    uint64_t round);

/* The share has work now, and has none any more. */
void fad_ring_enter(struct fad_ring *ring, struct fad_share *share);
void fad_ring_leave(struct fad_ring *ring, struct fad_share *share);

/* Takes time from a share, in the ring or not; < 0: gives back. */
void fad_ring_charge(struct fad_ring *ring, struct fad_share *share, int64_t ns);

/* Whether fad_ring_pick would find anybody. With a limit to debts it may give rounds, as that
 * does. */
bool fad_ring_can_run(struct fad_ring *ring, const struct fad_range_op *place,
                      fad_share_can_run *can_run, int64_t debt_ns);

/* Whose turn it is at the place; NULL: nobody's, since nobody in the ring can run there, or those
 * who can owe debt_ns or more while somebody who cannot has time left. */
struct fad_share *fad_ring_pick(struct fad_ring *ring, const struct fad_range_op *place,
                                fad_share_can_run *can_run, int64_t debt_ns);

#endif
