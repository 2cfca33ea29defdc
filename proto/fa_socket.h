/* fa_socket.h: where the daemon's socket is, decided by one function for both sides. */
#ifndef FA_SOCKET_H
#define FA_SOCKET_H

#include "proto/fa_status.h"

#include <stddef.h>
#include <sys/un.h>

/* The system daemon's socket: 0660 root:fad in a directory that systemd or root makes. */
#define FA_SOCKET_SYSTEM "/run/fad/fad.sock"

/* Fills *out with the address of the first that applies:
 *     given (not NULL)
 *     $FAD_SOCKET, when set and not empty
 *     /run/fad/fad.sock, when it exists or the effective user is root
 *     $XDG_RUNTIME_DIR/fad/fad.sock, when that variable is set
 *     /run/fad/fad.sock
 * FA_INVALID_ARGUMENT when the path is empty or longer than a socket address holds (107 bytes). */
enum fa_status fa_socket_address(const char *given, struct sockaddr_un *out,
                                 struct fa_error *error);

#endif
