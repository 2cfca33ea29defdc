#include "client/internal.h"

#include <stdio.h>
#include <string.h>

/* --- Allocations that the daemon opens ------------------------------------------------------- */

/* The allocation of that pointer among those that were shared before, or NULL. */
static const struct fa_cuda_memory *find_export(const struct fa_client *client, const void *pointer)
{
    const uint64_t id = fa_cuda_memory_id(pointer);

    for (size_t i = 0; id != 0 && i < FA_EXPORTS_MAX; i++)
        if (client->exports[i].id == id)
            return &client->exports[i];
    return NULL;
}

static enum fa_status refuse_device(struct fa_client *client, const uint8_t uuid[16],
                                    const char *field)
{
    const struct fa_info *info = &client->info;
    char served[160] = "", text[FA_UUID_TEXT];
    size_t length = 0;

    for (size_t i = 0; i < info->device_count && length < sizeof served; i++) {
        fa_uuid_text(info->devices[i].uuid, text);
        length += (size_t)snprintf(served + length, sizeof served - length, "%sGPU-%s",
                                   i ? ", " : "", text);
    }
    fa_uuid_text(uuid, text);
    return fa_client_fail(client, FA_IPC_REFUSED, field,
                          "is on device GPU-%s; use FA_CUDA_COPY, or one that the daemon serves: "
                          "%s",
                          text, served);
}

static bool is_served(const struct fa_info *info, const uint8_t uuid[16])
{
    for (size_t i = 0; i < info->device_count; i++)
        if (memcmp(info->devices[i].uuid, uuid, sizeof info->devices[i].uuid) == 0)
            return true;
    return false;
}

enum fa_status fa_cuda_share(struct fa_client *client, const void *pointer, const char *field,
                             struct fa_cuda_memory *out)
{
    const struct fa_info *info = &client->info;
    const struct fa_cuda_memory *known;
    struct fa_error error;

    if (!fa_info_has_transport(info, "cuda-ipc"))
        return fa_client_fail(client, FA_IPC_REFUSED, field,
                              "the daemon, whose backend is %s, takes no CUDA IPC but: %s; use "
                              "FA_CUDA_COPY, or host memory",
                              info->backend, info->transports);
    known = find_export(client, pointer);
    if (known) {
        *out = *known;
    } else if (fa_cuda_export(pointer, out, &error) != FA_OK) {
        return fa_client_fail(client, error.status, field, "%s", error.text);
    } else {
        client->exports[client->next_export] = *out;
        client->next_export = (client->next_export + 1) % FA_EXPORTS_MAX;
    }
    return is_served(info, out->uuid) ? FA_OK : refuse_device(client, out->uuid, field);
}

void fa_cuda_locate(struct fa_cuda_memory *memory, Fad__CudaIpcLocation *location)
{
    location->has_handle = location->has_buffer_id = location->has_device_uuid = true;
    location->handle = (ProtobufCBinaryData){sizeof memory->handle.bytes, memory->handle.bytes};
    location->buffer_id = memory->id;
    location->device_uuid = (ProtobufCBinaryData){sizeof memory->uuid, memory->uuid};
}

/* --- Tensors --------------------------------------------------------------------------------- */

static enum fa_status place_ipc(struct fa_client *client, struct fa_placed *placed,
                                const char *field)
{
    const uintptr_t data = (uintptr_t)placed->tensor->data;
    struct fa_cuda_memory *memory = &placed->memory;
    enum fa_status status = fa_cuda_share(client, placed->tensor->data, field, memory);
    uint64_t offset;

    if (status != FA_OK)
        return status;
    offset = data - memory->base;
    if (placed->span_bytes > memory->size - offset)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, field,
                              "the tensor ends after its allocation: it has %llu bytes, of which "
                              "%llu are left there",
                              (unsigned long long)placed->span_bytes,
                              (unsigned long long)(memory->size - offset));
    if (offset % FA_OFFSET_ALIGN != 0)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, field,
                              "is not a multiple of 4 bytes from its allocation's start");
    fa_cuda_locate(memory, &placed->cuda_ipc);
    placed->cuda_ipc.has_offset = true;
    placed->cuda_ipc.offset = offset;
    placed->message.cuda_ipc = &placed->cuda_ipc;
    return FA_OK;
}

enum fa_status fa_cuda_place(struct fa_client *client, struct fa_placed *placed)
{
    const struct fa_tensor *tensor = placed->tensor;
    char field[sizeof client->error.field];
    struct fa_error error;

    snprintf(field, sizeof field, "%s.data", placed->name);
    if (tensor->cuda == FA_CUDA_IPC)
        return place_ipc(client, placed, field);
    if (tensor->cuda == FA_CUDA_COPY)
        return fa_cuda_find(tensor->data, &placed->home, &error) == FA_OK
                   ? FA_OK
                   : fa_client_fail(client, error.status, field, "%s", error.text);
    snprintf(field, sizeof field, "%s.cuda", placed->name);
    return fa_client_fail(client, FA_INVALID_ARGUMENT, field, "%d is no enum fa_cuda",
                          (int)tensor->cuda);
}

/* --- The event ------------------------------------------------------------------------------- */

/* Where the memory is that the daemon has of this process's for the tensor; NULL: it has none. */
static const struct fa_cuda_home *daemons_home(const struct fa_placed *placed)
{
    if (placed->message.cuda_ipc)
        return &placed->memory.home;
    return placed->message.region && placed->tensor->region->home.driver
               ? &placed->tensor->region->home
               : NULL;
}

/* Puts the event into the tensor's message. */
static void put_event(struct fa_placed *placed, struct fa_cuda_handle *handle)
{
    const ProtobufCBinaryData event = {sizeof handle->bytes, handle->bytes};

    if (placed->message.cuda_ipc) {
        placed->cuda_ipc.has_event = true;
        placed->cuda_ipc.event = event;
    } else {
        placed->region.has_event = true;
        placed->region.event = event;
    }
}

enum fa_status fa_cuda_place_event(struct fa_client *client, struct fa_placed tensors[FA_TENSORS],
                                   void *event, struct fa_cuda_handle *handle)
{
    bool sent = false, awaited = false, any = false;
    struct fa_error error;

    /* The handle is asked for each time, unlike memory's: nothing tells an event from another that
     * was made at its address after its end. */
    for (int i = 0; i < FA_TENSORS; i++) {
        struct fa_placed *placed = &tensors[i];
        const struct fa_cuda_home *home = placed->present ? daemons_home(placed) : NULL;
        enum fa_status status = FA_OK;

        any |= placed->present && (placed->tensor->cuda != FA_CUDA_NO || home);
        if (home && !sent) {
            status = fa_cuda_export_event(event, home, handle, &error);
            put_event(placed, handle);
            sent = true;
        } else if (placed->home.driver && !awaited) {
            status = fa_cuda_await_event(event, &placed->home, &error);
            awaited = true;
        }
        if (status != FA_OK)
            return fa_client_fail(client, status, "cuda_event", "%s", error.text);
    }
    return any ? FA_OK
               : fa_client_fail(client, FA_INVALID_ARGUMENT, "cuda_event",
                                "is given, but no tensor is FA_CUDA_IPC or FA_CUDA_COPY, or in a "
                                "region of fa_region_register_cuda");
}
