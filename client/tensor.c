#include "client/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum fa_status refuse_as(struct fa_client *client, const struct fa_placed *placed,
                                const char *part, enum fa_status status, const char *text)
{
    char field[sizeof client->error.field];

    snprintf(field, sizeof field, "%s%s%s", placed->name, part[0] ? "." : "", part);
    return fa_client_fail(client, status, field, "%s", text);
}

static enum fa_status refuse(struct fa_client *client, const struct fa_placed *placed,
                             const char *part, const char *text)
{
    return refuse_as(client, placed, part, FA_INVALID_ARGUMENT, text);
}

/* --- Checks ---------------------------------------------------------------------------------- */

static enum fa_status measure(struct fa_client *client, struct fa_placed *placed)
{
    const struct fa_strides packed = fa_packed_strides(placed->extents);
    const struct fa_strides *given = placed->tensor->strides;
    uint64_t elements;

    placed->strides = given ? *given : packed;
    if (placed->strides.batch < 0)
        return refuse(client, placed, "stride_batch", "is negative");
    if (placed->strides.head < 0)
        return refuse(client, placed, "stride_head", "is negative");
    if (placed->strides.row < 0)
        return refuse(client, placed, "stride_row", "is negative");
    if (!fa_span(placed->extents, packed, &elements))
        return refuse(client, placed, "", "has more elements than can be addressed");
    placed->packed_bytes = elements * placed->element;
    if (!fa_span(placed->extents, placed->strides, &elements))
        return refuse(client, placed, "", "its strides reach further than can be addressed");
    placed->span_bytes = elements * placed->element;
    return FA_OK;
}

/* In shared memory an output's strides are the daemon's to check; inline, only libfa knows them. */
static enum fa_status place_inline(struct fa_client *client, struct fa_placed *placed)
{
    if (placed->output && !fa_strides_nest(placed->extents, placed->strides))
        return refuse(client, placed, "",
                      "two elements may share a place: each stride of an output must be at least "
                      "the span of the dimensions inside it");
    placed->message.inline_bytes = &placed->inline_bytes;
    return FA_OK;
}

static enum fa_status place_shared(struct fa_client *client, struct fa_placed *placed,
                                   const struct fa_shared **used)
{
    const struct fa_shared *shared = placed->tensor->shared;
    uintptr_t start = (uintptr_t)shared->data, data = (uintptr_t)placed->tensor->data;

    if (placed->tensor->cuda != FA_CUDA_NO)
        return refuse(client, placed, "cuda", "must be FA_CUDA_NO for a tensor in a fa_shared");
    if (!shared->data || shared->fd < 0)
        return refuse(client, placed, "shared", "is not one that fa_shared_create made");
    if (*used && (*used)->fd != shared->fd)
        return refuse(client, placed, "shared",
                      "another tensor of this request lies in another fa_shared; a request can use "
                      "one");
    if (data - start > shared->size || /* below it: wraps to more than any size */
        placed->span_bytes > shared->size - (data - start))
        return refuse(client, placed, "shared", "the tensor does not lie inside it");
    if ((data - start) % FA_OFFSET_ALIGN != 0)
        return refuse(client, placed, "memfd.offset", "is not a multiple of 4");
    *used = shared;
    placed->message.memfd = &placed->memfd;
    placed->memfd.has_offset = true;
    placed->memfd.offset = data - start;
    return FA_OK;
}

static enum fa_status place_region(struct fa_client *client, struct fa_placed *placed)
{
    const struct fa_tensor *tensor = placed->tensor;
    const struct fa_region *region = tensor->region;
    char field[sizeof client->error.field];
    enum fa_status status;

    if (tensor->data)
        return refuse(client, placed, "data", "must be NULL for a tensor in a region");
    if (tensor->shared)
        return refuse(client, placed, "shared", "must be NULL for a tensor in a region");
    if (tensor->cuda != FA_CUDA_NO)
        return refuse(client, placed, "cuda", "must be FA_CUDA_NO for a tensor in a region");
    snprintf(field, sizeof field, "%s.region", placed->name);
    status = fa_region_check(client, region, field);
    if (status != FA_OK)
        return status;
    if (placed->output && !region->writable)
        return refuse(client, placed, "region", "is not writable");
    if (tensor->region_offset % FA_OFFSET_ALIGN != 0)
        return refuse(client, placed, "region.offset", "is not a multiple of 4");
    if (tensor->region_offset > region->size ||
        placed->span_bytes > region->size - tensor->region_offset)
        return refuse(client, placed, "region.offset", "the tensor does not lie inside the region");
    placed->message.region = &placed->region;
    placed->region.has_region = placed->region.has_offset = true;
    placed->region.region = region->id;
    placed->region.offset = region->base + tensor->region_offset;
    return FA_OK;
}

bool fa_tensor_present(const struct fa_tensor *tensor)
{
    return tensor->data || tensor->region;
}

enum fa_status fa_tensor_place(struct fa_client *client, struct fa_placed *placed,
                               const struct fa_shared **shared)
{
    const struct fa_tensor *tensor = placed->tensor;
    enum fa_status status;

    placed->message = (Fad__Tensor)FAD__TENSOR__INIT;
    placed->inline_bytes = (Fad__InlineLocation)FAD__INLINE_LOCATION__INIT;
    placed->memfd = (Fad__MemfdLocation)FAD__MEMFD_LOCATION__INIT;
    placed->region = (Fad__RegionLocation)FAD__REGION_LOCATION__INIT;
    placed->cuda_ipc = (Fad__CudaIpcLocation)FAD__CUDA_IPC_LOCATION__INIT;
    if (!fa_tensor_present(tensor))
        return refuse(client, placed, "", "is required: its data is NULL");
    placed->present = true;
    status = measure(client, placed);
    if (status == FA_OK && tensor->region)
        status = place_region(client, placed);
    else if (status == FA_OK && tensor->shared)
        status = place_shared(client, placed, shared);
    else if (status == FA_OK && tensor->cuda != FA_CUDA_NO && placed->span_bytes > 0)
        status = fa_cuda_place(client, placed);
    if (status == FA_OK && !tensor->region && !tensor->shared && !placed->message.cuda_ipc)
        status = place_inline(client, placed);
    if (status != FA_OK)
        return status;

    /* Inputs that would be longer with their gaps are packed first; inline outputs come packed. */
    if (tensor->strides && (!fa_tensor_is_inline(placed) ||
                            (!placed->output && placed->span_bytes <= placed->packed_bytes))) {
        placed->message.has_stride_batch = placed->message.has_stride_head = true;
        placed->message.has_stride_row = true;
        placed->message.stride_batch = placed->strides.batch;
        placed->message.stride_head = placed->strides.head;
        placed->message.stride_row = placed->strides.row;
    }
    return FA_OK;
}

bool fa_tensor_is_inline(const struct fa_placed *placed)
{
    return placed->message.inline_bytes != NULL;
}

uint64_t fa_tensor_wire_bytes(const struct fa_placed *placed)
{
    return placed->message.has_stride_row ? placed->span_bytes : placed->packed_bytes;
}

/* --- Buffers --------------------------------------------------------------------------------- */

/* Copies every row between the tensor's place and its packed copy. */
static enum fa_status copy_rows(const struct fa_copy *copy, bool gather, struct fa_error *error)
{
    const struct fa_extents e = copy->extents;
    const struct fa_strides s = copy->strides;
    const size_t row_bytes = e.width * copy->element;
    char *packed = copy->packed;

    if (copy->home.driver)
        return fa_cuda_copy_rows(copy, gather, error);
    for (uint32_t b = 0; b < e.batch; b++) {
        for (uint32_t h = 0; h < e.heads; h++) {
            for (uint32_t i = 0; i < e.rows; i++) {
                int64_t first = b * s.batch + h * s.head + i * s.row;
                char *row = copy->data + (uint64_t)first * copy->element;
                if (gather)
                    memcpy(packed, row, row_bytes);
                else
                    memcpy(row, packed, row_bytes);
                packed += row_bytes;
            }
        }
    }
    return FA_OK;
}

static bool same_strides(struct fa_strides a, struct fa_strides b)
{
    return a.batch == b.batch && a.head == b.head && a.row == b.row;
}

enum fa_status fa_tensor_buffer(struct fa_client *client, const struct fa_placed *placed,
                                struct fa_copy *copy, struct iovec *out)
{
    const uint64_t bytes = fa_tensor_wire_bytes(placed);
    const bool as_it_lies = placed->message.has_stride_row ||
                            same_strides(placed->strides, fa_packed_strides(placed->extents));
    struct fa_error error;

    *out = (struct iovec){placed->tensor->data, bytes};
    if (bytes == 0 || (as_it_lies && !placed->home.driver))
        return FA_OK;
    *copy = (struct fa_copy){.home = placed->home,
                             .data = placed->tensor->data,
                             .packed = malloc(bytes),
                             .extents = placed->extents,
                             .strides = placed->strides,
                             .element = placed->element};
    if (!copy->packed)
        return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, placed->name,
                              "no memory for a packed copy of %llu bytes",
                              (unsigned long long)bytes);
    if (as_it_lies) { /* one element: all of it */
        copy->extents = (struct fa_extents){1, 1, 1, 1};
        copy->element = bytes;
    }
    out->iov_base = copy->packed;
    if (!placed->output && copy_rows(copy, true, &error) != FA_OK)
        return refuse_as(client, placed, "data", error.status, error.text);
    return FA_OK;
}

enum fa_status fa_copy_scatter(const struct fa_copy *copy, struct fa_error *error)
{
    return copy->packed ? copy_rows(copy, false, error) : FA_OK;
}

void fa_copy_release(struct fa_copy *copy)
{
    free(copy->packed);
    copy->packed = NULL;
}
