#include "client/cli/doctor.h"
#include "client/cli/request.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Below that many a program that opens a socket and some shared memory may run out. */
#define FEW_FILES 256u

/* --- Files of the kernel --------------------------------------------------------------------- */

/* The first line of the file that begins with the words (NULL: any), into out without its end.
 * False where there is none. */
static bool find_line(const char *path, const char *words, char *out, int size)
{
    FILE *file = fopen(path, "re");
    bool found = false;

    while (file && !found && fgets(out, size, file))
        found = !words || strncmp(out, words, strlen(words)) == 0;
    if (file)
        fclose(file);
    if (found)
        out[strcspn(out, "\n")] = '\0';
    return found;
}

static void find_processor(char *out, size_t size)
{
    char line[256];
    const char *name = NULL;

    if (find_line("/proc/cpuinfo", "model name", line, sizeof line))
        name = strchr(line, ':');
    snprintf(out, size, "%s", name ? name + 1 + strspn(name + 1, " ") : "a processor");
}

/* Looks at a file of the control group at path below mount, and of every group above, which limit
 * this process, too. take is given each one's first line. */
static void ask_groups(const char *mount, const char *path, const char *name,
                       void (*take)(struct doctor_host *out, const char *line),
                       struct doctor_host *out)
{
    char group[PATH_MAX], file[2 * PATH_MAX], line[64];

    snprintf(group, sizeof group, "%s", path);
    for (;;) {
        char *slash = strrchr(group, '/');

        snprintf(file, sizeof file, "%s%s/%s", mount, group, name);
        if (find_line(file, NULL, line, sizeof line))
            take(out, line);
        if (!slash || !group[0])
            break;
        *slash = '\0';
    }
}

static void take_memory(struct doctor_host *out, const char *line)
{
    uint64_t bytes;

    if (sscanf(line, "%" SCNu64, &bytes) == 1 && bytes < out->memory_limit)
        out->memory_limit = bytes;
}

static void take_quota(struct doctor_host *out, const char *line)
{
    uint64_t quota, period;

    if (sscanf(line, "%" SCNu64 " %" SCNu64, &quota, &period) == 2 && period > 0 &&
        (double)quota / (double)period < out->quota)
        out->quota = (double)quota / (double)period;
}

/* Version 2 has one line, "0::/path"; version 1 one for each controller. */
static void find_limits(struct doctor_host *out)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];

    out->memory_limit = UINT64_MAX;
    out->quota = INFINITY;
    while (file && fgets(line, sizeof line, file)) {
        const char *controllers = strchr(line, ':');
        const char *path = controllers ? strchr(controllers + 1, ':') : NULL;

        line[strcspn(line, "\n")] = '\0';
        if (!path)
            continue;
        if (strncmp(line, "0::", 3) == 0) {
            ask_groups("/sys/fs/cgroup", path + 1, "memory.max", take_memory, out);
            ask_groups("/sys/fs/cgroup", path + 1, "cpu.max", take_quota, out);
        } else if (strncmp(controllers, ":memory:", 8) == 0) {
            ask_groups("/sys/fs/cgroup/memory", path + 1, "memory.limit_in_bytes", take_memory,
                       out);
        }
    }
    if (file)
        fclose(file);
    /* Version 1 has no word for "none". */
    if (out->memory_limit >= out->memory_bytes)
        out->memory_limit = UINT64_MAX;
}

/* --- What is asked --------------------------------------------------------------------------- */

static uint64_t soft_limit(__rlimit_resource_t which)
{
    struct rlimit limit;

    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

/* As every fa_shared is made: memfd_create, its size, its seals, its mapping. */
static int try_shared(void)
{
    struct fa_shared shared;

    if (fa_shared_create(&shared, 4096) != FA_OK)
        return errno;
    fa_shared_destroy(&shared);
    return 0;
}

static void ask(struct doctor_host *out)
{
    struct utsname names = {0};
    cpu_set_t set;

    uname(&names);
    snprintf(out->kernel_release, sizeof out->kernel_release, "%.*s",
             (int)sizeof out->kernel_release - 1, names.release);
    out->wsl = strcasestr(names.release, "microsoft") != NULL;
    find_processor(out->processor, sizeof out->processor);
    out->processors_online = (int)sysconf(_SC_NPROCESSORS_ONLN);
    /* Over 1024 processors the set is too small, and no call of this kind limits them. */
    out->processors =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : out->processors_online;
    out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->available_bytes = request_available_bytes();
    find_limits(out);
    out->open_files = soft_limit(RLIMIT_NOFILE);
    out->file_bytes = soft_limit(RLIMIT_FSIZE);
    out->shared_error = try_shared();
}

/* --- What is concluded ----------------------------------------------------------------------- */

static void judge_memory(const struct doctor_host *host, struct doctor_findings *findings)
{
    const uint64_t all = host->memory_bytes >> 20, available = host->available_bytes >> 20;

    if (host->memory_limit == UINT64_MAX)
        doctor_add(findings, "memory", DOCTOR_OK,
                   "%" PRIu64 " MiB, %" PRIu64 " of them available; no control group limits it",
                   all, available);
    else
        doctor_add(findings, "memory", DOCTOR_OK,
                   "%" PRIu64 " MiB, %" PRIu64
                   " of them available; the control group allows %" PRIu64 " MiB",
                   all, available, host->memory_limit >> 20);
}

static void judge_shared(const struct doctor_host *host, struct doctor_findings *findings)
{
    if (host->shared_error) {
        doctor_add(findings, "shared", DOCTOR_LACK, "no shared memory can be made: %s",
                   strerror(host->shared_error));
        doctor_advise(
            findings, "%s",
            host->shared_error == EMFILE ? "raise `ulimit -n`"
            : host->shared_error == EFBIG
                ? "raise `ulimit -f`: it holds for shared memory, too"
                : "memfd_create with seals must be allowed (Linux 3.17; in a container by "
                  "its seccomp profile); tensors can go inline");
        return;
    }
    doctor_add(findings, "shared", DOCTOR_OK,
               "sealed memfds can be made (Linux %s); %" PRIu64 " open files allowed",
               host->kernel_release, host->open_files);
    if (host->open_files < FEW_FILES) {
        doctor_add(findings, "files", DOCTOR_NOTE,
                   "few: every client and every fa_shared takes one open file");
        doctor_advise(findings, "raise `ulimit -n`");
    }
    if (host->file_bytes != UINT64_MAX) {
        doctor_add(findings, "files", DOCTOR_NOTE,
                   "`ulimit -f` keeps each fa_shared within %" PRIu64 " MiB",
                   host->file_bytes >> 20);
        doctor_advise(findings, "raise it where that is too little");
    }
}

static void judge_cpu(const struct doctor_host *host, const struct doctor_probe *probe,
                      struct doctor_findings *findings)
{
    char quota[64] = "";

    if (isfinite(host->quota))
        snprintf(quota, sizeof quota, " (the control group allows the time of %.3g)", host->quota);
    doctor_add(findings, "cpu", DOCTOR_OK, "%s, %d of %d processors%s", host->processor,
               host->processors, host->processors_online, quota);
    if (probe->cpu_works) {
        doctor_add(findings, "kernel", DOCTOR_OK, "%s runs here and agrees with float64",
                   probe->kernel);
    } else {
        doctor_add(findings, "kernel", DOCTOR_LACK, "%s fails here: %s", probe->kernel,
                   probe->cpu_error);
        doctor_advise(findings,
                      "build fad on this machine, run `make check`, and report what fails");
    }
}

void doctor_host(struct doctor_host *out, const struct doctor_probe *probe,
                 struct doctor_findings *findings)
{
    *out = (struct doctor_host){0};
    ask(out);
    judge_cpu(out, probe, findings);
    judge_memory(out, findings);
    judge_shared(out, findings);
}
