/* cuda_probe.h: what NVIDIA's driver offers this process: a survey, for fa-cli doctor. Linked into
 * fa-cli, not into libfa. */
#ifndef FA_CUDA_PROBE_H
#define FA_CUDA_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_PROBE_DEVICES 16

/* How a driver call ended. */
struct cuda_probe_call {
    int code;      /* a CUresult: 0 for success */
    char name[64]; /* "CUDA_ERROR_NO_DEVICE", the driver's own words; "error N" where it has none */
    char text[128]; /* "no CUDA-capable device is detected" */
};

/* CUcomputemode. */
enum cuda_probe_mode {
    CUDA_PROBE_SHARED = 0, /* any number of processes: "default" */
    CUDA_PROBE_PROHIBITED = 2,
    CUDA_PROBE_EXCLUSIVE = 3, /* one process at a time */
};

struct cuda_probe_device {
    char name[64];
    uint8_t uuid[16];
    int arch; /* compute capability, 10 * major + minor */
    uint64_t memory_bytes;
    uint64_t free_bytes; /* with this process's context; 0 when there is none */
    enum cuda_probe_mode mode;
    bool unified_addressing;
    bool ipc_events; /* CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED */
    /* Whether this process can work on it: a context was made (and given back). */
    struct cuda_probe_call context;
    /* Whether the driver makes an IPC handle of memory there; tried with a context only. */
    struct cuda_probe_call ipc_export;
};

struct cuda_probe {
    char library[256]; /* the file that libcuda.so.1 is; empty: it could not be loaded */
    /* Why not, or which of its calls is missing, as in drivers before 470. Empty: all is there. */
    char load_error[256];
    int version;     /* of CUDA, that the driver knows: 13000 for 13.0; 0: unknown */
    char module[32]; /* the kernel module's release, "580.65.06"; empty: none is loaded */
    struct cuda_probe_call init;
    struct cuda_probe_device devices[CUDA_PROBE_DEVICES]; /* that this process sees */
    size_t device_count;
};

/* Asks the driver. A context on each device takes about a third of a second and some hundred MiB
 * there; what was made is given back, but the library stays loaded. */
void cuda_probe(struct cuda_probe *out);

#endif
