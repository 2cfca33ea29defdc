#include "daemon/connection/transfer.h"

#include "daemon/connection/connection.h"

#include <assert.h>
#include <stdlib.h>

/* Copies of a uid's that the backend has at once; more would only crowd out others'. Its
 * connections take turns. */
#define COPIES_MAX 2u

struct fad_transfer {
    struct fad_pending pending;
    TAILQ_ENTRY(fad_transfer) link; /* the connection's list, while it waits */
    struct fad_client_region *region;
    struct fad_copy copy;
    struct fad_amounts charge;
    void *staged; /* size bytes */
    uint64_t size;
    enum { RECEIVING, WAITING, COPYING } state;
    enum fa_status abandoned;
};

static void destroy(struct fad_transfer *transfer)
{
    struct fad_connection *connection = transfer->pending.connection;
    struct fad_backend *backend = connection->service->engine->backend;

    if (transfer->staged)
        backend->ops->host_free(backend, transfer->staged, transfer->size);
    fad_account_release(&connection->account, &transfer->charge);
    free(transfer);
}

static void answer(struct fad_transfer *transfer, const struct fa_error *error)
{
    struct fad_connection *connection = transfer->pending.connection;
    const uint16_t type = transfer->pending.type;
    const uint64_t id = transfer->pending.id, size = transfer->size;
    struct fad_amounts charge = {{0}};
    Fad__Reply reply = fad_reply_ok();
    void *output = NULL;

    if (error->status == FA_OK && type == FA_FRAME_READ_REGION) { /* the reply has them now */
        output = transfer->staged;
        charge = transfer->charge;
        transfer->staged = NULL;
        transfer->charge = (struct fad_amounts){{0}};
    }
    destroy(transfer);
    if (error->status == FA_OK)
        fad_connection_reply(connection, type, id, &reply, output, output ? size : 0, &charge);
    else
        fad_connection_refuse(connection, type, id, error);
}

static void end(struct fad_transfer *transfer, int status, const char *text)
{
    struct fad_connection *connection = transfer->pending.connection;
    struct fa_error error = {.status = FA_OK};

    if (status < 0) {
        fad_engine_fatal(connection->service->engine, status);
        status = FA_DEVICE_LOST;
    }
    if (transfer->abandoned != FA_OK)
        status = (int)transfer->abandoned;
    if (status != 0)
        fa_error_set(&error, (enum fa_status)status, "", "%s",
                     text ? text : fa_status_text((enum fa_status)status));
    fad_region_unuse(transfer->region);
    if (fad_pending_end(&transfer->pending))
        answer(transfer, &error);
    else
        destroy(transfer);
    fad_pending_done(connection);
}

static void start_waiting(struct fad_user *user);

static void on_copied(struct fad_op *op)
{
    struct fad_transfer *transfer = fad_container_of(op, struct fad_transfer, copy.op);
    struct fad_user *user = transfer->pending.connection->user;

    user->copies--;
    start_waiting(user); /* while the user is sure to be there */
    end(transfer, op->status, op->text);
}

static void start(struct fad_transfer *transfer)
{
    struct fad_connection *connection = transfer->pending.connection;
    struct fad_engine *engine = connection->service->engine;
    int status;

    transfer->state = COPYING;
    transfer->copy.op.done = on_copied;
    status = engine->backend->ops->copy(engine->backend, &transfer->copy);
    if (status != 0) {
        end(transfer, status, NULL);
        return;
    }
    connection->user->copies++;
    fad_engine_taken(engine);
}

static void enqueue(struct fad_transfer *transfer)
{
    struct fad_connection *connection = transfer->pending.connection;

    if (TAILQ_EMPTY(&connection->transfers))
        TAILQ_INSERT_TAIL(&connection->user->copying, connection, copying);
    transfer->state = WAITING;
    TAILQ_INSERT_TAIL(&connection->transfers, transfer, link);
}

static void dequeue(struct fad_transfer *transfer)
{
    struct fad_connection *connection = transfer->pending.connection;

    TAILQ_REMOVE(&connection->transfers, transfer, link);
    TAILQ_REMOVE(&connection->user->copying, connection, copying);
    if (!TAILQ_EMPTY(&connection->transfers)) /* behind the others */
        TAILQ_INSERT_TAIL(&connection->user->copying, connection, copying);
}

/* NULL: none waits. */
static struct fad_transfer *take_waiting(struct fad_user *user)
{
    struct fad_connection *connection = TAILQ_FIRST(&user->copying);
    struct fad_transfer *transfer = connection ? TAILQ_FIRST(&connection->transfers) : NULL;

    if (transfer) {
        dequeue(transfer);
        assert(TAILQ_FIRST(&connection->transfers) != transfer);
    }
    return transfer;
}

static void start_waiting(struct fad_user *user)
{
    struct fad_transfer *transfer;

    while (user->copies < COPIES_MAX && (transfer = take_waiting(user)))
        start(transfer);
}

static void on_received(struct fad_pending *pending)
{
    enqueue(fad_container_of(pending, struct fad_transfer, pending));
    start_waiting(pending->connection->user);
}

static void on_abandon(struct fad_pending *pending, enum fa_status status)
{
    struct fad_transfer *transfer = fad_container_of(pending, struct fad_transfer, pending);

    transfer->abandoned = status;
    if (transfer->state == COPYING)
        return; /* on_copied() sees it */
    if (transfer->state == WAITING)
        dequeue(transfer);
    end(transfer, FA_OK, NULL);
}

static void plan_copy(struct fad_transfer *transfer, uint64_t offset)
{
    char *there = (char *)transfer->region->region.base + offset;
    const bool write = transfer->pending.type == FA_FRAME_WRITE_REGION;

    transfer->copy = (struct fad_copy){.device = transfer->region->region.source.device,
                                       .to = write ? there : transfer->staged,
                                       .from = write ? transfer->staged : there,
                                       .size = transfer->size};
}

enum fa_status fad_transfer_begin(struct fad_connection *connection, uint16_t type, uint64_t id,
                                  struct fad_client_region *region, uint64_t offset, uint64_t size,
                                  struct fa_error *error)
{
    struct fad_backend *backend = connection->service->engine->backend;
    const struct fad_amounts charge = {{[FAD_JOBS] = 1, [FAD_STAGED] = size}};
    struct fad_transfer *transfer;

    if (fad_account_charge(&connection->account, &charge, error) != FA_OK)
        return error->status;
    transfer = calloc(1, sizeof *transfer);
    if (transfer)
        transfer->staged = backend->ops->host_alloc(backend, size);
    if (!transfer || !transfer->staged) {
        free(transfer);
        fad_account_release(&connection->account, &charge);
        return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "",
                            "the system gives no memory for the bytes");
    }
    transfer->charge = charge;
    transfer->size = size;
    transfer->region = region;
    transfer->pending =
        (struct fad_pending){.type = type,
                             .id = id,
                             .payload = type == FA_FRAME_WRITE_REGION ? transfer->staged : NULL,
                             .received = on_received,
                             .abandon = on_abandon};
    plan_copy(transfer, offset);
    fad_region_use(region);
    fad_pending_begin(connection, &transfer->pending);
    connection->receiving = &transfer->pending;
    return FA_OK;
}
