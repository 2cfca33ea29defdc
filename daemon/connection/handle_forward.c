/* handle_forward.c: from a Forward's message to a job, and from its end to the reply. */
#include "daemon/connection/handlers.h"
#include "daemon/connection/job.h"
#include "daemon/connection/memfd.h"
#include "daemon/connection/staging.h"

#include <inttypes.h>
#include <stdio.h>

/* --- The end --------------------------------------------------------------------------------- */

static uint64_t since(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

static uint64_t transfer_ns(const struct fad_job *job)
{
    const uint64_t receiving_ns = job->payload_size ? since(job->header_ns, job->ready_ns) : 0;
    return receiving_ns + fad_staging_copying_ns(job);
}

/* When its first range started; its end when none ran. */
static uint64_t started(const struct fad_job *job)
{
    return job->work.started_ns ? job->work.started_ns : job->done_ns;
}

/* From all data being where the device reaches it. */
static uint64_t queue_ns(const struct fad_job *job)
{
    return since(fad_staging_ready_ns(job), started(job));
}

static void reply_with_result(struct fad_connection *connection, struct fad_job *job)
{
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    Fad__Reply reply = fad_reply_ok();
    struct fad_amounts charge;
    void *output = fad_job_take_output(job, &charge);

    forward.version = (char *)job->choice.version->name;
    forward.kernel = (char *)job->choice.kernel->name;
    forward.has_redirected = true;
    forward.redirected = job->choice.reason != NULL;
    forward.redirect_reason = (char *)job->choice.reason;
    forward.device = (char *)job->engine->backend->devices[job->device].name;
    forward.has_queue_us = forward.has_transfer_us = true;
    forward.queue_us = queue_ns(job) / 1000;
    forward.transfer_us = transfer_ns(job) / 1000;
    forward.has_kernel_us = forward.has_total_us = true;
    forward.kernel_us = fad_work_kernel_ns(&job->work) / 1000;
    forward.total_us = since(job->header_ns, job->done_ns) / 1000;
    forward.has_payload_o_bytes = true;
    forward.payload_o_bytes =
        job->request.at[FAD_O].place == FAD_INLINE ? job->request.at[FAD_O].span : 0;
    reply.forward = &forward;
    fad_connection_reply(connection, FA_FRAME_FORWARD, job->pending.id, &reply, output,
                         job->request.output_size, &charge);
}

static void note(struct fad_connection *connection, const struct fad_outcome *outcome)
{
    fad_statistics_note(connection->service->statistics, outcome);
    fad_tally_note(&connection->tally, outcome);
    fad_tally_note(&connection->user->tally, outcome);
}

static void note_job(struct fad_connection *connection, const struct fad_job *job)
{
    note(connection, &(struct fad_outcome){
                         .version = job->choice.version,
                         .dtype = job->request.problem.dtype,
                         .status = job->error.status,
                         .received_bytes = job->payload_size,
                         .sent_bytes = job->error.status == FA_OK ? job->request.output_size : 0,
                         .queue_ns = queue_ns(job),
                         .transfer_ns = transfer_ns(job),
                         .kernel_ns = fad_work_kernel_ns(&job->work),
                         .total_ns = since(job->header_ns, job->done_ns)});
}

static void on_job_done(struct fad_job *job)
{
    struct fad_connection *connection = job->pending.connection;
    const bool wanted = fad_pending_end(&job->pending);

    note_job(connection, job);
    if (wanted && job->error.status == FA_OK)
        reply_with_result(connection, job);
    else if (wanted)
        fad_connection_refuse(connection, FA_FRAME_FORWARD, job->pending.id, &job->error);
    fad_job_free(job);
    fad_pending_done(connection);
}

static void on_received(struct fad_pending *pending)
{
    fad_job_start(fad_container_of(pending, struct fad_job, pending), &pending->connection->flow);
}

static void on_progress(struct fad_pending *pending, uint64_t bytes)
{
    fad_job_progress(fad_container_of(pending, struct fad_job, pending), bytes);
}

static void on_abandon(struct fad_pending *pending, enum fa_status status)
{
    fad_job_abandon(fad_container_of(pending, struct fad_job, pending), status);
}

void fad_note_refused_forward(struct fad_connection *connection, enum fa_status status)
{
    note(connection, &(struct fad_outcome){.status = status});
}

/* --- The beginning --------------------------------------------------------------------------- */

/* *memfd has size 0 where no tensor lies in it. */
static enum fa_status check_memfd(const struct fad_message *message,
                                  const struct fad_request *request, struct fad_memfd *memfd,
                                  struct fa_error *error)
{
    char field[sizeof error->field];
    int tensor = 0;

    *memfd = (struct fad_memfd){.fd = message->fd};
    while (tensor < FAD_TENSORS && request->at[tensor].place != FAD_MEMFD)
        tensor++;
    if (message->fd < 0 || tensor == FAD_TENSORS)
        return FA_OK;
    snprintf(field, sizeof field, "%s.memfd", fad_tensor_name((enum fad_tensor)tensor));
    return fad_memfd_check(message->fd, fad_request_writes_memfd(request), field, memfd, error);
}

static enum fa_status find_regions(const struct fad_connection *connection,
                                   struct fad_request *request, struct fa_error *error)
{
    for (int t = 0; t < FAD_TENSORS; t++) {
        struct fad_location *at = &request->at[t];
        char field[sizeof error->field];

        if (at->place != FAD_REGION)
            continue;
        at->region = fad_region_find(connection, at->region_id);
        snprintf(field, sizeof field, "%s.region.%s", fad_tensor_name((enum fad_tensor)t),
                 at->region ? "event" : "region");
        if (!at->region)
            return fa_error_set(error, FA_NOT_FOUND, field,
                                "this connection has no region %" PRIu64, at->region_id);
        if (at->has_event && at->region->region.source.kind != FAD_REGION_IPC)
            return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                                "the region is not of the client's memory on a GPU (cuda_ipc)");
    }
    return FA_OK;
}

/* *choice is set as soon as it is known. */
static enum fa_status admit(struct fad_connection *connection, struct fad_message *message,
                            struct fad_request *request, struct fa_choice *choice,
                            struct fa_error *error)
{
    const struct fad_service *service = connection->service;
    struct fad_job *job;
    struct fad_memfd memfd;
    uint32_t device;
    enum fa_status status;

    if ((status = fad_request_decode(message->bytes, message->frame.message_length,
                                     fad_message_allocator(), request, error)) != FA_OK ||
        (status = find_regions(connection, request, error)) != FA_OK ||
        (status = fad_job_place(service->engine, request, &device, choice, error)) != FA_OK ||
        (status = check_memfd(message, request, &memfd, error)) != FA_OK ||
        (status = fad_request_check(request, message->frame.payload_length,
                                    memfd.fd < 0 ? -1 : (int64_t)memfd.size, error)) != FA_OK ||
        (status = fad_job_new(&job, service->engine, &connection->account, request, device, choice,
                              message->frame.payload_length, &memfd, error)) != FA_OK)
        return status;
    message->fd = -1;
    job->done = on_job_done;
    job->header_ns = connection->header_ns;
    job->pending = (struct fad_pending){.type = FA_FRAME_FORWARD,
                                        .id = message->frame.id,
                                        .payload = job->payload,
                                        .progress = on_progress,
                                        .received = on_received,
                                        .abandon = on_abandon};
    fad_pending_begin(connection, &job->pending);
    connection->receiving = &job->pending;
    fad_job_begin(job);
    return FA_OK;
}

enum fa_status fad_handle_forward(struct fad_connection *connection, struct fad_message *message,
                                  struct fa_error *error)
{
    struct fad_request request = {.version = ""};
    struct fa_choice choice = {.version = NULL};
    enum fa_status status = admit(connection, message, &request, &choice, error);

    if (status != FA_OK)
        note(connection, &(struct fad_outcome){.version = choice.version,
                                               .dtype = request.problem.dtype,
                                               .status = status});
    return status;
}
