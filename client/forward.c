#include "client/internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A name that is longer is no version's; the message's buffer then always suffices. */
#define VERSION_NAME_MAX 64
#define MESSAGE_SIZE     1024

enum { Q, K, V, O, LSE, TENSORS };

struct request {
    const struct fa_forward_args *args;
    struct fa_placed tensors[TENSORS];
    const struct fa_shared *shared; /* that tensors lie in, or NULL */
    Fad__Forward message;
    uint8_t packed[MESSAGE_SIZE];
    struct fa_call call;
};

/* Between two tensors of a payload: sent as zeroes, received and dropped. */
static const uint8_t zeroes[FA_PAYLOAD_ALIGN];

static enum fa_status place_tensors(struct fa_client *client, struct request *r)
{
    const struct fa_forward_args *a = r->args;
    const uint32_t kv_heads = a->kv_heads ? a->kv_heads : a->heads;
    const size_t element = fa_dtype_bytes(a->dtype ? a->dtype : FA_DTYPE_FLOAT32);
    const struct fa_extents q = {a->batch, a->heads, a->q_len, a->head_dim};
    const struct fa_extents kv = {a->batch, kv_heads, a->kv_len, a->head_dim};
    const struct fa_extents lse = {a->batch, a->heads, a->q_len, 1};

    if (element == 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "dtype", "%d is no dtype",
                              (int)a->dtype);
    r->tensors[Q] = (struct fa_placed){.name = "q", .tensor = &a->q, .extents = q};
    r->tensors[K] = (struct fa_placed){.name = "k", .tensor = &a->k, .extents = kv};
    r->tensors[V] = (struct fa_placed){.name = "v", .tensor = &a->v, .extents = kv};
    r->tensors[O] = (struct fa_placed){.name = "o", .tensor = &a->o, .extents = q};
    r->tensors[LSE] = (struct fa_placed){.name = "lse", .tensor = &a->lse, .extents = lse};
    r->tensors[O].output = r->tensors[LSE].output = true;
    for (int i = 0; i < TENSORS; i++) {
        struct fa_placed *placed = &r->tensors[i];
        enum fa_status status;

        placed->element = element;
        if (i == LSE && !a->lse.data)
            continue;
        status = fa_tensor_place(client, placed, &r->shared);
        if (status != FA_OK)
            return status;
    }
    return FA_OK;
}

/* Lays the inline inputs out in the payload, each at a multiple of FA_PAYLOAD_ALIGN. */
static enum fa_status fill_payload(struct fa_client *client, struct request *r)
{
    const uint64_t limit = client->info.payload_bytes;
    uint64_t end = 0;

    for (int i = Q; i <= V; i++) { /* three spans of at most 2^62 bytes: no overflow */
        struct fa_placed *placed = &r->tensors[i];
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
    for (int i = Q; i <= V; i++) {
        struct fa_placed *placed = &r->tensors[i];
        struct iovec *payload = r->call.payload;
        enum fa_status status;

        if (!fa_tensor_is_inline(placed) || placed->inline_bytes.length == 0)
            continue;
        if (placed->inline_bytes.offset > end)
            payload[r->call.payload_count++] =
                (struct iovec){(void *)(uintptr_t)zeroes, placed->inline_bytes.offset - end};
        status = fa_tensor_buffer(client, placed, &payload[r->call.payload_count++]);
        if (status != FA_OK)
            return status;
        end = placed->inline_bytes.offset + placed->inline_bytes.length;
    }
    return FA_OK;
}

/* The reply's payload: o, then lse at the next multiple of FA_PAYLOAD_ALIGN, what of them is
 * inline. gap takes the bytes between. */
static enum fa_status expect_payload(struct fa_client *client, struct request *r,
                                     uint8_t gap[FA_PAYLOAD_ALIGN])
{
    uint64_t bytes[2] = {0, 0}, lse_offset;

    for (int i = 0; i < 2; i++)
        if (fa_tensor_is_inline(&r->tensors[O + i]))
            bytes[i] = fa_tensor_wire_bytes(&r->tensors[O + i]);
    if (fa_output_layout(bytes[0], bytes[1], &lse_offset) > SIZE_MAX / 2)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "o", "is too large");
    for (int i = 0; i < 2; i++) {
        enum fa_status status;
        if (bytes[i] == 0)
            continue;
        status = fa_tensor_buffer(client, &r->tensors[O + i], &r->call.in[r->call.in_count]);
        if (status != FA_OK)
            return status;
        r->call.in_count++;
        if (i == 0 && bytes[1] > 0)
            r->call.in[r->call.in_count++] = (struct iovec){gap, lse_offset - bytes[0]};
    }
    return FA_OK;
}

static enum fa_status fill_message(struct fa_client *client, struct request *r)
{
    const struct fa_forward_args *a = r->args;
    Fad__Forward *m = &r->message;

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
    m->q = &r->tensors[Q].message;
    m->k = &r->tensors[K].message;
    m->v = &r->tensors[V].message;
    m->o = &r->tensors[O].message;
    m->lse = r->tensors[LSE].present ? &r->tensors[LSE].message : NULL;
    assert(fad__forward__get_packed_size(m) <= sizeof r->packed);
    r->call.message = (struct iovec){r->packed, fad__forward__pack(m, r->packed)};
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

static enum fa_status run(struct fa_client *client, struct request *r,
                          struct fa_forward_result *result)
{
    uint8_t gap[FA_PAYLOAD_ALIGN];
    uint64_t o_bytes;
    const Fad__Reply *reply;
    enum fa_status status;

    if ((status = place_tensors(client, r)) != FA_OK ||
        (status = fill_payload(client, r)) != FA_OK ||
        (status = expect_payload(client, r, gap)) != FA_OK ||
        (status = fill_message(client, r)) != FA_OK)
        return status;
    o_bytes = fa_tensor_is_inline(&r->tensors[O]) ? fa_tensor_wire_bytes(&r->tensors[O]) : 0;
    r->call.fd = r->shared ? r->shared->fd : -1;
    status = fa_call_run(client, &r->call, &reply);
    if (status != FA_OK)
        return status;
    if (!reply->forward)
        return fa_client_distrust(client, "forward", "the daemon's reply has none");
    if (reply->forward->has_payload_o_bytes && reply->forward->payload_o_bytes != o_bytes)
        return fa_client_distrust(client, "forward.payload_o_bytes",
                                  "not the bytes of the o that was asked for");
    for (int i = 0; i < TENSORS; i++)
        fa_tensor_scatter(&r->tensors[i]);
    if (result)
        take_result(result, reply->forward);
    return FA_OK;
}

enum fa_status fa_forward(struct fa_client *client, const struct fa_forward_args *args,
                          struct fa_forward_result *result)
{
    struct request r;
    enum fa_status status;

    if (!client)
        return FA_INVALID_ARGUMENT;
    if (result)
        memset(result, 0, sizeof *result);
    if (!args)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "args", "is NULL");
    memset(&r, 0, sizeof r);
    r.args = args;
    r.call.type = FA_FRAME_FORWARD;
    r.call.deadline = fa_deadline_after(client->timeout_ms);
    status = run(client, &r, result);
    for (int i = 0; i < TENSORS; i++)
        fa_tensor_release(&r.tensors[i]);
    return status;
}
