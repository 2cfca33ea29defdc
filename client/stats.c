/* stats.c: the daemon's statistics, fetched page by page. */
#include "client/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Far more than a daemon has. */
#define CLIENTS_MAX 65536u

/* --- Parts of a reply; absent ones are all zeroes --------------------------------------------- */

/* False when a time is none: negative, infinite or NaN. */
static bool take_latency(struct fa_latency *to, const Fad__Latency *from)
{
    *to = (struct fa_latency){0};
    if (!from)
        return true;
    const double times[] = {from->mean_us, from->p50_us,  from->p90_us,
                            from->p99_us,  from->p999_us, from->max_us};

    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        if (!isfinite(times[i]) || times[i] < 0)
            return false;
    *to = (struct fa_latency){from->count, times[0], times[1], times[2],
                              times[3],    times[4], times[5]};
    return true;
}

static void take_usage(struct fa_usage *to, const Fad__Usage *from)
{
    *to = (struct fa_usage){0};
    if (!from)
        return;
    *to = (struct fa_usage){
        .connections = from->connections,
        .connections_limit = from->connections_limit,
        .jobs = from->jobs,
        .jobs_limit = from->jobs_limit,
        .staged_bytes = from->staged_bytes,
        .staged_limit = from->staged_limit,
        .mapped_bytes = from->mapped_bytes,
        .mapped_limit = from->mapped_limit,
        .regions = from->regions,
        .regions_limit = from->regions_limit,
    };
}

/* A status that this libfa does not know is left out. */
static void take_counters(struct fa_counters *to, const Fad__Counters *from)
{
    *to = (struct fa_counters){0};
    if (!from)
        return;
    to->requests = from->requests;
    to->received_bytes = from->received_bytes;
    to->sent_bytes = from->sent_bytes;
    for (size_t i = 0; i < from->n_errors; i++) {
        const Fad__StatusCount *error = from->errors[i];

        if (error->status == FAD__STATUS__OK ||
            !protobuf_c_enum_descriptor_get_value(&fad__status__descriptor, (int)error->status))
            continue;
        assert(error->status < FA_STATUS_COUNTS);
        to->by_status[error->status] += error->count;
        to->errors += error->count;
    }
}

/* --- Lists ------------------------------------------------------------------------------------ */

static enum fa_status no_room(struct fa_client *client)
{
    return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, NULL, "no memory for the statistics");
}

static enum fa_status no_time(struct fa_client *client, const char *field)
{
    return fa_client_distrust(client, field, "the daemon sent a time that is none");
}

/* A data type that this libfa does not know is left out. */
static enum fa_status take_versions(struct fa_client *client, struct fa_stats *stats,
                                    const Fad__StatsReply *reply)
{
    if (reply->n_versions == 0)
        return FA_OK;
    stats->versions = calloc(reply->n_versions, sizeof *stats->versions);
    if (!stats->versions)
        return no_room(client);
    for (size_t i = 0; i < reply->n_versions; i++) {
        const Fad__VersionStats *from = reply->versions[i];
        struct fa_version_stats *to = &stats->versions[stats->version_count];

        if (from->has_dtype &&
            !protobuf_c_enum_descriptor_get_value(&fad__dtype__descriptor, (int)from->dtype))
            continue;
        FA_TAKE_STRING(to->version, from->version);
        to->dtype = from->has_dtype ? (enum fa_dtype)from->dtype : 0;
        take_counters(&to->counters, from->counters);
        if (!take_latency(&to->queue, from->queue) ||
            !take_latency(&to->transfer, from->transfer) ||
            !take_latency(&to->kernel, from->kernel) || !take_latency(&to->total, from->total))
            return no_time(client, "stats.versions");
        stats->version_count++;
    }
    return FA_OK;
}

/* False for a time that is none. */
static bool take_client(struct fa_client_stats *to, const Fad__ClientStats *from)
{
    to->connection = from->connection;
    to->uid = from->uid;
    to->pid = from->pid;
    take_counters(&to->counters, from->counters);
    take_usage(&to->usage, from->usage);
    return take_latency(&to->total, from->total);
}

static enum fa_status take_users(struct fa_client *client, struct fa_stats *stats,
                                 const Fad__StatsReply *reply)
{
    if (reply->n_users == 0)
        return FA_OK;
    stats->users = calloc(reply->n_users, sizeof *stats->users);
    if (!stats->users)
        return no_room(client);
    for (size_t i = 0; i < reply->n_users; i++)
        if (!take_client(&stats->users[stats->user_count++], reply->users[i]))
            return no_time(client, "stats.users");
    return FA_OK;
}

/* Adds a page's clients; their numbers must go up, or fetching would never end. */
static enum fa_status take_clients(struct fa_client *client, struct fa_stats *stats,
                                   const Fad__StatsReply *reply, uint64_t *last)
{
    const size_t count = stats->client_count + reply->n_clients;
    struct fa_client_stats *grown;

    if (reply->n_clients == 0)
        return reply->more_clients
                   ? fa_client_distrust(client, "stats.more_clients",
                                        "the daemon has more clients, but tells none")
                   : FA_OK;
    if (count > CLIENTS_MAX)
        return fa_client_distrust(client, "stats.clients", "the daemon tells too many");
    grown = realloc(stats->clients, count * sizeof *grown);
    if (!grown)
        return no_room(client);
    stats->clients = grown;
    for (size_t i = 0; i < reply->n_clients; i++) {
        const Fad__ClientStats *from = reply->clients[i];
        struct fa_client_stats *to = &stats->clients[stats->client_count++];

        if (from->connection <= *last)
            return fa_client_distrust(client, "stats.clients.connection",
                                      "the daemon's connection numbers do not go up");
        *last = from->connection;
        if (!take_client(to, from))
            return no_time(client, "stats.clients");
    }
    return FA_OK;
}

/* --- All of it -------------------------------------------------------------------------------- */

/* The reply, good until the next call; NULL with *status telling why. */
static const Fad__StatsReply *fetch_page(struct fa_client *client, uint64_t after, int64_t deadline,
                                         enum fa_status *status)
{
    struct fa_call call = {.type = FA_FRAME_STATS, .fd = -1, .deadline = deadline};
    Fad__Stats stats = FAD__STATS__INIT;
    const Fad__Reply *reply;
    uint8_t message[16];

    stats.has_after = true;
    stats.after = after;
    assert(fad__stats__get_packed_size(&stats) <= sizeof message);
    call.message = (struct iovec){message, fad__stats__pack(&stats, message)};
    *status = fa_call_run(client, &call, &reply);
    if (*status != FA_OK)
        return NULL;
    if (!reply->stats)
        *status = fa_client_distrust(client, "stats", "the daemon's reply has none");
    return reply->stats;
}

/* The first page has everything but the clients that did not fit. */
static enum fa_status fetch(struct fa_client *client, struct fa_stats *stats)
{
    const int64_t deadline = fa_deadline_after(client->timeout_ms);
    enum fa_status status;
    const Fad__StatsReply *reply = fetch_page(client, 0, deadline, &status);
    uint64_t last = 0;

    if (!reply)
        return status;
    stats->uptime_us = reply->uptime_us;
    stats->log_lines_held = reply->log_lines_held;
    take_usage(&stats->daemon, reply->daemon);
    if ((status = take_versions(client, stats, reply)) != FA_OK ||
        (status = take_users(client, stats, reply)) != FA_OK)
        return status;
    while (reply && (status = take_clients(client, stats, reply, &last)) == FA_OK &&
           reply->more_clients)
        reply = fetch_page(client, last, deadline, &status);
    return status;
}

enum fa_status fa_stats(struct fa_client *client, struct fa_stats **out)
{
    struct fa_stats *stats;
    enum fa_status status;

    if (!client)
        return FA_INVALID_ARGUMENT;
    if (!out)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "out", "is NULL");
    *out = NULL;
    stats = calloc(1, sizeof *stats);
    if (!stats)
        return no_room(client);
    status = fetch(client, stats);
    if (status == FA_OK)
        *out = stats;
    else
        fa_stats_free(stats);
    return status;
}

void fa_stats_free(struct fa_stats *stats)
{
    if (!stats)
        return;
    free(stats->versions);
    free(stats->clients);
    free(stats->users);
    free(stats);
}
