/* decode.c: from a Forward message to a plain request. The only place that reads protobuf fields of
 * one. */
#include "daemon/connection/decode.h"

#include "proto/fa_arena.h"

#include <stdio.h>
#include <string.h>

const char *fad_tensor_name(enum fad_tensor tensor)
{
    static const char *const names[FAD_TENSORS] = {"q", "k", "v", "o", "lse"};
    return names[tensor];
}

struct fa_strides *fad_tensor_strides(struct fa_problem *problem, enum fad_tensor tensor)
{
    struct fa_strides *const strides[FAD_TENSORS] = {&problem->q, &problem->k, &problem->v,
                                                     &problem->o, &problem->lse};
    return strides[tensor];
}

struct fa_extents fad_tensor_extents(const struct fa_problem *problem, enum fad_tensor tensor)
{
    switch (tensor) {
    case FAD_K:
    case FAD_V:
        return fa_kv_extents(problem);
    case FAD_LSE:
        return fa_lse_extents(problem);
    default:
        return fa_q_extents(problem);
    }
}

uint64_t fad_tensor_element(const struct fa_problem *problem, enum fad_tensor tensor)
{
    return tensor == FAD_LSE ? sizeof(float) : fa_dtype_bytes(problem->dtype);
}

static enum fa_status refuse(struct fa_error *error, enum fad_tensor tensor, const char *field,
                             const char *text)
{
    char path[sizeof error->field];
    snprintf(path, sizeof path, "%s%s%s", fad_tensor_name(tensor), field[0] ? "." : "", field);
    return fa_error_set(error, FA_INVALID_ARGUMENT, path, "%s", text);
}

static enum fa_status decode_inline(const Fad__InlineLocation *in, enum fad_tensor tensor,
                                    struct fad_location *out, struct fa_error *error)
{
    out->place = FAD_INLINE;
    if (fad_tensor_is_output(tensor)) {
        if (in->has_offset || in->has_length)
            return refuse(error, tensor, "inline_bytes",
                          "an inline output has no offset or length: it comes back in the reply");
        return FA_OK;
    }
    if (!in->has_offset)
        return refuse(error, tensor, "inline_bytes.offset", "missing");
    if (!in->has_length)
        return refuse(error, tensor, "inline_bytes.length", "missing");
    if (in->offset % 4 != 0)
        return refuse(error, tensor, "inline_bytes.offset", "not a multiple of 4");
    out->offset = in->offset;
    out->length = in->length;
    return FA_OK;
}

static enum fa_status decode_memfd(const Fad__MemfdLocation *in, enum fad_tensor tensor,
                                   struct fad_location *out, struct fa_error *error)
{
    out->place = FAD_MEMFD;
    if (!in->has_offset)
        return refuse(error, tensor, "memfd.offset", "missing");
    if (in->offset % 4 != 0)
        return refuse(error, tensor, "memfd.offset", "not a multiple of 4");
    out->offset = in->offset;
    return FA_OK;
}

static enum fa_status decode_event(bool given, ProtobufCBinaryData event, enum fad_tensor tensor,
                                   const char *field, struct fad_location *out,
                                   struct fa_error *error)
{
    if (given && event.len != sizeof out->event)
        return refuse(error, tensor, field, "must have 64 bytes (cudaIpcEventHandle_t)");
    out->has_event = given;
    if (given)
        memcpy(out->event, event.data, sizeof out->event);
    return FA_OK;
}

static enum fa_status decode_region(const Fad__RegionLocation *in, enum fad_tensor tensor,
                                    struct fad_location *out, struct fa_error *error)
{
    out->place = FAD_REGION;
    if (!in->has_region)
        return refuse(error, tensor, "region.region", "missing");
    if (!in->has_offset)
        return refuse(error, tensor, "region.offset", "missing");
    if (in->offset % 4 != 0)
        return refuse(error, tensor, "region.offset", "not a multiple of 4");
    out->region_id = in->region;
    out->offset = in->offset;
    return decode_event(in->has_event, in->event, tensor, "region.event", out, error);
}

static enum fa_status refuse_ipc(struct fa_error *error, const char *field, const char *of_it,
                                 const char *text)
{
    char path[sizeof error->field];
    snprintf(path, sizeof path, "%s.%s", field, of_it);
    return fa_error_set(error, FA_INVALID_ARGUMENT, path, "%s", text);
}

enum fa_status fad_ipc_decode(const Fad__CudaIpcLocation *in, const char *field,
                              struct fad_ipc *out, struct fa_error *error)
{
    if (!in->has_handle || in->handle.len != sizeof out->handle)
        return refuse_ipc(error, field, "handle", "must have 64 bytes (cudaIpcMemHandle_t)");
    if (!in->has_buffer_id)
        return refuse_ipc(error, field, "buffer_id", "missing");
    if (!in->has_device_uuid || in->device_uuid.len != sizeof out->device_uuid)
        return refuse_ipc(error, field, "device_uuid", "must have 16 bytes");
    memcpy(out->handle, in->handle.data, sizeof out->handle);
    memcpy(out->device_uuid, in->device_uuid.data, sizeof out->device_uuid);
    out->buffer_id = in->buffer_id;
    return FA_OK;
}

static enum fa_status decode_ipc(const Fad__CudaIpcLocation *in, enum fad_tensor tensor,
                                 struct fad_location *out, struct fa_error *error)
{
    char field[sizeof error->field];

    out->place = FAD_IPC;
    snprintf(field, sizeof field, "%s.cuda_ipc", fad_tensor_name(tensor));
    if (fad_ipc_decode(in, field, &out->ipc, error) != FA_OK)
        return error->status;
    if (!in->has_offset)
        return refuse(error, tensor, "cuda_ipc.offset", "missing");
    if (in->offset % 4 != 0)
        return refuse(error, tensor, "cuda_ipc.offset", "not a multiple of 4");
    out->offset = in->offset;
    return decode_event(in->has_event, in->event, tensor, "cuda_ipc.event", out, error);
}

static enum fa_status decode_strides(const Fad__Tensor *in, enum fad_tensor tensor,
                                     struct fa_strides *out, struct fa_error *error)
{
    const struct {
        const char *name;
        protobuf_c_boolean present;
        int64_t value;
    } steps[3] = {{"stride_batch", in->has_stride_batch, in->stride_batch},
                  {"stride_head", in->has_stride_head, in->stride_head},
                  {"stride_row", in->has_stride_row, in->stride_row}};

    if (!steps[0].present && !steps[1].present && !steps[2].present)
        return FA_OK; /* packed, as *out already is */
    for (int i = 0; i < 3; i++) {
        if (!steps[i].present)
            return refuse(error, tensor, steps[i].name,
                          "missing: give all three strides or none (the last dimension is dense)");
        if (steps[i].value < 0)
            return refuse(error, tensor, steps[i].name, "negative");
    }
    if (in->inline_bytes && fad_tensor_is_output(tensor))
        return refuse(error, tensor, "stride_batch", "an inline output comes back packed");
    *out = (struct fa_strides){in->stride_batch, in->stride_head, in->stride_row};
    return FA_OK;
}

static enum fa_status decode_tensor(const Fad__Tensor *in, enum fad_tensor tensor,
                                    struct fad_request *request, struct fa_error *error)
{
    struct fad_location *out = &request->at[tensor];
    enum fa_status status;

    if (!in)
        return tensor == FAD_LSE ? FA_OK : refuse(error, tensor, "", "missing");
    if (!!in->inline_bytes + !!in->memfd + !!in->region + !!in->cuda_ipc != 1)
        return refuse(error, tensor, "",
                      "needs exactly one of inline_bytes, memfd, region and cuda_ipc");
    if (in->inline_bytes)
        status = decode_inline(in->inline_bytes, tensor, out, error);
    else if (in->memfd)
        status = decode_memfd(in->memfd, tensor, out, error);
    else if (in->region)
        status = decode_region(in->region, tensor, out, error);
    else
        status = decode_ipc(in->cuda_ipc, tensor, out, error);
    if (status != FA_OK)
        return status;
    return decode_strides(in, tensor, fad_tensor_strides(&request->problem, tensor), error);
}

/* Printable ASCII is all that a version's name can have; of UTF-8 nothing else is needed. */
static enum fa_status decode_version(const Fad__Forward *in, char *out, size_t size,
                                     struct fa_error *error)
{
    if (!in->has_version) {
        snprintf(out, size, "auto");
        return FA_OK;
    }
    if (in->version.len == 0 || in->version.len >= size)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "version", "must have 1 to %zu bytes",
                            size - 1);
    for (size_t i = 0; i < in->version.len; i++)
        if (in->version.data[i] <= 0x20 || in->version.data[i] >= 0x7f)
            return fa_error_set(error, FA_INVALID_ARGUMENT, "version",
                                "byte 0x%02x at %zu is no part of any version's name",
                                in->version.data[i], i);
    memcpy(out, in->version.data, in->version.len);
    out[in->version.len] = '\0';
    return FA_OK;
}

static enum fa_status decode_turns(const Fad__Forward *in, struct fad_request *out,
                                   struct fa_error *error)
{
    out->priority = in->has_priority ? (enum fa_priority)in->priority : FA_PRIORITY_NORMAL;
    if (fa_priority_weight(out->priority) == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "priority", "%d is no priority",
                            (int)out->priority);
    if (in->has_deadline_us && in->deadline_us == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "deadline_us",
                            "must be over 0; leave it out for none");
    out->deadline_us = in->deadline_us;
    return FA_OK;
}

static enum fa_status decode_problem(const Fad__Forward *in, struct fa_problem *out,
                                     struct fa_error *error)
{
    const struct {
        const char *name;
        protobuf_c_boolean present;
        uint32_t value;
        uint32_t *to;
    } fields[] = {
        {"batch", in->has_batch, in->batch, &out->batch},
        {"heads", in->has_heads, in->heads, &out->heads},
        {"q_len", in->has_q_len, in->q_len, &out->q_len},
        {"kv_len", in->has_kv_len, in->kv_len, &out->kv_len},
        {"head_dim", in->has_head_dim, in->head_dim, &out->head_dim},
    };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (!fields[i].present)
            return fa_error_set(error, FA_INVALID_ARGUMENT, fields[i].name, "missing");
        *fields[i].to = fields[i].value;
    }
    if (!in->has_dtype)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "dtype", "missing");
    out->kv_heads = in->has_kv_heads ? in->kv_heads : in->heads;
    out->dtype = (enum fa_dtype)in->dtype;
    out->mask = in->has_mask ? (enum fa_mask)in->mask : FA_MASK_NONE;
    out->scale = in->has_scale ? in->scale : fa_default_scale(in->head_dim);
    return fa_problem_check(out, error);
}

enum fa_status fad_request_decode(const uint8_t *message, size_t length,
                                  ProtobufCAllocator *allocator, struct fad_request *request,
                                  struct fa_error *error)
{
    const Fad__Forward *in = fad__forward__unpack(allocator, length, message);
    enum fa_status status;

    memset(request, 0, sizeof *request);
    if (!in)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "message",
                            "not a Forward, or one with far too many fields");
    if ((status = decode_version(in, request->version, sizeof request->version, error)) != FA_OK ||
        (status = decode_turns(in, request, error)) != FA_OK ||
        (status = decode_problem(in, &request->problem, error)) != FA_OK)
        return status;
    fa_set_packed(&request->problem);
    const Fad__Tensor *const tensors[FAD_TENSORS] = {in->q, in->k, in->v, in->o, in->lse};
    for (int t = 0; t < FAD_TENSORS; t++)
        if ((status = decode_tensor(tensors[t], (enum fad_tensor)t, request, error)) != FA_OK)
            return status;
    return FA_OK;
}
