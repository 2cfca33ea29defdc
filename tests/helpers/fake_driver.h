/* fake_driver.h: what the files of the driver of fake_cuda.h share, and the functions that it has,
 * as in the CUDA driver's reference manual. Memory is a memfd that is mapped here, under an
 * address that is mapped without any right to it. One thread uses it at a time, but for the
 * contexts, which are a thread's. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "tests/helpers/fake_cuda.h"

#define DEVICES 2

/* CUresult */
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201 };

struct context {
    int device;
    int made, retained; /* by make, and by primary_retain */
};

struct memory {
    char *base, *bytes;
    size_t size;
    uint64_t id; /* 0: freed; the address waits for the next of that size */
    enum fake_cuda_kind kind;
    int device, fd;
};

struct event;

/* Counts a call; what it fails with, or 0. */
int fake_driver_enter(const char *name);

/* Begins a function of the driver. */
#define BEGIN()                                         \
    do {                                                \
        const int fails_ = fake_driver_enter(__func__); \
        if (fails_)                                     \
            return fails_;                              \
    } while (0)

/* Allocated and not freed, or NULL. */
struct memory *fake_driver_find(uint64_t pointer);

/* Makes some; NULL: there is no room. */
struct memory *fake_driver_new(enum fake_cuda_kind kind, int device, size_t size);
void fake_driver_end(struct memory *m);

/* Where a device pointer's bytes are; NULL when it is none. */
void *fake_driver_bytes(const void *pointer);

/* The context that is current in this thread, or NULL. */
const struct context *fake_driver_current(void);

/* For the test. */
void *fake_driver_event(bool interprocess);
bool fake_driver_awaited(const void *event);

/* --- The driver's functions ------------------------------------------------------------------ */

struct copy_2d;

int cuInit(unsigned flags);
int cuGetErrorName(int result, const char **out);
int cuGetErrorString(int result, const char **out);
int cuDeviceGetCount(int *out);
int cuDeviceGet(int *out, int ordinal);
int cuDeviceGetUuid_v2(uint8_t out[16], int device);
int cuDevicePrimaryCtxRetain(void **out, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **out);
int cuPointerGetAttribute(void *out, int attribute, uint64_t pointer);
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t pointer);
int cuIpcGetMemHandle(struct fake_cuda_handle *out, uint64_t base);
int cuIpcGetEventHandle(struct fake_cuda_event_handle *out, const struct event *event);
int cuEventSynchronize(struct event *event);
int cuEventCreate(struct event **out, unsigned flags);
int cuEventDestroy_v2(struct event *event);
int cuEventRecord(struct event *event, void *stream);
int cuEventElapsedTime(float *milliseconds, const struct event *start, const struct event *end);
int cuDeviceGetAttribute(int *out, int attribute, int device);
int cuModuleLoadData(void **out, const void *image);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **out, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **parameters, void **extra);
int cuMemAlloc_v2(uint64_t *out, size_t size);
int cuMemFree_v2(uint64_t pointer);
int cuMemcpy(uint64_t to, uint64_t from, size_t size);
int cuMemcpy2DUnaligned_v2(const struct copy_2d *given);
int cuStreamSynchronize(void *stream);

#endif
