#include "daemon/connection/stats_reply.h"

#include "proto/fa_arena.h"

#include <assert.h>
#include <string.h>

/* --- What a reply takes when it is unpacked into an arena ------------------------------------- */

/* A message, rounded up as the arena does, and its entry in a list. */
#define ROOM(type)                                                                                \
    ((sizeof(type) + _Alignof(max_align_t) - 1) / _Alignof(max_align_t) * _Alignof(max_align_t) + \
     sizeof(void *))

/* A client with errors of every kind. */
#define CLIENT_ROOM_MAX 3072u

/* protobuf-c's notes on a message's fields: 32 bytes each, the first 16 on its stack, then in
 * slabs that double. */
static size_t notes_room(size_t fields)
{
    size_t room = 0;

    for (size_t slab = 16; fields > slab; slab *= 2) {
        fields -= slab;
        room += 2 * slab * 32;
    }
    return room;
}

static size_t counters_room(const Fad__Counters *counters)
{
    return ROOM(Fad__Counters) + counters->n_errors * ROOM(Fad__StatusCount) +
           notes_room(counters->n_errors + 3);
}

/* --- Parts ------------------------------------------------------------------------------------ */

static void put_usage(Fad__Usage *usage, const struct fad_account *account)
{
    const struct fad_amounts *used = &account->used, *limit = &account->limit;

    fad__usage__init(usage);
#define PUT(field, value) (usage->has_##field = true, usage->field = (value))
    PUT(connections, used->of[FAD_CONNECTIONS]);
    PUT(connections_limit, limit->of[FAD_CONNECTIONS]);
    PUT(jobs, used->of[FAD_JOBS]);
    PUT(jobs_limit, limit->of[FAD_JOBS]);
    PUT(staged_bytes, used->of[FAD_STAGED]);
    PUT(staged_limit, limit->of[FAD_STAGED]);
    PUT(mapped_bytes, used->of[FAD_MAPPED]);
    PUT(mapped_limit, limit->of[FAD_MAPPED]);
    PUT(regions, used->of[FAD_REGIONS]);
    PUT(regions_limit, limit->of[FAD_REGIONS]);
#undef PUT
}

static void put_latency(Fad__Latency *latency, const struct fa_histogram *histogram)
{
    static const uint32_t permilles[] = {500, 900, 990, 999};
    uint64_t ns[4];

    fa_histogram_percentiles(histogram, permilles, 4, ns);
    fad__latency__init(latency);
    latency->has_count = latency->has_mean_us = latency->has_max_us = true;
    latency->has_p50_us = latency->has_p90_us = true;
    latency->has_p99_us = latency->has_p999_us = true;
    latency->count = histogram->count;
    if (histogram->count > 0)
        latency->mean_us = (double)histogram->sum / (double)histogram->count / 1e3;
    latency->p50_us = (double)ns[0] / 1e3;
    latency->p90_us = (double)ns[1] / 1e3;
    latency->p99_us = (double)ns[2] / 1e3;
    latency->p999_us = (double)ns[3] / 1e3;
    latency->max_us = (double)histogram->max / 1e3;
}

static void put_counters(struct fad_stats_counters *to, const struct fad_counters *counters)
{
    fad__counters__init(&to->message);
    to->message.errors = to->error_list;
    for (int status = FA_OK + 1; status < FAD_STATUS_COUNTS; status++) {
        Fad__StatusCount *entry = &to->errors[to->message.n_errors];

        if (counters->by_status[status] == 0)
            continue;
        fad__status_count__init(entry);
        entry->has_status = entry->has_count = true;
        entry->status = (Fad__Status)status;
        entry->count = counters->by_status[status];
        to->error_list[to->message.n_errors++] = entry;
    }
    to->message.has_requests = true;
    to->message.requests = counters->requests;
    to->message.has_received_bytes = to->message.has_sent_bytes = true;
    to->message.received_bytes = counters->received_bytes;
    to->message.sent_bytes = counters->sent_bytes;
}

/* --- The reply -------------------------------------------------------------------------------- */

void fad_stats_reply_init(struct fad_stats_reply *reply, uint64_t uptime_ns,
                          const struct fad_account *daemon, uint64_t log_lines_held)
{
    Fad__StatsReply *message = &reply->message;

    fad__stats_reply__init(message);
    put_usage(&reply->daemon, daemon);
    message->daemon = &reply->daemon;
    message->versions = reply->version_list;
    message->clients = reply->client_list;
    message->users = reply->user_list;
    message->has_uptime_us = message->has_log_lines_held = message->has_more_clients = true;
    message->uptime_us = uptime_ns / 1000;
    message->log_lines_held = log_lines_held;
    reply->unpacked =
        ROOM(Fad__Reply) + ROOM(Fad__StatsReply) + ROOM(Fad__Usage) +
        notes_room(FAD_STATISTICS_ROWS_MAX + FAD_STATS_CLIENTS_MAX + FAD_STATS_USERS_MAX + 4);
}

static void put_version(struct fad_stats_reply *reply, const struct fad_statistics_row *row)
{
    struct fad_stats_version *to = &reply->versions[reply->message.n_versions];

    fad__version_stats__init(&to->message);
    put_counters(&to->counters, &row->counters);
    put_latency(&to->queue, &row->queue);
    put_latency(&to->transfer, &row->transfer);
    put_latency(&to->kernel, &row->kernel);
    put_latency(&to->total, &row->total);
    to->message.version = (char *)(row->version ? row->version->name : "");
    to->message.has_dtype = row->version != NULL;
    if (row->version)
        to->message.dtype = (Fad__DType)row->dtype;
    to->message.counters = &to->counters.message;
    to->message.queue = &to->queue;
    to->message.transfer = &to->transfer;
    to->message.kernel = &to->kernel;
    to->message.total = &to->total;
    reply->version_list[reply->message.n_versions++] = &to->message;
    reply->unpacked += ROOM(Fad__VersionStats) + ROOM(char[16]) + 4 * ROOM(Fad__Latency) +
                       counters_room(&to->counters.message);
}

void fad_stats_put_versions(struct fad_stats_reply *reply, const struct fad_statistics *statistics)
{
    for (size_t i = 0; i < statistics->row_count; i++)
        if (statistics->rows[i].counters.requests > 0)
            put_version(reply, &statistics->rows[i]);
    assert(reply->unpacked + CLIENT_ROOM_MAX <= FA_ARENA_SIZE);
}

/* Fills in a party's entry; its room in an arena. */
static size_t put_party(struct fad_stats_entry *to, const struct fad_stats_party *party)
{
    put_counters(&to->counters, &party->tally->counters);
    put_latency(&to->total, &party->tally->total);
    put_usage(&to->usage, party->account);
    fad__client_stats__init(&to->message);
    to->message.has_connection = to->message.has_pid = party->connection > 0;
    to->message.connection = party->connection;
    to->message.pid = party->pid;
    to->message.has_uid = true;
    to->message.uid = party->uid;
    to->message.counters = &to->counters.message;
    to->message.total = &to->total;
    to->message.usage = &to->usage;
    return ROOM(Fad__ClientStats) + ROOM(Fad__Latency) + ROOM(Fad__Usage) +
           counters_room(&to->counters.message);
}

bool fad_stats_put_user(struct fad_stats_reply *reply, const struct fad_stats_party *user)
{
    struct fad_stats_entry *to = &reply->users[reply->message.n_users];
    size_t room;

    if (reply->message.n_users == FAD_STATS_USERS_MAX)
        return false;
    room = put_party(to, user);
    if (reply->unpacked + room + CLIENT_ROOM_MAX > FA_ARENA_SIZE)
        return false;
    reply->user_list[reply->message.n_users++] = &to->message;
    reply->unpacked += room;
    return true;
}

static bool end_page(struct fad_stats_reply *reply)
{
    reply->message.more_clients = true;
    return false;
}

bool fad_stats_put_client(struct fad_stats_reply *reply, const struct fad_stats_party *client)
{
    struct fad_stats_entry *to = &reply->clients[reply->message.n_clients];
    size_t room;

    if (reply->message.n_clients == FAD_STATS_CLIENTS_MAX)
        return end_page(reply);
    room = put_party(to, client);
    assert(room <= CLIENT_ROOM_MAX);
    if (reply->unpacked + room > FA_ARENA_SIZE)
        return end_page(reply);
    reply->client_list[reply->message.n_clients++] = &to->message;
    reply->unpacked += room;
    return true;
}
