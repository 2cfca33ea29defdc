#include "daemon/connection/user.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

void fad_users_init(struct fad_users *users, struct fad_account *parent,
                    const struct fad_amounts *limit)
{
    *users = (struct fad_users){.parent = parent, .limit = *limit};
    TAILQ_INIT(&users->list);
}

static void forget(struct fad_users *users, struct fad_user *user)
{
    assert(user->connections == 0);
    fad_account_deinit(&user->account);
    TAILQ_REMOVE(&users->list, user, link);
    users->idle--;
    free(user);
}

void fad_users_deinit(struct fad_users *users)
{
    struct fad_user *user, *next;

    for (user = TAILQ_FIRST(&users->list); user; user = next) {
        next = TAILQ_NEXT(user, link);
        forget(users, user);
    }
}

static struct fad_user *find(struct fad_users *users, uid_t uid)
{
    struct fad_user *user;
    TAILQ_FOREACH (user, &users->list, link)
        if (user->uid == uid)
            return user;
    return NULL;
}

static struct fad_user *make(struct fad_users *users, uid_t uid)
{
    struct fad_user *user = calloc(1, sizeof *user);
    char name[sizeof user->account.name];

    if (!user)
        return NULL;
    user->uid = uid;
    snprintf(name, sizeof name, "uid %u", (unsigned)uid);
    fad_account_init(&user->account, name, users->parent, false, &users->limit);
    fad_group_init(&user->group);
    TAILQ_INIT(&user->copying);
    TAILQ_INSERT_HEAD(&users->list, user, link);
    users->idle++;
    return user;
}

bool fad_user_remember(struct fad_users *users, uid_t uid, const struct fad_tally *tally)
{
    struct fad_user *user;

    assert(!find(users, uid) && users->idle < FAD_USERS_IDLE_MAX);
    if (!(user = make(users, uid)))
        return false;
    user->tally = *tally;
    return true;
}

static void forget_oldest_idle(struct fad_users *users)
{
    struct fad_user *user = TAILQ_LAST(&users->list, fad_user_list);

    while (user->connections > 0)
        user = TAILQ_PREV(user, fad_user_list, link);
    forget(users, user);
}

struct fad_user *fad_user_get(struct fad_users *users, uid_t uid)
{
    struct fad_user *user = find(users, uid);

    if (!user && !(user = make(users, uid)))
        return NULL;
    if (user->connections++ == 0)
        users->idle--;
    TAILQ_REMOVE(&users->list, user, link);
    TAILQ_INSERT_HEAD(&users->list, user, link);
    return user;
}

void fad_user_put(struct fad_users *users, struct fad_user *user)
{
    if (--user->connections > 0)
        return;
    TAILQ_REMOVE(&users->list, user, link);
    TAILQ_INSERT_HEAD(&users->list, user, link);
    if (++users->idle > FAD_USERS_IDLE_MAX)
        forget_oldest_idle(users);
}
