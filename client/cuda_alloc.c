#include "client/cuda_memory.h"
#include "client/fa_cuda.h"

#include <string.h>

static enum fa_status find_device(const struct fa_cuda_driver *driver, const uint8_t *uuid,
                                  int *out, struct fa_error *error)
{
    uint8_t found[16];
    int count = 0, result = driver->device_count(&count);

    for (int i = 0; i < count && result == FA_CU_SUCCESS; i++) {
        result = driver->device_get(out, i);
        if (result == FA_CU_SUCCESS && uuid)
            result = driver->device_uuid(found, *out);
        if (result == FA_CU_SUCCESS && (!uuid || memcmp(found, uuid, sizeof found) == 0))
            return FA_OK;
    }
    if (result != FA_CU_SUCCESS)
        return fa_cuda_failed(error, result, "list its devices");
    return fa_error_set(error, FA_NOT_FOUND, "uuid",
                        "this process sees no such device; see CUDA_VISIBLE_DEVICES and "
                        "nvidia-smi -L");
}

enum fa_status fa_cuda_alloc(void **out, uint64_t size, const uint8_t *uuid, struct fa_error *error)
{
    struct fa_error unwanted = {.status = FA_OK};
    struct fa_cuda_home home = {0};
    uint64_t pointer = 0;
    void *context;
    int result;

    error = error ? error : &unwanted;
    if (!out)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "out", "is NULL");
    *out = NULL;
    if (size == 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "size", "is 0");
    home.driver = fa_cuda_driver(error);
    if (!home.driver || find_device(home.driver, uuid, &home.device, error) != FA_OK)
        return error->status;
    result = fa_cuda_enter(&home);
    if (result == FA_CU_SUCCESS) {
        result = home.driver->alloc(&pointer, size);
        if (result == FA_CU_SUCCESS) /* the context ends with its last allocation */
            result = home.driver->primary_retain(&context, home.device);
        fa_cuda_leave(&home);
    }
    *out = result == FA_CU_SUCCESS ? (void *)(uintptr_t)pointer : NULL;
    return fa_cuda_failed(error, result, "allocate memory");
}

enum fa_status fa_cuda_free(void *pointer, struct fa_error *error)
{
    struct fa_error unwanted = {.status = FA_OK}, wrong;
    struct fa_cuda_home home;
    int result;

    error = error ? error : &unwanted;
    if (!pointer)
        return FA_OK;
    if (fa_cuda_find(pointer, &home, &wrong) != FA_OK)
        return fa_error_set(error, wrong.status, "pointer", "%s", wrong.text);
    result = fa_cuda_enter(&home);
    if (result == FA_CU_SUCCESS) {
        result = home.driver->free((uintptr_t)pointer);
        fa_cuda_leave(&home);
    }
    if (result == FA_CU_SUCCESS)
        result = home.driver->primary_release(home.device);
    return fa_cuda_failed(error, result, "free memory");
}

enum fa_status fa_cuda_copy(void *to, const void *from, uint64_t size, struct fa_error *error)
{
    struct fa_error unwanted = {.status = FA_OK};
    struct fa_cuda_home home;
    int result;

    error = error ? error : &unwanted;
    if (fa_cuda_find(to, &home, error) != FA_OK && fa_cuda_find(from, &home, error) != FA_OK)
        return error->status != FA_INVALID_ARGUMENT
                   ? error->status
                   : fa_error_set(error, FA_INVALID_ARGUMENT, NULL,
                                  "neither side is device memory that the CUDA driver knows");
    result = fa_cuda_enter(&home);
    if (result == FA_CU_SUCCESS) {
        result = home.driver->copy((uintptr_t)to, (uintptr_t)from, size);
        if (result == FA_CU_SUCCESS)
            result = home.driver->stream_wait(NULL);
        fa_cuda_leave(&home);
    }
    return fa_cuda_failed(error, result, "copy");
}
