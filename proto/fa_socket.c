#include "proto/fa_socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum fa_status fa_socket_address(const char *given, struct sockaddr_un *out, struct fa_error *error)
{
    const char *from_environment = getenv("FAD_SOCKET");
    const char *runtime_dir = getenv("XDG_RUNTIME_DIR");
    int length;

    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (!given && from_environment && from_environment[0])
        given = from_environment;
    if (given)
        length = snprintf(out->sun_path, sizeof out->sun_path, "%s", given);
    else if (access(FA_SOCKET_SYSTEM, F_OK) != 0 && geteuid() != 0 && runtime_dir && runtime_dir[0])
        length = snprintf(out->sun_path, sizeof out->sun_path, "%s/fad/fad.sock", runtime_dir);
    else
        length = snprintf(out->sun_path, sizeof out->sun_path, "%s", FA_SOCKET_SYSTEM);
    if (length <= 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "socket", "the path is empty");
    if ((size_t)length >= sizeof out->sun_path)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "socket",
                            "the path has %d bytes; a socket's path has at most %zu", length,
                            sizeof out->sun_path - 1);
    return FA_OK;
}
