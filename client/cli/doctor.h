/* doctor.h: the parts of `fa-cli doctor`: what it learns of the machine and of the daemon, what it
 * concludes, and how it tells. doctor.c puts them together. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "client/cli/cli.h"
#include "client/cuda_probe.h"

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

/* --- doctor.c: what is concluded ------------------------------------------------------------- */

enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE, /* worth knowing; nothing fails by it alone */
    DOCTOR_LACK, /* something does not work; the advice says what to do */
};

struct doctor_finding {
    char area[16]; /* "cpu", "gpu 0", "daemon", "inline" */
    enum doctor_state state;
    char text[512];
    char advice[512]; /* of a lack, and of some notes; else empty */
};

#define DOCTOR_FINDINGS 96

/* In the order in which they are told: each part adds its own. */
struct doctor_findings {
    struct doctor_finding list[DOCTOR_FINDINGS];
    size_t count;
};

/* Adds one; beyond DOCTOR_FINDINGS they are dropped. */
void doctor_add(struct doctor_findings *findings, const char *area, enum doctor_state state,
                const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Gives the last one its advice. */
void doctor_advise(struct doctor_findings *findings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- doctor_host.c: the machine but for its GPUs --------------------------------------------- */

struct doctor_host {
    char kernel_release[64]; /* of Linux */
    bool wsl;
    char processor[128];
    int processors; /* that this process may use */
    int processors_online;
    double quota; /* processors' time that the control group allows; INFINITY: no limit */
    uint64_t memory_bytes;
    uint64_t available_bytes;
    uint64_t memory_limit; /* of the control group; UINT64_MAX: none */
    uint64_t open_files;   /* RLIMIT_NOFILE, the soft one */
    uint64_t file_bytes;   /* RLIMIT_FSIZE, which holds for shared memory too; UINT64_MAX: none */
    int shared_error;      /* errno of making shared memory; 0: works */
};

struct doctor_probe;

/* probe: what doctor_probe_cpu found. */
void doctor_host(struct doctor_host *out, const struct doctor_probe *probe,
                 struct doctor_findings *findings);

/* --- doctor_cuda.c: its GPUs ----------------------------------------------------------------- */

/* A file that the driver's library opens. */
struct doctor_file {
    char path[32];
    int error; /* errno of opening it to read and write; 0: may be */
};

#define DOCTOR_FILES (CUDA_PROBE_DEVICES + 3)

/* Why something cannot work, as the end of a sentence: "this machine has no NVIDIA driver". Empty:
 * nothing known stands in the way. */
#define DOCTOR_LACK_TEXT 160

struct doctor_cuda {
    struct cuda_probe probe;
    bool kernels;                /* this build has kernels for GPUs */
    const char *visible_devices; /* $CUDA_VISIBLE_DEVICES, or NULL */
    struct doctor_file files[DOCTOR_FILES];
    size_t file_count;
    char backend_lack[DOCTOR_LACK_TEXT]; /* of serving on a GPU */
    char ipc_lack[DOCTOR_LACK_TEXT];     /* of CUDA IPC from this process */
};

void doctor_cuda(struct doctor_cuda *out, const struct doctor_host *host,
                 struct doctor_findings *findings);

/* Whether the kernels run on devices of that compute capability, 10 * major + minor. */
bool doctor_arch_serves(int arch);

/* "default", "prohibited", "exclusive-process". */
const char *doctor_mode_name(enum cuda_probe_mode mode);

/* --- doctor_daemon.c: the daemon ------------------------------------------------------------- */

/* A place where its socket may be. */
struct doctor_socket {
    const char *from; /* "--socket", "$FAD_SOCKET", "the system's place", "$XDG_RUNTIME_DIR" */
    char path[PATH_MAX];
    bool chosen; /* the one that libfa takes */
    int error;   /* errno of connecting; 0: something listens */
};

#define DOCTOR_SOCKETS 4

struct doctor_daemon {
    struct doctor_socket sockets[DOCTOR_SOCKETS];
    size_t socket_count;
    struct fa_client *client; /* NULL when no daemon serves this process */
    enum fa_status status;    /* of connecting */
    char error[320];          /* its text, when it is not FA_OK */
    pid_t pid;                /* in this process's PID namespace; 0: not known, or not in it */
    pid_t pid_there;          /* in its own; 0: not known */
    bool other_namespace;     /* its PID namespace is another one */
    char ipc_lack[DOCTOR_LACK_TEXT]; /* of CUDA IPC between this process and the daemon */
};

/* Connects. Release in every case. */
void doctor_daemon(struct doctor_daemon *out, const char *given, const struct doctor_cuda *cuda,
                   struct doctor_findings *findings);
void doctor_daemon_release(struct doctor_daemon *daemon);

/* Whether this process sees the device. */
bool doctor_sees(const struct doctor_cuda *cuda, const uint8_t uuid[16]);

/* --- doctor_probe.c: trying it out ----------------------------------------------------------- */

enum doctor_way { DOCTOR_INLINE, DOCTOR_MEMFD, DOCTOR_REGION, DOCTOR_IPC, DOCTOR_WAYS };

/* As the daemon's hello names them: "inline", "memfd", "region", "cuda-ipc". */
extern const char *const doctor_way_names[DOCTOR_WAYS];

enum doctor_outcome {
    DOCTOR_UNTRIED, /* no daemon serves this process */
    DOCTOR_NOT_OFFERED,
    DOCTOR_IMPOSSIBLE, /* from this process, which nobody may mind: clients need no CUDA */
    DOCTOR_WORKS,
    DOCTOR_FAILS,
};

struct doctor_way_result {
    enum doctor_outcome outcome;
    double us;      /* of a pass, the median; when it works */
    char text[384]; /* why not */
};

struct doctor_probe {
    char kernel[32];     /* that ran in this process, on the CPU */
    bool cpu_works;      /* and its result was right; */
    char cpu_error[256]; /* why not */
    struct doctor_way_result ways[DOCTOR_WAYS];
};

/* Runs a small pass in this process on the CPU, and checks it against float64. */
void doctor_probe_cpu(struct doctor_probe *out);

/* Runs them through the daemon in each way that it offers. */
void doctor_probe_ways(struct doctor_probe *out, const struct doctor_cuda *cuda,
                       const struct doctor_daemon *daemon, struct doctor_findings *findings);

/* --- doctor_report.c: telling ---------------------------------------------------------------- */

struct doctor {
    struct doctor_host host;
    struct doctor_cuda cuda;
    struct doctor_daemon daemon;
    struct doctor_probe probe;
    struct doctor_findings findings;
    bool works; /* a backend can serve here, and the daemon, if one is there, serves as it offers */
    char verdict[1024];
};

void doctor_print(const struct doctor *doctor);
enum cli_exit doctor_print_json(const struct doctor *doctor, struct cli_error *error);

#endif
