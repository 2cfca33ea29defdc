#include "daemon/connection/region.h"

#include "daemon/connection/connection.h"
#include "daemon/connection/discard.h"

#include <assert.h>
#include <stdlib.h>

static void set_state(struct fad_client_region *region, enum fad_region_state next)
{
#define EDGE(from, to) [FAD_REGION_##from][FAD_REGION_##to] = true
    static const bool allowed[FAD_REGION_CLOSING + 1][FAD_REGION_CLOSING + 1] = {
        EDGE(OPENING, NAMED), EDGE(OPENING, RELEASED), EDGE(NAMED, RELEASED),
        EDGE(RELEASED, CLOSING)};
#undef EDGE
    assert(allowed[region->state][next]);
    region->state = next;
}

/* --- The end --------------------------------------------------------------------------------- */

static void destroy(struct fad_client_region *region)
{
    struct fad_connection *connection = region->connection;

    fad_account_release(&connection->account, &region->charge);
    connection->device_regions -= region->region.source.kind != FAD_REGION_MEMFD;
    free(region);
    connection->busy--;
    fad_connection_free_if_done(connection);
}

static void on_closed(struct fad_op *op)
{
    struct fad_client_region *region = fad_container_of(op, struct fad_client_region, op);
    struct fad_connection *connection = region->connection;
    Fad__Reply reply = fad_reply_ok();
    const bool answering = region->answering;
    const bool wanted = answering && fad_pending_end(&region->pending);
    const struct fad_pending request = region->pending;
    const struct fa_error refusal = region->refusal;

    destroy(region); /* first: whoever has the reply may use all of the limits again */
    if (wanted && refusal.status != FA_OK)
        fad_connection_refuse(connection, request.type, request.id, &refusal);
    else if (wanted)
        fad_connection_reply(connection, request.type, request.id, &reply, NULL, 0, NULL);
    if (answering)
        fad_pending_done(connection);
}

static void close_if_unused(struct fad_client_region *region)
{
    struct fad_engine *engine = region->connection->service->engine;
    int status;

    if (region->state != FAD_REGION_RELEASED || region->uses > 0)
        return;
    set_state(region, FAD_REGION_CLOSING);
    region->op.done = on_closed;
    status = engine->backend->ops->region_close(engine->backend, &region->region, &region->op);
    if (status == 0) {
        fad_engine_taken(engine);
        return;
    }
    fad_engine_fatal(engine, status); /* closing knows no client's fault */
    on_closed(&region->op);
}

void fad_region_use(struct fad_client_region *region)
{
    assert(region->state == FAD_REGION_NAMED);
    region->uses++;
}

void fad_region_unuse(struct fad_client_region *region)
{
    assert(region->uses > 0);
    region->uses--;
    close_if_unused(region);
}

struct fad_client_region *fad_region_find(const struct fad_connection *connection, uint64_t id)
{
    struct fad_client_region *region;
    TAILQ_FOREACH (region, &connection->regions, link)
        if (region->id == id)
            return region;
    return NULL;
}

static void unname(struct fad_client_region *region)
{
    TAILQ_REMOVE(&region->connection->regions, region, link);
    set_state(region, FAD_REGION_RELEASED);
}

void fad_region_release(struct fad_client_region *region, uint16_t type, uint64_t id)
{
    unname(region);
    region->answering = true;
    region->pending = (struct fad_pending){.type = type, .id = id};
    fad_pending_begin(region->connection, &region->pending);
    close_if_unused(region);
}

void fad_region_release_all(struct fad_connection *connection)
{
    struct fad_client_region *region, *next;

    for (region = TAILQ_FIRST(&connection->regions); region; region = next) {
        next = TAILQ_NEXT(region, link);
        unname(region);
        close_if_unused(region);
    }
}

/* --- Opening --------------------------------------------------------------------------------- */

static void reply_opened(struct fad_client_region *region)
{
    Fad__RegionReply opened = FAD__REGION_REPLY__INIT;
    Fad__Reply reply = fad_reply_ok();

    opened.has_region = opened.has_size = true;
    opened.region = region->id;
    opened.size = region->region.size;
    reply.region = &opened;
    fad_connection_reply(region->connection, region->pending.type, region->pending.id, &reply, NULL,
                         0, NULL);
}

static void refuse_opening(const struct fad_client_region *region, int status, const char *text,
                           struct fa_error *error)
{
    if (status < 0) {
        fad_engine_fatal(region->connection->service->engine, status);
        status = FA_DEVICE_LOST;
    }
    fa_error_set(error, (enum fa_status)status, region->field, "%s",
                 text ? text : "the memory could not be opened");
}

/* The real size of a client's allocation. */
static enum fa_status charge_opened(struct fad_client_region *region)
{
    const struct fad_amounts amounts = {{[FAD_MAPPED] = region->region.size}};

    if (region->region.source.kind != FAD_REGION_IPC)
        return FA_OK;
    if (fad_account_charge(&region->connection->account, &amounts, &region->refusal) != FA_OK)
        return region->refusal.status;
    region->charge.of[FAD_MAPPED] += region->region.size;
    return FA_OK;
}

static void on_opened(struct fad_op *op)
{
    struct fad_client_region *region = fad_container_of(op, struct fad_client_region, op);
    struct fad_connection *connection = region->connection;
    const struct fad_pending request = region->pending;
    struct fa_error error;
    bool wanted;

    if (op->status == 0 && charge_opened(region) != FA_OK) {
        set_state(region, FAD_REGION_RELEASED);
        close_if_unused(region); /* refused when that is done */
        return;
    }
    wanted = fad_pending_end(&region->pending);
    region->answering = false;
    if (op->status != 0) {
        refuse_opening(region, op->status, op->text, &error);
        destroy(region);
        if (wanted)
            fad_connection_refuse(connection, request.type, request.id, &error);
    } else if (wanted) {
        set_state(region, FAD_REGION_NAMED);
        region->id = ++connection->last_region;
        TAILQ_INSERT_HEAD(&connection->regions, region, link);
        reply_opened(region);
    } else {
        set_state(region, FAD_REGION_RELEASED);
        close_if_unused(region);
    }
    fad_pending_done(connection);
}

static void drop_source(struct fad_connection *connection, const struct fad_region_source *source)
{
    if (source->fd >= 0)
        fad_discard_fd(connection, source->fd);
}

enum fa_status fad_region_open(struct fad_connection *connection, uint16_t type, uint64_t id,
                               const struct fad_region_source *source, const char *field,
                               struct fa_error *error)
{
    struct fad_engine *engine = connection->service->engine;
    const struct fad_amounts charge = {{[FAD_MAPPED] = source->size, [FAD_REGIONS] = 1}};
    struct fad_client_region *region;
    int status;

    if (fad_account_charge(&connection->account, &charge, error) != FA_OK) {
        drop_source(connection, source);
        return error->status;
    }
    region = calloc(1, sizeof *region);
    if (!region) {
        drop_source(connection, source);
        fad_account_release(&connection->account, &charge);
        return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "", "the system gives no memory");
    }
    region->charge = charge;
    region->connection = connection;
    region->region.source = *source;
    region->writable = source->kind == FAD_REGION_OWNED || source->writable;
    region->field = field;
    region->op.done = on_opened;
    connection->busy++;
    if (source->kind != FAD_REGION_MEMFD) {
        connection->device_regions++;
        connection->region_device = source->device;
    }
    region->answering = true;
    region->pending = (struct fad_pending){.type = type, .id = id};
    status = engine->backend->ops->region_open(engine->backend, &region->region, &region->op);
    if (status != 0) {
        refuse_opening(region, status, NULL, error);
        drop_source(connection, source);
        destroy(region);
        return error->status;
    }
    fad_pending_begin(connection, &region->pending);
    fad_engine_taken(engine);
    return FA_OK;
}
