#include "daemon/scheduler/ring.h"

#include <assert.h>

void fad_ring_init(struct fad_ring *ring)
{
    TAILQ_INIT(&ring->sparse);
    TAILQ_INIT(&ring->steady);
    ring->round = 0;
}

bool fad_ring_is_empty(const struct fad_ring *ring)
{
    return TAILQ_EMPTY(&ring->sparse) && TAILQ_EMPTY(&ring->steady);
}

void fad_share_init(struct fad_share *share, int64_t quantum_ns, int64_t balance_ns, uint64_t round)
{
    assert(quantum_ns > 0);
    *share = (struct fad_share){.quantum_ns = quantum_ns, .balance_ns = balance_ns, .round = round};
}

/* Rounds may be any number. A balance beyond what is kept is one that was charged too much before:
 * it stays. */
static void give(struct fad_share *share, uint64_t rounds)
{
    const int64_t kept = FAD_ROUNDS_KEPT * share->quantum_ns;

    if (share->balance_ns >= kept)
        return;
    if (rounds > (uint64_t)((kept - share->balance_ns) / share->quantum_ns))
        share->balance_ns = kept;
    else
        share->balance_ns += (int64_t)rounds * share->quantum_ns;
}

void fad_ring_enter(struct fad_ring *ring, struct fad_share *share)
{
    assert(!share->list);
    give(share, ring->round - share->round);
    share->list = share->balance_ns > 0 ? &ring->sparse : &ring->steady;
    TAILQ_INSERT_TAIL(share->list, share, link);
}

void fad_ring_leave(struct fad_ring *ring, struct fad_share *share)
{
    assert(share->list);
    TAILQ_REMOVE(share->list, share, link);
    share->list = NULL;
    share->round = ring->round;
}

void fad_ring_charge(struct fad_ring *ring, struct fad_share *share, int64_t ns)
{
    const bool had_time = share->balance_ns > 0;

    share->balance_ns -= ns;
    if (!share->list || had_time == (share->balance_ns > 0))
        return;
    TAILQ_REMOVE(share->list, share, link);
    share->list = &ring->steady;
    if (had_time)
        TAILQ_INSERT_TAIL(&ring->steady, share, link);
    else
        TAILQ_INSERT_HEAD(&ring->steady, share, link); /* its turn was not over */
}

static bool any_can_run(const struct fad_shares *shares, const struct fad_range_op *place,
                        fad_share_can_run *can_run)
{
    struct fad_share *share;

    for (share = TAILQ_FIRST(shares); share; share = TAILQ_NEXT(share, link))
        if (can_run(share, place))
            return true;
    return false;
}

static struct fad_share *first_with_time(const struct fad_shares *shares,
                                         const struct fad_range_op *place,
                                         fad_share_can_run *can_run)
{
    struct fad_share *share;

    for (share = TAILQ_FIRST(shares); share; share = TAILQ_NEXT(share, link)) {
        if (share->balance_ns <= 0)
            break;
        if (can_run(share, place))
            return share;
    }
    return NULL;
}

static struct fad_share *find(const struct fad_ring *ring, const struct fad_range_op *place,
                              fad_share_can_run *can_run)
{
    struct fad_share *share = first_with_time(&ring->sparse, place, can_run);
    return share ? share : first_with_time(&ring->steady, place, can_run);
}

/* Of those without time left. */
static struct fad_share *find_in_debt(const struct fad_ring *ring, const struct fad_range_op *place,
                                      fad_share_can_run *can_run, int64_t debt_ns)
{
    struct fad_share *share;

    for (share = TAILQ_FIRST(&ring->steady); share; share = TAILQ_NEXT(share, link))
        if (share->balance_ns <= 0 && share->balance_ns > -debt_ns && can_run(share, place))
            return share;
    return NULL;
}

static bool anybody_has_time(const struct fad_ring *ring)
{
    const struct fad_share *first = TAILQ_FIRST(&ring->steady);
    return !TAILQ_EMPTY(&ring->sparse) || (first && first->balance_ns > 0);
}

/* The fewest rounds after which the turn is somebody's who can run; or, with a limit to debts, also
 * after which somebody else has time left. 0: nobody can run. */
static uint64_t rounds_needed(const struct fad_ring *ring, const struct fad_range_op *place,
                              fad_share_can_run *can_run, int64_t debt_ns)
{
    const bool limited = debt_ns != FAD_ANY_DEBT;
    struct fad_share *share;
    uint64_t least = 0;
    bool any = false;

    for (share = TAILQ_FIRST(&ring->steady); share; share = TAILQ_NEXT(share, link)) {
        int64_t missing_ns = -share->balance_ns;
        bool can;
        if (missing_ns < 0)
            continue; /* it cannot run here, or it had been found */
        if (!limited && least > 0 && missing_ns >= (int64_t)least * share->quantum_ns)
            continue;
        can = can_run(share, place);
        any |= can;
        if (limited && can)
            missing_ns -= debt_ns;
        if ((can || limited) && (least == 0 || missing_ns < (int64_t)least * share->quantum_ns))
            least = (uint64_t)(missing_ns / share->quantum_ns) + 1;
    }
    return any ? least : 0;
}

static void give_all(struct fad_ring *ring, uint64_t rounds)
{
    struct fad_share *last = TAILQ_LAST(&ring->steady, fad_shares), *share, *next;

    ring->round += rounds;
    for (share = TAILQ_FIRST(&ring->sparse); share; share = TAILQ_NEXT(share, link))
        give(share, rounds);
    for (share = TAILQ_FIRST(&ring->steady); share; share = next) {
        next = share == last ? NULL : TAILQ_NEXT(share, link);
        give(share, rounds);
        if (share->balance_ns > 0)
            continue;
        TAILQ_REMOVE(&ring->steady, share, link);
        TAILQ_INSERT_TAIL(&ring->steady, share, link);
    }
}

struct fad_share *fad_ring_pick(struct fad_ring *ring, const struct fad_range_op *place,
                                fad_share_can_run *can_run, int64_t debt_ns)
{
    const bool limited = debt_ns != FAD_ANY_DEBT;
    struct fad_share *share = find(ring, place, can_run);
    uint64_t rounds;

    if (!share && limited)
        share = find_in_debt(ring, place, can_run, debt_ns);
    if (share || (limited && anybody_has_time(ring)))
        return share;
    rounds = rounds_needed(ring, place, can_run, debt_ns);
    if (rounds == 0)
        return NULL;
    give_all(ring, rounds);
    share = find(ring, place, can_run);
    return share || !limited ? share : find_in_debt(ring, place, can_run, debt_ns);
}

bool fad_ring_can_run(struct fad_ring *ring, const struct fad_range_op *place,
                      fad_share_can_run *can_run, int64_t debt_ns)
{
    if (debt_ns != FAD_ANY_DEBT)
        return fad_ring_pick(ring, place, can_run, debt_ns) != NULL;
    return any_can_run(&ring->sparse, place, can_run) || any_can_run(&ring->steady, place, can_run);
}
