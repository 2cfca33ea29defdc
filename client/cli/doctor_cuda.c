#include "client/cli/doctor.h"
#include "kernels/fa_attention.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernels are built with toolkit 13.0, whose runtime asks for a driver that knows CUDA 13.0:
 * release 580 or newer. */
#define VERSION_MIN 13000
#define RELEASE_MIN "580"

#define ARCH_MIN 80 /* CUDA_ARCH_MIN of kernels/cuda/cuda.h */

#define NO_DEVICE "NVIDIA's driver shows this process no GPU"

/* --- What is known of the driver's errors ---------------------------------------------------- */

static const struct {
    int code;
    const char *advice;
} known_errors[] = {
    {2, "free some of the device's memory: a context takes some hundred MiB"},
    {34, "libcuda.so.1 is the toolkit's stub: take its directory out of LD_LIBRARY_PATH"},
    {46, "end the process that has the device to itself, or `nvidia-smi -c DEFAULT`"},
    {101, "correct CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists the GPUs"},
    {304, "/proc must be mounted, and be of this process's PID namespace (unshare --mount-proc)"},
    {802, "wait, or start nvidia-fabricmanager, which GPUs behind an NVSwitch need"},
    {803,
     "the kernel module and libcuda.so.1 are of different releases: reboot, or load the module "
     "again, after an update; in a container use the host's libcuda"},
    {804, "libcuda.so.1 is of a cuda-compat package that does not support this GPU: take it out of "
          "LD_LIBRARY_PATH, or update the driver"},
    {805, "an MPS control daemon is expected but does not answer: start it, or unset "
          "CUDA_MPS_PIPE_DIRECTORY"},
    {999, "allow reading and writing /dev/nvidia-uvm; where that is so, `dmesg` may say more"},
};

static const char *advice_for(int code)
{
    for (size_t i = 0; i < sizeof known_errors / sizeof known_errors[0]; i++)
        if (known_errors[i].code == code)
            return known_errors[i].advice;
    return "see whether `nvidia-smi` works, and what `dmesg` says";
}

/* --- What is asked --------------------------------------------------------------------------- */

static void try_file(struct doctor_cuda *out, const char *path)
{
    struct doctor_file *file = &out->files[out->file_count++];

    snprintf(file->path, sizeof file->path, "%s", path);
    file->error = access(path, R_OK | W_OK) == 0 ? 0 : errno;
}

/* Those that a Linux driver needs, and those of the GPUs that are there. */
static void try_files(struct doctor_cuda *out)
{
    char path[32];

    try_file(out, "/dev/nvidiactl");
    try_file(out, "/dev/nvidia-uvm");
    try_file(out, "/dev/nvidia0");
    for (int i = 1; i < CUDA_PROBE_DEVICES; i++) {
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        if (access(path, F_OK) == 0)
            try_file(out, path);
    }
}

static bool has_kernel(int arch)
{
    const struct fa_target target = {FA_CUDA, arch};
    size_t count;
    const struct fa_version *versions = fa_versions(&count);

    for (size_t i = 0; i < count; i++)
        if (fa_version_kernel(&versions[i], &target))
            return true;
    return false;
}

bool doctor_arch_serves(int arch)
{
    return arch >= ARCH_MIN;
}

const char *doctor_mode_name(enum cuda_probe_mode mode)
{
    switch (mode) {
    case CUDA_PROBE_SHARED:
        return "default";
    case CUDA_PROBE_PROHIBITED:
        return "prohibited";
    case CUDA_PROBE_EXCLUSIVE:
        return "exclusive-process";
    }
    return "unknown";
}

/* --- The driver ------------------------------------------------------------------------------ */

/* The first one stays. */
static void set_lack(char lack[DOCTOR_LACK_TEXT], const char *why)
{
    if (!lack[0])
        snprintf(lack, DOCTOR_LACK_TEXT, "%s", why);
}

/* Both ways need it. */
static void lacks_driver(struct doctor_cuda *out, const char *why)
{
    set_lack(out->backend_lack, why);
    set_lack(out->ipc_lack, why);
}

static void judge_library(struct doctor_cuda *out, struct doctor_findings *findings)
{
    const struct cuda_probe *probe = &out->probe;

    if (probe->library[0]) {
        lacks_driver(out, "NVIDIA's driver is too old");
        doctor_add(findings, "cuda", DOCTOR_LACK, "%s is too old: %s", probe->library,
                   probe->load_error);
        doctor_advise(findings, "install driver " RELEASE_MIN " or newer");
        return;
    }
    doctor_add(findings, "cuda", DOCTOR_LACK, "NVIDIA's library does not load: %s",
               probe->load_error);
    if (probe->module[0]) {
        lacks_driver(out, "NVIDIA's libcuda.so.1 cannot be loaded here");
        doctor_advise(
            findings,
            "the kernel module %s is there, its library is not: install it (libcuda1), or "
            "start the container with --gpus all",
            probe->module);
    } else {
        lacks_driver(out, "this machine has no NVIDIA driver");
        doctor_advise(findings, "where there is an NVIDIA GPU, install its driver, " RELEASE_MIN
                                " or newer; without one the CPU serves");
    }
}

/* Names the first file that the driver's library cannot open. */
static bool advise_by_files(const struct doctor_cuda *cuda, struct doctor_findings *findings)
{
    for (size_t i = 0; i < cuda->file_count; i++) {
        const struct doctor_file *file = &cuda->files[i];

        if (!file->error)
            continue;
        if (file->error == ENOENT)
            doctor_advise(findings,
                          "there is no %s: load the kernel modules (as root `nvidia-smi`, and "
                          "`nvidia-modprobe -u`), or start the container with --gpus all",
                          file->path);
        else
            doctor_advise(findings, "%s may not be opened (%s): allow reading and writing it",
                          file->path, strerror(file->error));
        return true;
    }
    return false;
}

/* Measured with driver 580: files that may not be opened give 100, of nvidia-uvm 999; so does
 * CUDA_VISIBLE_DEVICES when nothing of it is there. */
static void advise_on_init(const struct doctor_cuda *cuda, bool wsl,
                           struct doctor_findings *findings)
{
    const int code = cuda->probe.init.code;
    const char *visible = code == 100 ? cuda->visible_devices : NULL;

    if (visible && !visible[0])
        doctor_advise(findings, "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs: unset it");
    else if ((code == 100 || code == 999) && !wsl && advise_by_files(cuda, findings))
        return;
    else if (visible)
        doctor_advise(findings,
                      "CUDA_VISIBLE_DEVICES is '%.100s': unset it, or name a GPU that "
                      "`nvidia-smi -L` lists",
                      visible);
    else
        doctor_advise(findings, "%s", advice_for(code));
}

static void judge_init(struct doctor_cuda *out, bool wsl, struct doctor_findings *findings)
{
    const struct cuda_probe_call *init = &out->probe.init;
    char why[DOCTOR_LACK_TEXT];

    if (init->code == 100)
        snprintf(why, sizeof why, NO_DEVICE);
    else
        snprintf(why, sizeof why, "NVIDIA's driver does not start (%s)", init->name);
    lacks_driver(out, why);
    doctor_add(findings, "cuda", DOCTOR_LACK, "the driver says %s, %d: %s", init->name, init->code,
               init->text);
    advise_on_init(out, wsl, findings);
}

static void judge_version(struct doctor_cuda *out, struct doctor_findings *findings)
{
    const struct cuda_probe *probe = &out->probe;
    const int major = probe->version / 1000, minor = probe->version % 1000 / 10;

    if (probe->version < VERSION_MIN) {
        set_lack(out->backend_lack, "the driver is too old for the kernels");
        doctor_add(findings, "cuda", DOCTOR_LACK,
                   "driver %s knows CUDA %d.%d; fad's kernels need 13.0",
                   probe->module[0] ? probe->module : "(of unknown release)", major, minor);
        doctor_advise(findings, "install driver " RELEASE_MIN " or newer");
    } else {
        doctor_add(findings, "cuda", DOCTOR_OK, "driver %s, CUDA %d.%d, %zu GPU%s visible%s%.80s",
                   probe->module[0] ? probe->module : "(of unknown release)", major, minor,
                   probe->device_count, probe->device_count == 1 ? "" : "s",
                   out->visible_devices ? ", by CUDA_VISIBLE_DEVICES=" : "",
                   out->visible_devices ? out->visible_devices : "");
    }
    if (!out->kernels) {
        set_lack(out->backend_lack, "this build has no kernels for GPUs");
        doctor_add(findings, "build", DOCTOR_NOTE,
                   "fa-cli, and so the fad built with it, is for the CPU only");
        doctor_advise(findings,
                      "build again with nvcc of CUDA 13.0 on PATH for a fad that serves on "
                      "the GPU");
    }
}

/* --- Devices --------------------------------------------------------------------------------- */

/* A lack of one device: what does not work is for doctor_cuda to say when no other device does
 * better. */
struct device_lacks {
    const char *backend;
    const char *ipc;
};

static void judge_context(const struct cuda_probe_device *device, const char *area,
                          struct device_lacks *lacks, struct doctor_findings *findings)
{
    const struct cuda_probe_call *context = &device->context, *handle = &device->ipc_export;

    if (context->code) {
        lacks->backend = lacks->ipc = "this process cannot use the GPU";
        doctor_add(findings, area, DOCTOR_LACK, "no context can be made: %s, %d: %s", context->name,
                   context->code, context->text);
        doctor_advise(findings, "%s", advice_for(context->code));
    } else if (handle->code) {
        lacks->ipc = "the driver makes no IPC handle here";
        doctor_add(findings, area, DOCTOR_LACK, "memory gets no IPC handle: %s, %d: %s",
                   handle->name, handle->code, handle->text);
        doctor_advise(findings, "%s",
                      handle->code == 2
                          ? advice_for(2)
                          : "send tensors inline, by memfd or in regions of the daemon's");
    }
}

static void introduce(const struct cuda_probe_device *device, const char *area,
                      struct doctor_findings *findings)
{
    char uuid[FA_UUID_TEXT], available[48] = "";

    if (device->free_bytes > 0)
        snprintf(available, sizeof available, " (%" PRIu64 " free)", device->free_bytes >> 20);
    fa_uuid_text(device->uuid, uuid);
    doctor_add(findings, area, DOCTOR_OK, "%s, compute capability %d.%d, %" PRIu64 " MiB%s, %s",
               device->name, device->arch / 10, device->arch % 10, device->memory_bytes >> 20,
               available, uuid);
}

static struct device_lacks judge_device(const struct cuda_probe_device *device, const char *area,
                                        struct doctor_findings *findings)
{
    struct device_lacks lacks = {NULL, NULL};

    if (!doctor_arch_serves(device->arch)) {
        lacks.backend = lacks.ipc = "the kernels need a newer GPU";
        doctor_add(findings, area, DOCTOR_LACK, "the kernels need compute capability %d.%d",
                   ARCH_MIN / 10, ARCH_MIN % 10);
        doctor_advise(findings, "serve on another GPU, or on the CPU (`fad --backend cpu`)");
    }
    if (device->mode == CUDA_PROBE_PROHIBITED) {
        lacks.backend = lacks.ipc = "the GPU's compute mode prohibits its use";
        doctor_add(findings, area, DOCTOR_LACK,
                   "its compute mode is prohibited: nobody can use it");
        doctor_advise(findings, "as root `nvidia-smi -c DEFAULT`");
        return lacks;
    }
    if (device->mode == CUDA_PROBE_EXCLUSIVE) {
        lacks.ipc = "the GPU's compute mode allows one process only";
        doctor_add(findings, area, DOCTOR_LACK,
                   "its compute mode is exclusive-process: beside the daemon no client can have "
                   "memory of its own there");
        doctor_advise(findings, "as root `nvidia-smi -c DEFAULT`, or send tensors in another way");
    }
    judge_context(device, area, &lacks, findings);
    if (!device->context.code && !device->ipc_events)
        doctor_add(findings, area, DOCTOR_NOTE,
                   "no IPC events: a client must wait for its own work before it sends a request");
    if (strstr(device->name, "MIG "))
        doctor_add(findings, area, DOCTOR_NOTE,
                   "a MIG instance: CUDA IPC works within one GPU instance only");
    return lacks;
}

/* Says why no device can serve, and why none can be shared, if that is so. */
static void judge_devices(struct doctor_cuda *out, struct doctor_findings *findings)
{
    struct device_lacks all = {NULL, NULL};
    bool serves = false, shares = false;

    for (size_t i = 0; i < out->probe.device_count; i++) {
        char area[32];
        const size_t first = findings->count;
        struct device_lacks lacks;

        snprintf(area, sizeof area, "gpu %zu", i);
        introduce(&out->probe.devices[i], area, findings);
        lacks = judge_device(&out->probe.devices[i], area, findings);
        if ((lacks.backend || lacks.ipc) && first < DOCTOR_FINDINGS)
            findings->list[first].state = DOCTOR_NOTE; /* what is wrong with it follows */
        serves |= !lacks.backend;
        shares |= !lacks.ipc;
        if (lacks.backend)
            all.backend = lacks.backend;
        if (lacks.ipc)
            all.ipc = lacks.ipc;
    }
    if (!serves && all.backend)
        set_lack(out->backend_lack, all.backend);
    if (!shares && all.ipc)
        set_lack(out->ipc_lack, all.ipc);
}

void doctor_cuda(struct doctor_cuda *out, const struct doctor_host *host,
                 struct doctor_findings *findings)
{
    *out = (struct doctor_cuda){0};
    out->visible_devices = getenv("CUDA_VISIBLE_DEVICES");
    out->kernels = has_kernel(ARCH_MIN);
    try_files(out);
    cuda_probe(&out->probe);
    if (out->probe.load_error[0]) {
        judge_library(out, findings);
        return;
    }
    if (out->probe.init.code) {
        judge_init(out, host->wsl, findings);
        return;
    }
    if (out->probe.device_count == 0)
        lacks_driver(out, NO_DEVICE);
    judge_version(out, findings);
    judge_devices(out, findings);
    if (host->wsl)
        doctor_add(findings, "cuda", DOCTOR_NOTE,
                   "this is WSL, whose driver may refuse CUDA IPC; inline, memfd and region work");
}
