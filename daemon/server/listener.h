/* listener.h: the listening socket and the lock that says whose path it is. */
#ifndef FAD_LISTENER_H
#define FAD_LISTENER_H

#include "proto/fa_status.h"

#include <sys/types.h>
#include <sys/un.h>

struct fad_listener {
    int fd;
    int lock_fd;
    struct sockaddr_un address;
    dev_t device; /* of the socket that was bound, so that no other is unlinked */
    ino_t inode;
};

/* Binds and listens, nonblocking. PATH.lock, held by flock, tells a second daemon (refused) from a
 * stale socket (replaced). A socket at the system path is made 0660, and given to the group fad
 * when there is one; any other is 0600. Makes the path's directory when it is missing. Any status
 * but FA_OK has its text in *error and holds nothing. */
enum fa_status fad_listener_open(struct fad_listener *listener, const char *path,
                                 struct fa_error *error);

/* Unlinks what it bound and closes all. */
void fad_listener_close(struct fad_listener *listener);

#endif
