/* cuda.h: the CUDA driver, loaded at run time, so that libfa is built and runs without CUDA. cuda.c
 * alone in libfa names its functions; cuda_memory.c has what libfa does with them. */
#ifndef FA_CLIENT_CUDA_H
#define FA_CLIENT_CUDA_H

#include "proto/fa_status.h"

#include <stddef.h>
#include <stdint.h>

/* --- The driver's API, so far as it is used: from its reference manual ----------------------- */

/* CUresult */
enum { FA_CU_SUCCESS = 0, FA_CU_INVALID_VALUE = 1, FA_CU_OUT_OF_MEMORY = 2 };

/* CUmemorytype */
enum { FA_CU_HOST = 1, FA_CU_DEVICE = 2 };

/* CUpointer_attribute */
enum {
    FA_CU_CONTEXT = 1,
    FA_CU_MEMORY_TYPE = 2,
    FA_CU_BUFFER_ID = 7,
    FA_CU_IS_MANAGED = 8,
    FA_CU_DEVICE_ORDINAL = 9,
    FA_CU_IS_LEGACY_IPC_CAPABLE = 10,
    FA_CU_MEMPOOL_HANDLE = 17
};

struct fa_cuda_handle { /* CUipcMemHandle, CUipcEventHandle */
    uint8_t bytes[64];
};

struct fa_cuda_side { /* a half of CUDA_MEMCPY2D */
    size_t x, y;
    int type;
    const void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};

struct fa_cuda_copy_2d {
    struct fa_cuda_side from, to;
    size_t width, height;
};

struct fa_cuda_driver {
    int (*init)(unsigned flags);
    int (*error_name)(int result, const char **out);
    int (*error_text)(int result, const char **out);
    int (*device_count)(int *out);
    int (*device_get)(int *out, int ordinal);
    int (*device_uuid)(uint8_t out[16], int device);
    int (*primary_retain)(void **context, int device);
    int (*primary_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*pointer_attribute)(void *out, int attribute, uint64_t pointer);
    int (*address_range)(uint64_t *base, size_t *size, uint64_t pointer);
    int (*memory_handle)(struct fa_cuda_handle *out, uint64_t base);
    int (*event_handle)(struct fa_cuda_handle *out, void *event);
    int (*event_wait)(void *event);
    int (*alloc)(uint64_t *out, size_t size);
    int (*free)(uint64_t pointer);
    int (*copy)(uint64_t to, uint64_t from, size_t size);
    int (*copy_2d)(const struct fa_cuda_copy_2d *copy);
    int (*stream_wait)(void *stream);
};

/* --- What libfa makes of it ------------------------------------------------------------------ */

/* The driver, which the first call loads; NULL: there is none, and *error says why. Once for all:
 * what is missing does not come later. */
const struct fa_cuda_driver *fa_cuda_driver(struct fa_error *error);

/* Where memory is used. context NULL: it belongs to none, and the device's primary one will do. */
struct fa_cuda_home {
    const struct fa_cuda_driver *driver;
    void *context;
    int device;
};

/* Makes the home's context current in this thread; returns a CUresult. After a success
 * fa_cuda_leave brings back the one before. */
int fa_cuda_enter(const struct fa_cuda_home *home);
void fa_cuda_leave(const struct fa_cuda_home *home);

/* A CUresult in words: "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)". Returns out. */
const char *fa_cuda_text(int result, char *out, size_t size);

/* What a CUresult is to the user of libfa, who wanted that: FA_OK for a success, else with *error:
 * INVALID_ARGUMENT, RESOURCE_EXHAUSTED, or INTERNAL for all others. */
enum fa_status fa_cuda_failed(struct fa_error *error, int result, const char *wanted);

#endif
