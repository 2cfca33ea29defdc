/* handle_stats.c: answers a Stats from what the service's lists hold. */
#include "daemon/connection/handlers.h"
#include "daemon/connection/stats_reply.h"
#include "daemon/connection/user.h"
#include "daemon/util/log.h"

/* What others do is for root only. */
static bool may_see(const struct fad_connection *asking, uid_t uid)
{
    return asking->uid == 0 || asking->uid == uid;
}

static bool put_user(struct fad_stats_reply *reply, const struct fad_user *user)
{
    return fad_stats_put_user(reply, &(struct fad_stats_party){.uid = (uint32_t)user->uid,
                                                               .tally = &user->tally,
                                                               .account = &user->account});
}

/* Those that have connections, or those that have none. */
static void put_users(struct fad_stats_reply *reply, const struct fad_connection *asking,
                      bool connected)
{
    const struct fad_user *user;

    TAILQ_FOREACH (user, &asking->service->users->list, link)
        if (may_see(asking, user->uid) && (user->connections > 0) == connected &&
            !put_user(reply, user))
            return;
}

static bool put_client(struct fad_stats_reply *reply, const struct fad_connection *connection)
{
    return fad_stats_put_client(reply, &(struct fad_stats_party){.connection = connection->number,
                                                                 .uid = (uint32_t)connection->uid,
                                                                 .pid = (uint32_t)connection->pid,
                                                                 .tally = &connection->tally,
                                                                 .account = &connection->account});
}

/* The list is in the order of the connections' numbers. */
static void put_clients(struct fad_stats_reply *reply, const struct fad_connection *asking,
                        uint64_t after)
{
    const struct fad_connection *connection;

    TAILQ_FOREACH (connection, asking->service->connections, link)
        if (connection->number > after && may_see(asking, connection->uid) &&
            !put_client(reply, connection))
            return;
}

enum fa_status fad_handle_stats(struct fad_connection *connection, struct fad_message *message,
                                struct fa_error *error)
{
    /* Large, and one at a time on the one loop thread. */
    static struct fad_stats_reply stats;
    const struct fad_service *service = connection->service;
    Fad__Reply reply = fad_reply_ok();
    const Fad__Stats *asked;

    if (fad_expect_bare(message, error) != FA_OK)
        return error->status;
    asked =
        fad__stats__unpack(fad_message_allocator(), message->frame.message_length, message->bytes);
    if (!asked)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "message", "not a Stats");
    fad_stats_reply_init(&stats, uv_hrtime() - service->statistics->started_ns, service->account,
                         fad_log_held());
    if (asked->after == 0) {
        fad_stats_put_versions(&stats, service->statistics);
        put_users(&stats, connection, true);
        put_users(&stats, connection, false); /* the list has those seen last first */
    }
    put_clients(&stats, connection, asked->after);
    reply.stats = &stats.message;
    fad_connection_reply(connection, FA_FRAME_STATS, message->frame.id, &reply, NULL, 0, NULL);
    return FA_OK;
}
