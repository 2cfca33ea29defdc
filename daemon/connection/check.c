/* check.c: whether a decoded request's tensors lie inside their memory, and apart where they
 * must. */
#include "daemon/connection/request.h"

#include "daemon/connection/region.h"
#include "proto/fa_frame.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum fa_status check_span(struct fad_request *request, enum fad_tensor tensor,
                                 struct fa_error *error)
{
    const struct fa_extents size = fad_tensor_extents(&request->problem, tensor);
    const struct fa_strides strides = *fad_tensor_strides(&request->problem, tensor);
    const char *name = fad_tensor_name(tensor);
    uint64_t elements;

    if (!fa_span(size, strides, &elements))
        return fa_error_set(error, FA_INVALID_ARGUMENT, name,
                            "its extents and strides reach beyond any memory");
    if (fad_tensor_is_output(tensor) && !fa_strides_nest(size, strides))
        return fa_error_set(error, FA_INVALID_ARGUMENT, name,
                            "an output's strides must not let two elements share a place");
    request->at[tensor].span = elements * fad_tensor_element(&request->problem, tensor);
    return FA_OK;
}

static enum fa_status check_inline(struct fad_location *at, const char *name,
                                   uint64_t payload_length, struct fa_error *error)
{
    char field[sizeof error->field];

    if (!fad_inside(at->offset, at->length, payload_length)) {
        snprintf(field, sizeof field, "%s.inline_bytes.offset", name);
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "offset %" PRIu64 " and length %" PRIu64
                            " reach past the payload's %" PRIu64 " bytes",
                            at->offset, at->length, payload_length);
    }
    if (at->span > at->length) {
        snprintf(field, sizeof field, "%s.inline_bytes.length", name);
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "%" PRIu64 " bytes, but shape and strides reach over %" PRIu64,
                            at->length, at->span);
    }
    return FA_OK;
}

static enum fa_status check_memfd(const struct fad_location *at, const char *name,
                                  int64_t memfd_size, struct fa_error *error)
{
    char field[sizeof error->field];

    if (memfd_size < 0) {
        snprintf(field, sizeof field, "%s.memfd", name);
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "no descriptor travels with the frame");
    }
    if (!fad_inside(at->offset, at->span, (uint64_t)memfd_size)) {
        snprintf(field, sizeof field, "%s.memfd.offset", name);
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "offset %" PRIu64 " and a span of %" PRIu64
                            " bytes reach past the memory's %" PRId64,
                            at->offset, at->span, memfd_size);
    }
    return FA_OK;
}

static enum fa_status check_region(const struct fad_location *at, enum fad_tensor tensor,
                                   struct fa_error *error)
{
    const struct fad_region *region = &at->region->region;
    char field[sizeof error->field];

    if (fad_tensor_is_output(tensor) && !at->region->writable) {
        snprintf(field, sizeof field, "%s.region", fad_tensor_name(tensor));
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "an output lies in it, but it was registered without writable");
    }
    if (!fad_inside(at->offset, at->span, region->size)) {
        snprintf(field, sizeof field, "%s.region.offset", fad_tensor_name(tensor));
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "offset %" PRIu64 " and a span of %" PRIu64
                            " bytes reach past the region's %" PRIu64,
                            at->offset, at->span, region->size);
    }
    return FA_OK;
}

/* The allocation on a GPU that a tensor lies in, whether by its handle or in a region of it. */
struct allocation {
    const uint8_t *handle; /* NULL: in none */
    uint64_t buffer_id;
};

static struct allocation allocation_of(const struct fad_location *at)
{
    const struct fad_region_source *source;

    if (at->place == FAD_IPC)
        return (struct allocation){at->ipc.handle, at->ipc.buffer_id};
    if (at->place != FAD_REGION || at->region->region.source.kind != FAD_REGION_IPC)
        return (struct allocation){NULL, 0};
    source = &at->region->region.source;
    return (struct allocation){source->handle, source->buffer_id};
}

/* In all of these an offset counts from the memory's start. */
static bool same_memory(const struct fad_location *a, const struct fad_location *b)
{
    const struct allocation at_a = allocation_of(a), at_b = allocation_of(b);

    if (at_a.handle && at_b.handle)
        return at_a.buffer_id == at_b.buffer_id &&
               memcmp(at_a.handle, at_b.handle, sizeof a->ipc.handle) == 0;
    if (a->place != b->place)
        return false;
    return a->place == FAD_REGION ? a->region == b->region : a->place == FAD_MEMFD;
}

static enum fa_status check_apart(const struct fad_request *request, enum fad_tensor output,
                                  struct fa_error *error)
{
    const struct fad_location *out = &request->at[output];

    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *other = &request->at[t];
        if (t == (int)output || !same_memory(out, other) || out->span == 0 || other->span == 0)
            continue;
        if (out->offset < other->offset ? other->offset - out->offset < out->span
                                        : out->offset - other->offset < other->span)
            return fa_error_set(error, FA_INVALID_ARGUMENT, fad_tensor_name(output),
                                "overlaps %s; an output needs bytes of its own",
                                fad_tensor_name((enum fad_tensor)t));
    }
    return FA_OK;
}

static enum fa_status lay_out_outputs(struct fad_request *request, struct fa_error *error)
{
    struct fad_location *o = &request->at[FAD_O], *lse = &request->at[FAD_LSE];
    uint64_t o_bytes = o->place == FAD_INLINE ? o->span : 0;
    uint64_t lse_bytes = lse->place == FAD_INLINE ? lse->span : 0;
    uint64_t lse_offset;

    request->output_size = fa_output_layout(o_bytes, lse_bytes, &lse_offset);
    if (request->output_size == UINT64_MAX)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "o", "the outputs exceed any memory");
    if (lse->place == FAD_INLINE)
        lse->offset = lse_offset;
    return FA_OK;
}

enum fa_status fad_request_check(struct fad_request *request, uint64_t payload_length,
                                 int64_t memfd_size, struct fa_error *error)
{
    enum fa_status status;
    bool memfd_used = false;

    for (int t = 0; t < FAD_TENSORS; t++) {
        struct fad_location *at = &request->at[t];
        const char *name = fad_tensor_name((enum fad_tensor)t);

        if (at->place == FAD_NOWHERE)
            continue;
        if ((status = check_span(request, (enum fad_tensor)t, error)) != FA_OK)
            return status;
        if (at->place == FAD_INLINE && !fad_tensor_is_output((enum fad_tensor)t))
            status = check_inline(at, name, payload_length, error);
        else if (at->place == FAD_MEMFD)
            status = check_memfd(at, name, memfd_size, error);
        else if (at->place == FAD_REGION)
            status = check_region(at, (enum fad_tensor)t, error);
        if (status != FA_OK)
            return status;
        memfd_used |= at->place == FAD_MEMFD;
    }
    if (memfd_size >= 0 && !memfd_used)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "header.nfds",
                            "a descriptor travels with the frame, but no tensor lies in it");
    if ((status = check_apart(request, FAD_O, error)) != FA_OK ||
        (status = check_apart(request, FAD_LSE, error)) != FA_OK)
        return status;
    return lay_out_outputs(request, error);
}

bool fad_request_writes_memfd(const struct fad_request *request)
{
    return request->at[FAD_O].place == FAD_MEMFD || request->at[FAD_LSE].place == FAD_MEMFD;
}
