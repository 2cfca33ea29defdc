/* user.h: what the connections of one uid have in common: limits, turns, statistics. */
#ifndef FAD_USER_H
#define FAD_USER_H

#include "daemon/connection/statistics.h"
#include "daemon/scheduler/scheduler.h"
#include "daemon/util/account.h"

#include <sys/types.h>

/* Users without connections that are remembered, for their statistics. */
#define FAD_USERS_IDLE_MAX 64

struct fad_connection;

struct fad_user {
    TAILQ_ENTRY(fad_user) link;
    uid_t uid;
    uint32_t connections; /* that hold it; those refused for their number, too */
    struct fad_account account;
    struct fad_group group;
    TAILQ_HEAD(fad_copying, fad_connection) copying; /* connections with transfers that wait */
    uint32_t copies;                                 /* of transfers, under way */
    struct fad_tally tally; /* of all connections it ever had, while it is remembered */
};

/* Users with connections, and as many of those without that were seen last as there is room for. */
struct fad_users {
    TAILQ_HEAD(fad_user_list, fad_user) list; /* seen last, first */
    uint32_t idle;                            /* without connections */
    struct fad_account *parent;
    struct fad_amounts limit; /* of one user */
};

void fad_users_init(struct fad_users *users, struct fad_account *parent,
                    const struct fad_amounts *limit);

/* No connection may be left. */
void fad_users_deinit(struct fad_users *users);

/* Remembers a user that has no connections, as the one seen last. False: no memory. It must not be
 * there yet, and there must be fewer than FAD_USERS_IDLE_MAX. */
bool fad_user_remember(struct fad_users *users, uid_t uid, const struct fad_tally *tally);

/* The user of a new connection, to be given back with fad_user_put. NULL: no memory. */
struct fad_user *fad_user_get(struct fad_users *users, uid_t uid);
void fad_user_put(struct fad_users *users, struct fad_user *user);

#endif
