#include "client/cli/doctor.h"
#include "proto/fa_socket.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUPS_MAX 256

/* --- Where its socket may be ----------------------------------------------------------------- */

static void add_socket(struct doctor_daemon *out, const char *from, const char *directory,
                       const char *path)
{
    struct doctor_socket *socket = &out->sockets[out->socket_count++];

    socket->from = from;
    snprintf(socket->path, sizeof socket->path, "%s%s", directory, path);
}

/* In the order in which fa_socket_address looks; the first that is the given one is chosen. */
static void list_sockets(struct doctor_daemon *out, const char *given)
{
    const char *environment = getenv("FAD_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
    struct sockaddr_un address;
    struct fa_error error;

    if (given)
        add_socket(out, "--socket", "", given);
    if (environment && environment[0])
        add_socket(out, "$FAD_SOCKET", "", environment);
    add_socket(out, "the system's place", "", FA_SOCKET_SYSTEM);
    if (runtime && runtime[0])
        add_socket(out, "$XDG_RUNTIME_DIR", runtime, "/fad/fad.sock");
    if (fa_socket_address(given, &address, &error) != FA_OK) {
        out->sockets[0].chosen = true; /* one that is no path for a socket */
        return;
    }
    for (size_t i = 0; i < out->socket_count; i++) {
        if (strcmp(out->sockets[i].path, address.sun_path) == 0) {
            out->sockets[i].chosen = true;
            return;
        }
    }
}

static const struct doctor_socket *chosen(const struct doctor_daemon *daemon)
{
    const struct doctor_socket *socket = daemon->sockets;

    while (!socket->chosen)
        socket++;
    return socket;
}

/* Connects and closes again: errno, or 0. Never waits: a full queue says EAGAIN. */
static int try_socket(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd, error = 0;

    if (strlen(path) >= sizeof address.sun_path)
        return ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0)
        error = errno;
    close(fd);
    return error;
}

/* --- Who it is ------------------------------------------------------------------------------- */

/* The line "NSpid:\t123\t5" of /proc/PID/status has its numbers from this process's namespace
 * inwards. (/proc/PID/ns is for its own user and root only.) */
static void find_namespace(struct doctor_daemon *out)
{
    char path[64], line[256];
    FILE *file;
    int depth = 0;

    snprintf(path, sizeof path, "/proc/%d/status", (int)out->pid);
    file = fopen(path, "re");
    while (file && depth == 0 && fgets(line, sizeof line, file)) {
        char *next = line + strlen("NSpid:"), *end;

        if (strncmp(line, "NSpid:", strlen("NSpid:")) != 0)
            continue;
        for (long number; (number = strtol(next, &end, 10)), end != next; next = end, depth++)
            out->pid_there = (pid_t)number;
    }
    if (file)
        fclose(file);
    out->other_namespace = depth > 1;
}

/* The peer is who listened: systemd, where that handed the socket over, and then nobody knows. */
static void find_process(struct doctor_daemon *out)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    char path[64], name[32] = "";
    FILE *file;

    if (getsockopt(fa_client_fd(out->client), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return;
    if (peer.pid == 0) {
        out->other_namespace = true;
        return;
    }
    snprintf(path, sizeof path, "/proc/%d/comm", (int)peer.pid);
    file = fopen(path, "re");
    if (file && !fgets(name, sizeof name, file))
        name[0] = '\0';
    if (file)
        fclose(file);
    if (strcmp(name, "fad\n") != 0)
        return;
    out->pid = peer.pid;
    find_namespace(out);
}

/* --- Why it cannot be reached ---------------------------------------------------------------- */

/* Whether the user, as the system's files have it, belongs to the group. */
static bool is_member(const struct passwd *user, gid_t group)
{
    gid_t groups[GROUPS_MAX];
    int count = GROUPS_MAX;

    if (getgrouplist(user->pw_name, user->pw_gid, groups, &count) < 0)
        return false;
    for (int i = 0; i < count; i++)
        if (groups[i] == group)
            return true;
    return false;
}

/* Who owns the socket, or its directory where that is what keeps us out. Nobody is
 * sent into the group root. */
static void advise_access(const char *path, struct doctor_findings *findings)
{
    char closed[PATH_MAX];
    char *slash;
    struct stat info = {.st_mode = 0};
    const struct passwd *user = getpwuid(geteuid());
    const struct group *group;
    mode_t needed = S_IWGRP;

    snprintf(closed, sizeof closed, "%s", path);
    while (stat(closed, &info) != 0 && (slash = strrchr(closed, '/')) && slash != closed) {
        *slash = '\0';
        needed = S_IXGRP;
    }
    group = getgrgid(info.st_gid);
    if (!(info.st_mode & needed) || !group || info.st_gid == 0)
        doctor_advise(
            findings,
            "%s is its owner's (uid %u) alone: run as that user, or start a daemon of your "
            "own with fad --socket",
            closed, (unsigned)info.st_uid);
    else if (user && is_member(user, info.st_gid))
        doctor_advise(
            findings,
            "you are in the group %s that may use %s, but this session is older than that: "
            "log in again, or `newgrp %s`",
            group->gr_name, closed, group->gr_name);
    else
        doctor_advise(findings,
                      "%s is for the group %s: as root `usermod -aG %s %s`, then log in "
                      "again",
                      closed, group->gr_name, group->gr_name, user ? user->pw_name : "USER");
}

static void advise_absent(const struct doctor_daemon *daemon, const char *given,
                          struct doctor_findings *findings)
{
    for (size_t i = 0; i < daemon->socket_count; i++) {
        const struct doctor_socket *socket = &daemon->sockets[i];

        if (!socket->chosen && socket->error == 0) {
            doctor_advise(findings,
                          "something listens at %s (%s): try `fa-cli doctor --socket %s`, and set "
                          "FAD_SOCKET to it",
                          socket->path, socket->from, socket->path);
            return;
        }
    }
    if (given)
        doctor_advise(findings, "start one: `fad --socket %s`", given);
    else
        doctor_advise(findings, "start one: `fad`");
}

static void judge_absence(const struct doctor_daemon *daemon, const char *given,
                          struct doctor_findings *findings)
{
    const struct doctor_socket *socket = chosen(daemon);

    switch (daemon->status == FA_UNAVAILABLE ? socket->error : 0) {
    case EACCES:
    case EPERM:
        doctor_add(findings, "daemon", DOCTOR_LACK, "no access to %s (%s)", socket->path,
                   socket->from);
        advise_access(socket->path, findings);
        break;
    case ENOENT:
        doctor_add(findings, "daemon", DOCTOR_LACK, "none runs: there is no %s (%s)", socket->path,
                   socket->from);
        advise_absent(daemon, given, findings);
        break;
    case ECONNREFUSED:
        doctor_add(findings, "daemon", DOCTOR_LACK,
                   "none runs: nobody listens at %s (%s), which an ended one left behind",
                   socket->path, socket->from);
        advise_absent(daemon, given, findings);
        break;
    default:
        doctor_add(findings, "daemon", DOCTOR_LACK, "%s (%s)", daemon->error, socket->from);
    }
}

/* --- What it is ------------------------------------------------------------------------------ */

bool doctor_sees(const struct doctor_cuda *cuda, const uint8_t uuid[16])
{
    for (size_t i = 0; i < cuda->probe.device_count; i++)
        if (memcmp(cuda->probe.devices[i].uuid, uuid, 16) == 0)
            return true;
    return false;
}

/* The daemon's GPUs against this process's. */
static void judge_devices(struct doctor_daemon *out, const struct doctor_cuda *cuda,
                          struct doctor_findings *findings)
{
    const struct fa_info *info = fa_client_info(out->client);
    size_t seen = 0;

    for (size_t i = 0; i < info->device_count; i++) {
        char uuid[FA_UUID_TEXT];
        const bool sees = doctor_sees(cuda, info->devices[i].uuid);

        fa_uuid_text(info->devices[i].uuid, uuid);
        seen += sees;
        doctor_add(findings, "device", sees ? DOCTOR_OK : DOCTOR_NOTE,
                   "the daemon's %s, %s: this process %s", info->devices[i].name, uuid,
                   sees ? "sees it, too" : "does not see it");
    }
    if (seen > 0 || cuda->ipc_lack[0])
        return;
    snprintf(out->ipc_lack, sizeof out->ipc_lack, "this process sees none of the daemon's GPUs");
    doctor_add(findings, "device", DOCTOR_LACK,
               "memory of this process's GPUs cannot be used there");
    doctor_advise(findings,
                  "show both the same GPU: CUDA_VISIBLE_DEVICES here is %s%.100s%s, or "
                  "choose by fad --device",
                  cuda->visible_devices ? "'" : "not set",
                  cuda->visible_devices ? cuda->visible_devices : "",
                  cuda->visible_devices ? "'" : "");
}

/* Measured with driver 580: handles pass between PID, IPC, network, mount and user namespaces; the
 * driver takes an importer with its exporter's number for the exporter, and refuses it. */
static void judge_namespace(const struct doctor_daemon *daemon, struct doctor_findings *findings)
{
    char number[48] = "its own number there";

    if (!daemon->other_namespace)
        return;
    if (daemon->pid_there)
        snprintf(number, sizeof number, "the daemon's number there, %d", (int)daemon->pid_there);
    doctor_add(findings, "daemon", DOCTOR_NOTE,
               "in another PID namespace: CUDA IPC fails for a client process that has %s", number);
    doctor_advise(findings, "where a container's first process is the client (number 1), start it "
                            "with an init (docker run --init), or share the PID namespace");
}

static void judge_presence(struct doctor_daemon *out, const struct doctor_cuda *cuda,
                           struct doctor_findings *findings)
{
    const struct fa_info *info = fa_client_info(out->client);
    const struct doctor_socket *socket = chosen(out);
    char process[32] = "";

    if (out->pid)
        snprintf(process, sizeof process, ", process %d", (int)out->pid);
    doctor_add(findings, "daemon", DOCTOR_OK, "fad %s at %s (%s)%s; backend %s",
               info->daemon_version, socket->path, socket->from, process, info->backend);
    if (strcmp(info->backend, "cuda") == 0) {
        judge_devices(out, cuda, findings);
        judge_namespace(out, findings);
    } else if (!cuda->backend_lack[0]) {
        doctor_add(findings, "daemon", DOCTOR_NOTE,
                   "it does not serve on the GPU, though one could serve");
        doctor_advise(findings, "start it with `fad --backend cuda`, which says what is wrong");
    }
}

void doctor_daemon(struct doctor_daemon *out, const char *given, const struct doctor_cuda *cuda,
                   struct doctor_findings *findings)
{
    *out = (struct doctor_daemon){0};
    list_sockets(out, given);
    out->status = fa_client_open(&out->client, given);
    for (size_t i = 0; i < out->socket_count; i++)
        if (!(out->sockets[i].chosen && out->status == FA_OK))
            out->sockets[i].error = try_socket(out->sockets[i].path);
    if (out->status == FA_OK) {
        find_process(out);
        judge_presence(out, cuda, findings);
        return;
    }
    snprintf(out->error, sizeof out->error, "%s", fa_last_error(out->client));
    judge_absence(out, given, findings);
    fa_client_close(out->client);
    out->client = NULL;
}

void doctor_daemon_release(struct doctor_daemon *daemon)
{
    fa_client_close(daemon->client);
}
