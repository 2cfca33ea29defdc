/* fake_cuda.h: a CUDA driver for tests without a GPU: libcuda.so.1 with two devices, whose memory
 * can be reached through its copies alone (a device pointer that is read or written faults), and
 * which keeps to the rules that libfa has to know: contexts must be current, kinds of memory
 * differ, a copy to a device is not there before its stream was waited for, and a new allocation
 * may have the address of a freed one.
 *
 * It is a library of its own, tests/fakecuda/libcuda.so.1 in the build's directory. A test loads it
 * with fake_cuda_load before libfa looks for a driver; a program started by a test finds it by
 * LD_LIBRARY_PATH, see fake_cuda_path. There it is told what to do by the environment:
 * FAKE_CUDA_DEVICES=0, FAKE_CUDA_FAIL=cuMemAlloc_v2=2. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What its kernels take, and what a device has of processors. */
#define FAKE_CUDA_KERNEL_MS  2.0f
#define FAKE_CUDA_PROCESSORS 100

enum fake_cuda_kind {
    FAKE_CUDA_PLAIN,   /* cudaMalloc */
    FAKE_CUDA_POOL,    /* cudaMallocAsync: in no context */
    FAKE_CUDA_MANAGED, /* cudaMallocManaged */
    FAKE_CUDA_VIRTUAL, /* cuMemCreate: in no context */
    FAKE_CUDA_PINNED,  /* cudaMallocHost: host memory */
};

/* What a handle of memory has. A test reads the memory, of this or another process, by it. */
struct fake_cuda_handle {
    uint32_t magic;
    int32_t pid, fd; /* whose file the memory is */
    uint32_t device;
    uint64_t base, size, id;
    uint8_t padding[24];
};
#define FAKE_CUDA_MEMORY 0x3e30a1d5u

/* And one of an event. */
struct fake_cuda_event_handle {
    uint32_t magic, number;
    uint8_t padding[56];
};
#define FAKE_CUDA_EVENT 0x3e30e7e4u

/* What a test does with the driver itself. */
struct fake_cuda {
    /* Memory, as a program with the toolkit has; the device's primary context is active with it. */
    void *(*make)(enum fake_cuda_kind kind, int device, size_t size);
    void (*drop)(void *pointer);
    /* Where its bytes are in this process. */
    void *(*bytes)(const void *pointer);
    uint64_t (*id)(const void *pointer);
    /* An event, numbered from 1; without interprocess it has no handle. */
    void *(*event)(bool interprocess);
    bool (*event_awaited)(const void *event);
    /* How often a function was called, by its name in the library. */
    unsigned (*calls)(const char *name);
    /* Lets a function fail from now on; 0: no more. */
    void (*let_fail)(const char *name, int result);
    /* Contexts that are current in this thread, and retained by others than make. */
    int (*pushed)(void);
    int (*retained)(void);
    /* Makes the device's context current in this thread below all others, or (-1) none. */
    void (*use)(int device);
};

/* The UUIDs' bytes: the first device's is that of fake_hello, the second's begins with 0xbb. */
extern const uint8_t fake_cuda_uuids[2][16];

/* Loads it. */
const struct fake_cuda *fake_cuda_load(void);

/* LD_LIBRARY_PATH for a program that shall find it; old: one that lacks cuIpcGetEventHandle. */
const char *fake_cuda_path(bool old);

/* Maps the memory that a handle names, of whatever process; end with munmap of its size. */
void *fake_cuda_open(const uint8_t bytes[64], struct fake_cuda_handle *out);

/* Assert that these bytes are the handle of memory that begins there and has that id, or of the
 * event with that number. */
void fake_cuda_expect_memory(const uint8_t *bytes, size_t size, const void *base, uint64_t id);
void fake_cuda_expect_event(const uint8_t *bytes, size_t size, uint32_t number);

/* fake_hello of a daemon that serves the first device by CUDA IPC. */
void fake_cuda_hello(int fd);

#endif
