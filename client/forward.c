#include "client/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A name that is longer is no version's; the message's buffer then always suffices. */
#define VERSION_NAME_MAX 64

/* A forward pass on its way to a request. */
struct draft {
    const struct fa_forward_args *args;
    struct fa_placed tensors[FA_TENSORS];
    struct fa_copy copies[FA_TENSORS]; /* the request's, in the end */
    const struct fa_shared *shared;    /* that tensors lie in, or NULL */
    struct fa_cuda_handle event;       /* what the message names, if it does */
    Fad__Forward message;
    uint8_t packed[FA_MESSAGE_MAX];
    struct fa_call call;
};

/* Between two tensors of a payload: sent as zeroes, received and dropped. */
static const uint8_t zeroes[FA_PAYLOAD_ALIGN];

static enum fa_status place_tensors(struct fa_client *client, struct draft *d)
{
    const struct fa_forward_args *a = d->args;
    const uint32_t kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    const size_t element = fa_dtype_bytes(a->dtype ? a->dtype : FA_DTYPE_FLOAT32);
    const struct fa_extents q = {a->batch, a->heads, a->q_len, a->head_dim};
    const struct fa_extents kv = {a->batch, kv_heads, a->kv_len, a->head_dim};
    const struct fa_extents lse = {a->batch, a->heads, a->q_len, 1};

    if (element == 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "dtype", "%d is no dtype",
                              (int)a->dtype);
    d->tensors[FA_Q] = (struct fa_placed){.name = "q", .tensor = &a->q, .extents = q};
    d->tensors[FA_K] = (struct fa_placed){.name = "k", .tensor = &a->k, .extents = kv};
    d->tensors[FA_V] = (struct fa_placed){.name = "v", .tensor = &a->v, .extents = kv};
    d->tensors[FA_O] = (struct fa_placed){.name = "o", .tensor = &a->o, .extents = q};
    d->tensors[FA_LSE] = (struct fa_placed){.name = "lse", .tensor = &a->lse, .extents = lse};
    d->tensors[FA_O].output = d->tensors[FA_LSE].output = true;
    for (int i = 0; i < FA_TENSORS; i++) {
        struct fa_placed *placed = &d->tensors[i];
        enum fa_status status;

        placed->element = i == FA_LSE ? sizeof(float) : element;
        if (i == FA_LSE && !fa_tensor_present(&a->lse))
            continue;
        status = fa_tensor_place(client, placed, &d->shared);
        if (status != FA_OK)
            return status;
    }
    return a->cuda_event ? fa_cuda_place_event(client, d->tensors, a->cuda_event, &d->event)
                         : FA_OK;
}

/* Lays the inline inputs out in the payload, each at a multiple of FA_PAYLOAD_ALIGN. */
static enum fa_status fill_payload(struct fa_client *client, struct draft *d)
{
    const uint64_t limit = client->info.payload_bytes;
    uint64_t end = 0;

    for (int i = FA_Q; i <= FA_V; i++) { /* three spans of at most 2^62 bytes: no overflow */
        struct fa_placed *placed = &d->tensors[i];
        uint64_t bytes = fa_tensor_wire_bytes(placed), padding = -end % FA_PAYLOAD_ALIGN;

        if (!fa_tensor_is_inline(placed))
            continue;
        placed->inline_bytes.has_offset = placed->inline_bytes.has_length = true;
        placed->inline_bytes.length = bytes;
        if (bytes == 0)
            continue;
        placed->inline_bytes.offset = end + padding;
        end += padding + bytes;
    }
    if (limit > 0 && end > limit)
        return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, "payload",
                              "the inline inputs have %llu bytes; the daemon takes at most %llu in "
                              "one request; tensors in shared memory do not count",
                              (unsigned long long)end, (unsigned long long)limit);
    end = 0;
    for (int i = FA_Q; i <= FA_V; i++) {
        struct fa_placed *placed = &d->tensors[i];
        struct iovec *payload = d->call.payload;
        enum fa_status status;

        if (!fa_tensor_is_inline(placed) || placed->inline_bytes.length == 0)
            continue;
        if (placed->inline_bytes.offset > end)
            payload[d->call.payload_count++] =
                (struct iovec){(void *)(uintptr_t)zeroes, placed->inline_bytes.offset - end};
        status = fa_tensor_buffer(client, placed, &d->copies[i], &payload[d->call.payload_count++]);
        if (status != FA_OK)
            return status;
        end = placed->inline_bytes.offset + placed->inline_bytes.length;
    }
    return FA_OK;
}

/* The reply's payload: o, then lse at the next multiple of FA_PAYLOAD_ALIGN, what of them is
 * inline. */
static enum fa_status expect_payload(struct fa_client *client, struct draft *d)
{
    uint64_t bytes[2] = {0, 0}, lse_offset;

    for (int i = 0; i < 2; i++)
        if (fa_tensor_is_inline(&d->tensors[FA_O + i]))
            bytes[i] = fa_tensor_wire_bytes(&d->tensors[FA_O + i]);
    if (fa_output_layout(bytes[0], bytes[1], &lse_offset) > SIZE_MAX / 2)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "o", "is too large");
    for (int i = 0; i < 2; i++) {
        enum fa_status status;
        if (bytes[i] == 0)
            continue;
        status = fa_tensor_buffer(client, &d->tensors[FA_O + i], &d->copies[FA_O + i],
                                  &d->call.in[d->call.in_count]);
        if (status != FA_OK)
            return status;
        d->call.in_count++;
        if (i == 0 && bytes[1] > 0)
            d->call.in[d->call.in_count++] = (struct iovec){client->gap, lse_offset - bytes[0]};
    }
    return FA_OK;
}

static enum fa_status fill_message(struct fa_client *client, struct draft *d)
{
    const struct fa_forward_args *a = d->args;
    Fad__Forward *m = &d->message;

    fad__forward__init(m);
    m->has_batch = m->has_heads = m->has_q_len = m->has_kv_len = m->has_head_dim = true;
    m->batch = a->batch;
    m->heads = a->heads;
    m->has_kv_heads = a->kv_heads != 0;
    m->kv_heads = a->kv_heads;
    m->q_len = a->q_len;
    m->kv_len = a->kv_len;
    m->head_dim = a->head_dim;
    m->has_dtype = true;
    m->dtype = (Fad__DType)(a->dtype ? a->dtype : FA_DTYPE_FLOAT32);
    m->has_mask = true;
    m->mask = (Fad__Mask)a->mask;
    if (a->scale) {
        m->has_scale = true;
        m->scale = *a->scale;
    }
    if (a->version) {
        m->has_version = true;
        m->version.len = strnlen(a->version, VERSION_NAME_MAX + 1);
        m->version.data = (uint8_t *)(uintptr_t)a->version;
        if (m->version.len > VERSION_NAME_MAX)
            return fa_client_fail(client, FA_INVALID_ARGUMENT, "version",
                                  "longer than the name of any version");
    }
    m->has_priority = a->priority != 0;
    m->priority = (Fad__Priority)a->priority;
    m->has_deadline_us = a->deadline_us != 0;
    m->deadline_us = a->deadline_us;
    m->q = &d->tensors[FA_Q].message;
    m->k = &d->tensors[FA_K].message;
    m->v = &d->tensors[FA_V].message;
    m->o = &d->tensors[FA_O].message;
    m->lse = d->tensors[FA_LSE].present ? &d->tensors[FA_LSE].message : NULL;
    assert(fad__forward__get_packed_size(m) <= sizeof d->packed);
    d->call.message = (struct iovec){d->packed, fad__forward__pack(m, d->packed)};
    return FA_OK;
}

static void take_result(struct fa_forward_result *to, const Fad__ForwardReply *from)
{
    FA_TAKE_STRING(to->version, from->version);
    FA_TAKE_STRING(to->kernel, from->kernel);
    FA_TAKE_STRING(to->device, from->device);
    FA_TAKE_STRING(to->redirect_reason, from->redirect_reason);
    to->redirected = from->redirected;
    to->queue_us = from->queue_us;
    to->transfer_us = from->transfer_us;
    to->kernel_us = from->kernel_us;
    to->total_us = from->total_us;
}

/* An output that cannot be copied to the device is the request's fault alone. */
static void take_outputs(struct fa_request *request)
{
    static const char *const fields[] = {[FA_O] = "o.data", [FA_LSE] = "lse.data"};
    struct fa_error error;

    for (int i = FA_O; i <= FA_LSE; i++)
        if (fa_copy_scatter(&request->copies[i], &error) != FA_OK)
            fa_error_set(&request->error, error.status, fields[i], "%s", error.text);
}

static void accept_forward(struct fa_client *client, struct fa_request *request,
                           const Fad__Reply *reply)
{
    const Fad__ForwardReply *forward = reply->forward;

    if (!forward) {
        fa_client_refuse_reply(client, "forward", "the daemon's reply has none");
    } else if (forward->has_payload_o_bytes && forward->payload_o_bytes != request->o_bytes) {
        fa_client_refuse_reply(client, "forward.payload_o_bytes",
                               "not the bytes of the o that was asked for");
    } else {
        take_outputs(request);
        take_result(&request->answer.forward, forward);
    }
}

static struct fa_request *finish_draft(struct fa_client *client, struct draft *d)
{
    struct fa_request *request;

    if (place_tensors(client, d) != FA_OK || fill_payload(client, d) != FA_OK ||
        expect_payload(client, d) != FA_OK || fill_message(client, d) != FA_OK)
        return NULL;
    d->call.fd = d->shared ? d->shared->fd : -1;
    request = fa_request_new(client, &d->call);
    if (!request)
        return NULL;
    if (fa_tensor_is_inline(&d->tensors[FA_O]))
        request->o_bytes = fa_tensor_wire_bytes(&d->tensors[FA_O]);
    memcpy(request->copies, d->copies, sizeof d->copies);
    return request;
}

/* NULL, with the error kept, when args are wrong or there can be no request. */
static struct fa_request *forward_new(struct fa_client *client, const struct fa_forward_args *args)
{
    struct fa_request *request;
    struct draft d;

    if (!args) {
        fa_client_fail(client, FA_INVALID_ARGUMENT, "args", "is NULL");
        return NULL;
    }
    memset(&d, 0, offsetof(struct draft, packed));
    d.args = args;
    d.call = (struct fa_call){.type = FA_FRAME_FORWARD, .accept = accept_forward};
    request = finish_draft(client, &d);
    for (int i = 0; !request && i < FA_TENSORS; i++)
        fa_copy_release(&d.copies[i]);
    return request;
}

enum fa_status fa_forward_submit(struct fa_client *client, const struct fa_forward_args *args,
                                 struct fa_request **out)
{
    struct fa_request *request;

    if (out)
        *out = NULL;
    if (!client)
        return FA_INVALID_ARGUMENT;
    if (client->flying_count + client->done_count >= FA_REQUESTS_MAX)
        return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, NULL,
                              "%u requests of this client are not taken yet, and no more can be",
                              FA_REQUESTS_MAX);
    request = forward_new(client, args);
    if (!request)
        return client->error.status;
    fa_request_submit(client, request);
    if (out)
        *out = request;
    return FA_OK;
}

enum fa_status fa_forward(struct fa_client *client, const struct fa_forward_args *args,
                          struct fa_forward_result *result)
{
    struct fa_request *request;

    if (!client)
        return FA_INVALID_ARGUMENT;
    if (result)
        memset(result, 0, sizeof *result);
    request = forward_new(client, args);
    if (!request)
        return client->error.status;
    fa_request_run(client, request);
    if (result && request->error.status == FA_OK)
        *result = request->answer.forward;
    return fa_request_take(client, request);
}
