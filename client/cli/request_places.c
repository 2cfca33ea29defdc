#include "client/cli/request.h"
#include "client/fa_cuda.h"

#include <string.h>

/* --- Made and released ----------------------------------------------------------------------- */

static enum fa_status told(enum fa_status status, const struct fa_client *client,
                           struct fa_error *wrong)
{
    if (status != FA_OK)
        *wrong = *fa_last_error_record(client);
    return status;
}

/* On the device asked for, else the first of the daemon's that this process sees. *uuid is then
 * that one's. */
static enum fa_status alloc_device(void **out, const uint8_t **uuid, const struct fa_info *info,
                                   uint64_t bytes, struct fa_error *wrong)
{
    enum fa_status status = FA_NOT_FOUND;

    if (!fa_info_has_transport(info, "cuda-ipc") || info->device_count == 0)
        return fa_error_set(wrong, FA_IPC_REFUSED, NULL,
                            "--transport ipc: the daemon's backend is %s, which takes no CUDA IPC, "
                            "but: %s",
                            info->backend, info->transports);
    if (*uuid)
        return fa_cuda_alloc(out, bytes, *uuid, wrong);
    for (size_t i = 0; i < info->device_count && status == FA_NOT_FOUND; i++) {
        *uuid = info->devices[i].uuid;
        status = fa_cuda_alloc(out, bytes, *uuid, wrong);
    }
    return status;
}

enum fa_status request_places_alloc(struct request_places *out,
                                    const struct request_tensors *tensors, struct fa_client *client,
                                    uint32_t count, const uint8_t *uuid, struct fa_error *wrong)
{
    enum fa_status status = FA_OK;

    /* This process has these tensors in memory of its own, so that their bytes are far below 2^52,
     * and count is at most some thousands: no overflow. */
    *out = (struct request_places){0};
    if (tensors->device_bytes > 0)
        status = alloc_device(&out->device, &uuid, fa_client_info(client),
                              tensors->device_bytes * count, wrong);
    if (status == FA_OK && tensors->region_bytes > 0)
        status = told(fa_region_alloc(client, &out->region, tensors->region_bytes * count, uuid),
                      client, wrong);
    return status;
}

enum fa_status request_places_release(struct request_places *places, struct fa_client *client,
                                      struct fa_error *wrong)
{
    enum fa_status status = FA_OK, freed;

    if (client)
        status = told(fa_region_release(client, places->region), client, wrong);
    freed = fa_cuda_free(places->device, wrong);
    *places = (struct request_places){0};
    return status == FA_OK ? freed : status;
}

/* --- Copied ---------------------------------------------------------------------------------- */

static enum fa_status transfer_one(struct request_tensors *tensors, struct fa_client *client,
                                   size_t which, bool back, struct fa_error *wrong)
{
    const uint64_t offset = tensors->region_offset + tensors->offset[which];
    const uint64_t size = tensors->count[which] * sizeof(float);
    void *here = tensors->data[which];

    if (size == 0)
        return FA_OK;
    if (tensors->way[which] == REQUEST_IPC) {
        void *there = tensors->device + tensors->offset[which];
        return fa_cuda_copy(back ? here : there, back ? there : here, size, wrong);
    }
    return told(back ? fa_region_read(client, tensors->region, offset, here, size)
                     : fa_region_write(client, tensors->region, offset, here, size),
                client, wrong);
}

/* Copies data of those of the tensors [first, end) that lie outside this process there or, with
 * back, from there. */
static enum fa_status transfer(struct request_tensors *tensors, struct fa_client *client,
                               size_t first, size_t end, bool back, struct fa_error *wrong)
{
    enum fa_status status = FA_OK;

    for (size_t i = first; i < end && status == FA_OK; i++)
        if (tensors->way[i] == REQUEST_REGION || tensors->way[i] == REQUEST_IPC)
            status = transfer_one(tensors, client, i, back, wrong);
    return status;
}

enum fa_status request_upload(struct request_tensors *tensors, struct fa_client *client,
                              const struct request_places *places, uint32_t index,
                              struct fa_error *wrong)
{
    tensors->region = places->region;
    tensors->region_offset = index * tensors->region_bytes;
    if (places->device)
        tensors->device = (char *)places->device + index * tensors->device_bytes;
    return transfer(tensors, client, REQUEST_Q, REQUEST_O, false, wrong);
}

enum fa_status request_poison(struct request_tensors *tensors, struct fa_client *client,
                              struct fa_error *wrong)
{
    /* All bits set is a NaN. */
    for (size_t i = REQUEST_O; i < REQUEST_TENSORS; i++)
        if (tensors->data[i])
            memset(tensors->data[i], 0xff, tensors->count[i] * sizeof(float));
    return client ? transfer(tensors, client, REQUEST_O, REQUEST_TENSORS, false, wrong) : FA_OK;
}

enum fa_status request_download(struct request_tensors *tensors, struct fa_client *client,
                                struct fa_error *wrong)
{
    return transfer(tensors, client, REQUEST_O, REQUEST_TENSORS, true, wrong);
}
