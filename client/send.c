#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

/* Pieces that one call sends: of some ten requests. */
#define GATHER_MAX 64

/* Collects what is to be sent, of at most this many requests. A frame with a descriptor begins a
 * call of its own, since a descriptor goes with a call's first byte. */
static size_t gather(const struct fa_client *client, int requests, struct iovec list[GATHER_MAX])
{
    const struct fa_request *request = client->unsent;
    size_t count = 0;

    while (request && requests-- > 0 && (request == client->unsent || request->fd < 0)) {
        const struct fa_pieces *out = &request->out;
        for (int i = out->next; i < out->count; i++) {
            if (count == GATHER_MAX)
                return count;
            list[count++] = out->list[i];
        }
        request = TAILQ_NEXT(request, link);
    }
    return count;
}

static void sent(struct fa_client *client, size_t bytes)
{
    fa_request_drop_fd(client->unsent);
    while (bytes > 0) {
        struct fa_request *request = client->unsent;

        bytes -= fa_pieces_advance(&request->out, bytes);
        request->state = FA_REQUEST_SENDING;
        if (!fa_pieces_done(&request->out))
            return;
        request->state = FA_REQUEST_SENT;
        client->unsent = TAILQ_NEXT(request, link);
        if (request->refused)
            fa_request_finish(request, NULL);
    }
}

/* Of the request alone that is sent, not of the connection. A bad descriptor may be either's. */
static bool is_requests_fault(const struct fa_client *client, int error)
{
    switch (error) {
    case EFAULT:
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
        return true;
    case EBADF:
        return client->unsent->fd >= 0 && fcntl(client->fd, F_GETFD) >= 0;
    default:
        return false;
    }
}

/* Ends the first unsent request; and the connection when its frame has begun. */
static void give_up(struct fa_client *client, int error)
{
    struct fa_request *request = client->unsent;
    const bool begun = request->state == FA_REQUEST_SENDING;
    struct fa_error kept;

    switch (error) {
    case EFAULT:
        fa_error_set(&kept, FA_INVALID_ARGUMENT, "data", "an input's memory cannot be read");
        break;
    case EBADF:
        fa_error_set(&kept, FA_INVALID_ARGUMENT, "shared", "its descriptor is not open");
        break;
    case ETOOMANYREFS:
        fa_error_set(&kept, FA_RESOURCE_EXHAUSTED, "shared",
                     "too many of this user's descriptors are on their way; run again when fewer "
                     "are");
        break;
    default:
        fa_error_set(&kept, FA_RESOURCE_EXHAUSTED, NULL, "the system has no memory to send");
    }
    fa_request_finish(request, &kept);
    if (begun)
        fa_client_disconnect(client, kept.status);
}

void fa_send(struct fa_client *client)
{
    int requests = GATHER_MAX;

    while (client->unsent) {
        union {
            char buffer[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec list[GATHER_MAX];
        struct msghdr message = {.msg_iov = list};
        ssize_t bytes;
        int error;

        message.msg_iovlen = gather(client, requests, list);
        if (client->unsent->fd >= 0) {
            memset(&control, 0, sizeof control);
            message.msg_control = control.buffer;
            message.msg_controllen = sizeof control.buffer;
            CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
            CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
            CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int));
            memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &client->unsent->fd, sizeof(int));
        }
        bytes = sendmsg(client->fd, &message, MSG_NOSIGNAL);
        error = bytes < 0 ? errno : 0;
        if (bytes >= 0) {
            sent(client, (size_t)bytes);
        } else if (error == EAGAIN) {
            return;
        } else if (error == EINTR) {
            continue;
        } else if (!is_requests_fault(client, error)) {
            client->broken = true; /* it may have said why, and perhaps answered others */
            fa_receive(client);
        } else if (requests > 1) {
            requests = 1; /* find out whose it is */
        } else {
            give_up(client, error);
        }
    }
}
