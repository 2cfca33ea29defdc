#include "daemon/server/listener.h"

#include "daemon/util/log.h"
#include "proto/fa_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* As many as may connect before the loop's next turn; the kernel caps it at somaxconn. */
#define BACKLOG 4096

static enum fa_status refuse(struct fa_error *error, const char *what, const char *path)
{
    return fa_error_set(error, FA_UNAVAILABLE, "socket", "cannot %s %s: %s", what, path,
                        strerror(errno));
}

static bool is_system_path(const struct fad_listener *listener)
{
    return strcmp(listener->address.sun_path, FA_SOCKET_SYSTEM) == 0;
}

/* One level only: a mistyped path is not worth a tree of directories. */
static void make_directory(const struct fad_listener *listener)
{
    char path[sizeof listener->address.sun_path];
    snprintf(path, sizeof path, "%s", listener->address.sun_path);
    /* If it cannot be made, the lock's open says why. */
    (void)mkdir(dirname(path), is_system_path(listener) ? 0755 : 0700);
}

static enum fa_status take_lock(struct fad_listener *listener, struct fa_error *error)
{
    char path[sizeof listener->address.sun_path + 8];

    snprintf(path, sizeof path, "%s.lock", listener->address.sun_path);
    listener->handle.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (listener->handle.lock_fd < 0 && listener->handle.inherited) {
        fad_log(FAD_LOG_INFO, "no lock: cannot open %s: %s", path, strerror(errno));
        return FA_OK;
    }
    if (listener->handle.lock_fd < 0)
        return fa_error_set(error, FA_UNAVAILABLE, "socket",
                            "cannot open %s: %s; give another --socket, or set XDG_RUNTIME_DIR",
                            path, strerror(errno));
    if (flock(listener->handle.lock_fd, LOCK_EX | LOCK_NB) == 0)
        return FA_OK;
    if (errno == EWOULDBLOCK)
        return fa_error_set(error, FA_UNAVAILABLE, "socket",
                            "another fad serves %s, or is stopping; stop it or give another "
                            "--socket",
                            listener->address.sun_path);
    return refuse(error, "lock", path);
}

static enum fa_status bind_socket(struct fad_listener *listener, struct fa_error *error)
{
    const char *path = listener->address.sun_path;
    struct stat there;
    const struct group *group;
    mode_t old;
    int r;

    /* The lock is ours, so a socket that is there is a dead daemon's. Anything else stays. */
    if (lstat(path, &there) == 0 && !S_ISSOCK(there.st_mode))
        return fa_error_set(error, FA_UNAVAILABLE, "socket", "%s exists and is no socket", path);
    (void)unlink(path);
    old = umask(0177);
    r = bind(listener->handle.fd, (const struct sockaddr *)&listener->address,
             sizeof listener->address);
    umask(old);
    if (r != 0)
        return refuse(error, "bind", path);
    if (lstat(path, &there) != 0)
        return refuse(error, "find", path);
    listener->handle.device = there.st_dev;
    listener->handle.inode = there.st_ino;
    if (is_system_path(listener)) {
        group = getgrnam("fad");
        if (!group)
            fad_log(FAD_LOG_INFO, "there is no group fad: only root may connect to %s", path);
        if (group && chown(path, (uid_t)-1, group->gr_gid) != 0)
            return refuse(error, "give the group fad", path);
        if (chmod(path, 0660) != 0)
            return refuse(error, "set the mode of", path);
    }
    if (listen(listener->handle.fd, BACKLOG) != 0)
        return refuse(error, "listen on", path);
    return FA_OK;
}

/* --- A socket handed over -------------------------------------------------------------------- */

#define FIRST_FD 3 /* sd_listen_fds: the first descriptor after the standard ones */

/* How many descriptors are there for this process; -1: the variables make no sense. Removes them,
 * for they are no one else's. */
static long count_inherited(void)
{
    const char *pid_text = getenv("LISTEN_PID"), *count_text = getenv("LISTEN_FDS");
    char *pid_end = NULL, *count_end = NULL;
    long pid = pid_text ? strtol(pid_text, &pid_end, 10) : 0;
    long count = count_text ? strtol(count_text, &count_end, 10) : 0;

    if (pid_text && count_text &&
        (pid_end == pid_text || *pid_end || count_end == count_text || *count_end || count < 0))
        count = -1;
    else if (pid != getpid())
        count = 0;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return count;
}

static int socket_option(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof value;

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

/* Is it a socket to serve on? Its address is filled in, and it does not block. variable is the one
 * that named it. */
static enum fa_status take_socket(struct fad_listener *listener, const char *variable,
                                  struct fa_error *error)
{
    /* A path that fills sun_path comes without its NUL. */
    struct sockaddr_un address = {0};
    socklen_t size = sizeof address;
    const int fd = listener->handle.fd, flags = fcntl(fd, F_GETFL);

    if (flags < 0 || socket_option(fd, SO_DOMAIN) != AF_UNIX ||
        socket_option(fd, SO_TYPE) != SOCK_STREAM || socket_option(fd, SO_ACCEPTCONN) != 1)
        return fa_error_set(error, FA_INVALID_ARGUMENT, variable,
                            "descriptor %d is no listening Unix stream socket "
                            "(ListenStream= with a path)",
                            fd);
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 || !address.sun_path[0] ||
        !memchr(address.sun_path, '\0', sizeof address.sun_path))
        return fa_error_set(error, FA_INVALID_ARGUMENT, variable,
                            "the socket's address is no path that a client can name");
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, variable,
                            "descriptor %d cannot be made nonblocking", fd);
    listener->address = address;
    return FA_OK;
}

static enum fa_status inherit(struct fad_listener *listener, struct fa_error *error)
{
    enum fa_status status;

    listener->handle.fd = FIRST_FD;
    if ((status = take_socket(listener, "LISTEN_FDS", error)) != FA_OK) {
        listener->handle.fd = -1; /* whatever it is, it is not ours to close */
        return status;
    }
    listener->handle.inherited = true;
    return take_lock(listener, error);
}

/* --- Begin and end --------------------------------------------------------------------------- */

static enum fa_status make_socket(struct fad_listener *listener, const char *path,
                                  struct fa_error *error)
{
    enum fa_status status;

    if ((status = fa_socket_address(path, &listener->address, error)) != FA_OK)
        return status;
    make_directory(listener);
    if ((status = take_lock(listener, error)) != FA_OK)
        return status;
    listener->handle.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->handle.fd < 0)
        return refuse(error, "make a socket for", listener->address.sun_path);
    return bind_socket(listener, error);
}

enum fa_status fad_listener_open(struct fad_listener *listener, const char *path,
                                 struct fa_error *error)
{
    const long count = count_inherited();
    enum fa_status status;

    *listener = (struct fad_listener){.handle = {.fd = -1, .lock_fd = -1}};
    if (count < 0)
        status = fa_error_set(error, FA_INVALID_ARGUMENT, "LISTEN_FDS",
                              "LISTEN_PID and LISTEN_FDS must be numbers");
    else if (count > 1)
        status = fa_error_set(error, FA_INVALID_ARGUMENT, "LISTEN_FDS",
                              "%ld sockets are handed over; fad serves one", count);
    else if (count == 1 && path)
        status =
            fa_error_set(error, FA_INVALID_ARGUMENT, "socket",
                         "--socket cannot be given where a socket is handed over (LISTEN_FDS)");
    else
        status = count == 1 ? inherit(listener, error) : make_socket(listener, path, error);
    if (status != FA_OK)
        fad_listener_close(listener);
    return status;
}

enum fa_status fad_listener_adopt(struct fad_listener *listener,
                                  const struct fad_listener_handle *handle, struct fa_error *error)
{
    enum fa_status status;

    *listener = (struct fad_listener){.handle = *handle};
    status = take_socket(listener, "FAD_HANDOVER", error);
    /* The lock goes with the open file: this only asks whether it is still held. */
    if (status == FA_OK && handle->lock_fd >= 0 && flock(handle->lock_fd, LOCK_EX | LOCK_NB) != 0)
        status = fa_error_set(error, FA_UNAVAILABLE, "FAD_HANDOVER", "the lock of %s is lost: %s",
                              listener->address.sun_path, strerror(errno));
    if (status != FA_OK)
        fad_listener_close(listener);
    return status;
}

void fad_listener_stop(struct fad_listener *listener)
{
    struct stat there;

    if (listener->handle.inode && lstat(listener->address.sun_path, &there) == 0 &&
        there.st_dev == listener->handle.device && there.st_ino == listener->handle.inode)
        (void)unlink(listener->address.sun_path);
    listener->handle.inode = 0;
    if (listener->handle.fd >= 0)
        close(listener->handle.fd);
    listener->handle.fd = -1;
}

void fad_listener_close(struct fad_listener *listener)
{
    fad_listener_stop(listener);
    /* The lock file stays: unlinking it would let two daemons lock two files of one name. */
    if (listener->handle.lock_fd >= 0)
        close(listener->handle.lock_fd);
    listener->handle.lock_fd = -1;
}
