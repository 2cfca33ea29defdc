#include "daemon/server/notify.h"

#include "daemon/util/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of the environment's: true when it is one and not 0. */
static bool read_number(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && errno == 0 && *out > 0;
}

static void read_watchdog(struct fad_notify *notify)
{
    const char *pid_text = getenv("WATCHDOG_PID"), *usec_text = getenv("WATCHDOG_USEC");
    uint64_t pid = (uint64_t)getpid(), usec;

    if (!usec_text)
        return;
    if ((pid_text && !read_number(pid_text, &pid)) || !read_number(usec_text, &usec)) {
        fad_log(FAD_LOG_ERROR,
                "no watchdog: WATCHDOG_PID='%.20s' and WATCHDOG_USEC='%.20s' should "
                "be numbers",
                pid_text ? pid_text : "", usec_text);
        return;
    }
    if (pid == (uint64_t)getpid())
        notify->watchdog_ms = usec < 2000 ? 1 : usec / 2000;
}

void fad_notify_init(struct fad_notify *notify)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length;

    *notify = (struct fad_notify){.fd = -1, .address.sun_family = AF_UNIX};
    if (!path || !path[0])
        return;
    length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length >= sizeof notify->address.sun_path) {
        fad_log(FAD_LOG_ERROR,
                "NOTIFY_SOCKET='%.120s' is no path or abstract name of at most %zu "
                "bytes: the service manager hears nothing",
                path, sizeof notify->address.sun_path - 1);
        return;
    }
    memcpy(notify->address.sun_path, path, length);
    /* A path's NUL counts or not, as one likes; an abstract name has none. */
    notify->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (path[0] == '@')
        notify->address.sun_path[0] = '\0';
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (notify->fd < 0)
        fad_log(FAD_LOG_ERROR, "cannot make a socket for NOTIFY_SOCKET: %s", strerror(errno));
    else
        read_watchdog(notify);
}

static bool send_text(struct fad_notify *notify, const char *text)
{
    size_t size = strlen(text);

    if (sendto(notify->fd, text, size, MSG_NOSIGNAL, (const struct sockaddr *)&notify->address,
               notify->address_size) == (ssize_t)size)
        return true;
    if (errno != EAGAIN && !notify->failed) {
        notify->failed = true;
        fad_log(FAD_LOG_ERROR, "cannot tell the service manager: %s", strerror(errno));
    }
    return false;
}

void fad_notify_tell(struct fad_notify *notify, const char *state, const char *status)
{
    const bool new_state = !notify->state || strcmp(notify->state, state) != 0;
    char text[sizeof notify->status + 32], next[sizeof notify->status];

    if (notify->fd < 0)
        return;
    snprintf(next, sizeof next, "%s", status);
    if (!new_state && strcmp(notify->status, next) == 0)
        return;
    snprintf(text, sizeof text, "%s%sSTATUS=%s\n", new_state ? state : "", new_state ? "\n" : "",
             next);
    if (!send_text(notify, text))
        return;
    notify->state = state;
    memcpy(notify->status, next, sizeof next);
}

void fad_notify_reloading(struct fad_notify *notify, uint64_t now_us, const char *status)
{
    char text[sizeof notify->status + 96];

    if (notify->fd < 0)
        return;
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64 "\nWATCHDOG=1\nSTATUS=%s\n",
             now_us, status);
    send_text(notify, text);
}

void fad_notify_watchdog(struct fad_notify *notify)
{
    if (notify->fd >= 0)
        send_text(notify, "WATCHDOG=1\n");
}

void fad_notify_deinit(struct fad_notify *notify)
{
    if (notify->fd >= 0)
        close(notify->fd);
    notify->fd = -1;
}
