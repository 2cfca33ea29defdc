/* receive.c: one recvmsg, with the descriptors that come along, into a connection's reader. */
#include "daemon/connection/connection.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Collects the descriptors of a received message. False when some were cut off. */
static bool collect_fds(struct msghdr *message, int *fds, int *count)
{
    *count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int here = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + *count, CMSG_DATA(c), (size_t)here * sizeof(int));
        *count += here;
    }
    return !(message->msg_flags & MSG_CTRUNC);
}

/* As many as the system takes in one message (SCM_MAX_FD). What has no room here the kernel would
 * close, on this thread, whatever it takes. */
#define FDS_AT_ONCE 253

ssize_t fad_connection_receive(struct fad_connection *connection, bool *all)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_AT_ONCE * sizeof(int))];
    } control;
    struct iovec iov[2];
    struct msghdr message = {
        .msg_iov = iov, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    int count = fad_reader_space(&connection->reader, iov), fds[FDS_AT_ONCE], fd_count;
    struct fa_error error;
    ssize_t size;
    size_t space = 0;
    bool whole;

    if (count == 0)
        return -ENOMEM;
    message.msg_iovlen = (size_t)count;
    for (int i = 0; i < count; i++)
        space += iov[i].iov_len;
    do {
        size = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0)
        return -errno;
    *all = (size_t)size < space;
    whole = collect_fds(&message, fds, &fd_count);
    if (!fad_reader_received(&connection->reader, (size_t)size, fds, fd_count, &error)) {
        fad_connection_expel(connection, 0, &error);
    } else if (!whole) {
        fa_error_set(&error, FA_PROTOCOL_ERROR, "header.nfds",
                     "the daemon has no descriptors left to receive one");
        fad_connection_expel(connection, 0, &error);
    }
    return size;
}
