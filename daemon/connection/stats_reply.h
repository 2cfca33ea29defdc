/* stats_reply.h: puts a StatsReply together, within what a message and an arena hold.
 *
 * fad_stats_reply_init; for the first page fad_stats_put_versions and fad_stats_put_user; then
 * fad_stats_put_client, each until it says that there is no more room. Then reply->message is the
 * message, good until the next init. */
#ifndef FAD_STATS_REPLY_H
#define FAD_STATS_REPLY_H

#include "daemon/connection/statistics.h"
#include "daemon/util/account.h"
#include "fad.pb-c.h"

#include <stdbool.h>

/* At most in one reply; fewer where many kinds of errors make them large. */
#define FAD_STATS_CLIENTS_MAX 32
#define FAD_STATS_USERS_MAX   64

/* A connection, or a user (connection and pid 0). */
struct fad_stats_party {
    uint64_t connection;
    uint32_t uid;
    uint32_t pid;
    const struct fad_tally *tally;
    const struct fad_account *account;
};

struct fad_stats_counters {
    Fad__Counters message;
    Fad__StatusCount errors[FAD_STATUS_COUNTS], *error_list[FAD_STATUS_COUNTS];
};

/* Large (160 KB), for one at a time. */
struct fad_stats_reply {
    Fad__StatsReply message;
    size_t unpacked; /* bytes of an arena that it takes, at most */
    Fad__Usage daemon;

    struct fad_stats_version {
        Fad__VersionStats message;
        struct fad_stats_counters counters;
        Fad__Latency queue, transfer, kernel, total;
    } versions[FAD_STATISTICS_ROWS_MAX];
    Fad__VersionStats *version_list[FAD_STATISTICS_ROWS_MAX];

    struct fad_stats_entry {
        Fad__ClientStats message;
        struct fad_stats_counters counters;
        Fad__Latency total;
        Fad__Usage usage;
    } clients[FAD_STATS_CLIENTS_MAX], users[FAD_STATS_USERS_MAX];
    Fad__ClientStats *client_list[FAD_STATS_CLIENTS_MAX], *user_list[FAD_STATS_USERS_MAX];
};

/* A reply with what the daemon holds; lists are empty. */
void fad_stats_reply_init(struct fad_stats_reply *reply, uint64_t uptime_ns,
                          const struct fad_account *daemon, uint64_t log_lines_held);

/* Adds the rows that have requests. */
void fad_stats_put_versions(struct fad_stats_reply *reply, const struct fad_statistics *statistics);

/* Adds a user; false when there is no room for it that would leave room for a client. */
bool fad_stats_put_user(struct fad_stats_reply *reply, const struct fad_stats_party *user);

/* Adds a client; false, and more_clients is set, when there is no room for it. There is for the
 * first. */
bool fad_stats_put_client(struct fad_stats_reply *reply, const struct fad_stats_party *client);

#endif
