/* account.h: what a connection and the whole daemon hold, against their limits.
 *
 * Accounts form a chain (a connection's, then the daemon's). A charge must fit every account of the
 * chain or none is charged. */
#ifndef FAD_ACCOUNT_H
#define FAD_ACCOUNT_H

#include "proto/fa_status.h"

#include <stdint.h>

enum fad_resource {
    FAD_JOBS,   /* forwards admitted and without a sent reply */
    FAD_STAGED, /* bytes of the daemon's memory: payloads, inline outputs, scratch */
    FAD_MAPPED, /* bytes of clients' memory mapped */
    FAD_RESOURCES
};

struct fad_amounts {
    uint64_t of[FAD_RESOURCES];
};

struct fad_account {
    const char *name; /* "connection", for the text of a refusal */
    struct fad_account *parent;
    struct fad_amounts used;
    struct fad_amounts limit;
};

/* An account that holds nothing. parent NULL: the chain's end. */
void fad_account_init(struct fad_account *account, const char *name, struct fad_account *parent,
                      const struct fad_amounts *limit);

/* Charges the whole chain, or nothing: then FA_RESOURCE_EXHAUSTED, the text naming the limit. */
enum fa_status fad_account_charge(struct fad_account *account, const struct fad_amounts *amounts,
                                  struct fa_error *error);

/* Gives back what was charged, on the whole chain. */
void fad_account_release(struct fad_account *account, const struct fad_amounts *amounts);

/* Asserts that nothing is held any more. */
void fad_account_deinit(struct fad_account *account);

#endif
