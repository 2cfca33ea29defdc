/* notify.h: what the daemon tells the service manager, by systemd's sd_notify protocol: datagrams
 * to the socket that $NOTIFY_SOCKET names. Without that variable nothing is sent. Nothing here
 * waits or fails: a message that could not be sent is tried again when it is next due. */
#ifndef FAD_NOTIFY_H
#define FAD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct fad_notify {
    int fd; /* -1: nobody wants to know */
    struct sockaddr_un address;
    socklen_t address_size;
    uint64_t watchdog_ms; /* how often fad_notify_watchdog is due; 0: never */
    const char *state;    /* the last that was told, static */
    char status[160];
    bool failed; /* the log has been told */
};

/* Reads $NOTIFY_SOCKET, and $WATCHDOG_USEC if $WATCHDOG_PID is this process or not set. What makes
 * no sense is ignored, with a line in the log. */
void fad_notify_init(struct fad_notify *notify);

/* Tells the state, a static "READY=1" or "STOPPING=1", and the status, a line for people; of both
 * only what is new. */
void fad_notify_tell(struct fad_notify *notify, const char *state, const char *status);

/* Tells that the daemon starts anew in the same process: the successor will tell READY=1. The
 * watchdog counts from here. now_us is of the monotonic clock. */
void fad_notify_reloading(struct fad_notify *notify, uint64_t now_us, const char *status);

/* Tells that the loop turns. */
void fad_notify_watchdog(struct fad_notify *notify);

void fad_notify_deinit(struct fad_notify *notify);

#endif
