/* listener.h: the listening socket and the lock that says whose path it is. */
#ifndef FAD_LISTENER_H
#define FAD_LISTENER_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

/* What a listener is beside its address, which the socket itself knows. */
struct fad_listener_handle {
    int fd;
    int lock_fd; /* -1: there is no lock, for an inherited socket */
    bool inherited;
    dev_t device; /* of the socket that was bound, so that no other is unlinked */
    ino_t inode;  /* 0: there is none to unlink */
};

struct fad_listener {
    struct fad_listener_handle handle;
    struct sockaddr_un address;
};

/* Takes the socket that a service manager hands over by $LISTEN_FDS (systemd's sd_listen_fds
 * protocol; path must then be NULL), else binds and listens. Nonblocking.
 *
 * PATH.lock, held by flock, tells a second daemon (refused) from a stale socket (replaced). A
 * socket at the system path is made 0660, and given to the group fad when there is one; any other
 * is 0600. Makes the path's directory when it is missing. An inherited socket stays as it is, and
 * is served without a lock where none can be made.
 *
 * Changes the environment: call it before there are threads. Any status but FA_OK has its text in
 * *error and holds nothing. */
enum fa_status fad_listener_open(struct fad_listener *listener, const char *path,
                                 struct fa_error *error);

/* Takes over the listener of the program that this one has followed by an exec, as it was, lock and
 * all. Any status but FA_OK has its text in *error, and the descriptors are closed. */
enum fa_status fad_listener_adopt(struct fad_listener *listener,
                                  const struct fad_listener_handle *handle, struct fa_error *error);

/* Removes the path, if it was bound here, and closes the socket. The lock stays: a successor at the
 * path waits until this process has ended. */
void fad_listener_stop(struct fad_listener *listener);

/* That, and gives up the lock. */
void fad_listener_close(struct fad_listener *listener);

#endif
