#include "client/internal.h"

#include <assert.h>

void fa_request_complete(struct fa_client *client, struct fa_request *request, int64_t deadline)
{
    struct fa_error error;

    if (fa_await(client, request, deadline))
        return;
    fa_error_set(&error, FA_TIMEOUT, NULL, "the daemon did not answer in the time given");
    fa_request_finish(request, &error);
    fa_client_disconnect(client, FA_TIMEOUT);
}

void fa_request_run(struct fa_client *client, struct fa_request *request)
{
    const int64_t deadline = fa_deadline_after(client->timeout_ms);

    fa_request_submit(client, request);
    fa_request_complete(client, request, deadline);
}

enum fa_status fa_call_run(struct fa_client *client, const struct fa_call *call,
                           const Fad__Reply **reply)
{
    struct fa_request *request = fa_request_new(client, call);

    if (!request)
        return client->error.status;
    request->keeps_reply = true;
    fa_request_submit(client, request);
    fa_request_complete(client, request, call->deadline);
    *reply = request->reply;
    return fa_request_take(client, request);
}

enum fa_status fa_ping(struct fa_client *client)
{
    struct fa_call call = {.type = FA_FRAME_PING, .fd = -1};
    const Fad__Reply *reply;

    if (!client)
        return FA_INVALID_ARGUMENT;
    call.deadline = fa_deadline_after(client->timeout_ms);
    return fa_call_run(client, &call, &reply);
}

static void accept_cancel(struct fa_client *client, struct fa_request *request,
                          const Fad__Reply *reply)
{
    if (!reply->cancel || !reply->cancel->has_found)
        fa_client_refuse_reply(client, "cancel", "the daemon's reply has none");
    else
        request->answer.cancel_found = reply->cancel->found;
}

enum fa_status fa_cancel(struct fa_client *client, struct fa_request *request)
{
    struct fa_call call = {.type = FA_FRAME_CANCEL, .fd = -1, .accept = accept_cancel};
    Fad__Cancel cancel = FAD__CANCEL__INIT;
    uint8_t message[16];
    struct fa_request *asked;
    enum fa_status status;
    bool found = false;

    if (!client)
        return FA_INVALID_ARGUMENT;
    if (!request || request->client != client)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "request", "is none of this client's");
    if (request->state != FA_REQUEST_DONE && !request->refused) {
        cancel.has_id = true;
        cancel.id = request->id;
        assert(fad__cancel__get_packed_size(&cancel) <= sizeof message);
        call.message = (struct iovec){message, fad__cancel__pack(&cancel, message)};
        asked = fa_request_new(client, &call);
        if (!asked)
            return client->error.status;
        fa_request_run(client, asked);
        found = asked->answer.cancel_found;
        status = fa_request_take(client, asked);
        if (status != FA_OK)
            return status;
    }
    return found ? FA_OK
                 : fa_client_fail(client, FA_NOT_FOUND, "id",
                                  "the request is already answered, or ended with its connection");
}
