/* account.h: what a connection, a uid and the whole daemon hold, against their limits.
 *
 * Accounts form a chain: a connection's, its uid's, the daemon's. A charge must fit every account
 * of the chain, or none is charged. A connection may moreover hold no more than half of what the
 * other connections of its uid leave, so that one that takes all it can does not shut its
 * neighbours out. */
#ifndef FAD_ACCOUNT_H
#define FAD_ACCOUNT_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>

enum fad_resource {
    FAD_JOBS,        /* forwards, region writes and reads, admitted and without a sent reply */
    FAD_STAGED,      /* bytes of the daemon's memory: payloads, inline outputs, scratch, copies */
    FAD_MAPPED,      /* bytes of clients' memory mapped, and of the daemon's held for them */
    FAD_REGIONS,     /* registered or allocated */
    FAD_CONNECTIONS, /* of a uid, and of all */
    FAD_RESOURCES
};

struct fad_amounts {
    uint64_t of[FAD_RESOURCES];
};

struct fad_account {
    char name[24]; /* "the connection", for the text of a refusal */
    struct fad_account *parent;
    bool halves; /* holds at most half of what others leave of the parent's limit */
    struct fad_amounts used;
    struct fad_amounts limit;
};

/* An account that holds nothing. parent NULL: the chain's end. halves only with a parent. */
void fad_account_init(struct fad_account *account, const char *name, struct fad_account *parent,
                      bool halves, const struct fad_amounts *limit);

/* Charges the whole chain, or nothing: then FA_RESOURCE_EXHAUSTED, the text naming the limit. */
enum fa_status fad_account_charge(struct fad_account *account, const struct fad_amounts *amounts,
                                  struct fa_error *error);

/* Gives back what was charged, on the whole chain. */
void fad_account_release(struct fad_account *account, const struct fad_amounts *amounts);

/* Asserts that nothing is held any more. */
void fad_account_deinit(struct fad_account *account);

#endif
