#include "daemon/connection/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Sent to one connection before the others have their turn. */
#define WRITE_BUDGET ((size_t)512 << 10)

/* Replies in one sendmsg, two vectors each. */
#define BATCH 16

void fad_writer_init(struct fad_writer *writer, void *owner)
{
    writer->owner = owner;
    writer->count = 0;
    writer->head_bytes = 0;
    STAILQ_INIT(&writer->replies);
}

void fad_writer_push(struct fad_writer *writer, struct fad_reply *reply)
{
    reply->sent = 0;
    STAILQ_INSERT_TAIL(&writer->replies, reply, link);
    writer->count++;
    writer->head_bytes += reply->head_size;
}

static void drop_first(struct fad_writer *writer)
{
    struct fad_reply *reply = STAILQ_FIRST(&writer->replies);

    STAILQ_REMOVE_HEAD(&writer->replies, link);
    writer->count--;
    writer->head_bytes -= reply->head_size;
    if (reply->release)
        reply->release(reply, writer->owner);
    free(reply);
}

/* The rest of a reply as up to two vectors. */
static int gather(const struct fad_reply *reply, struct iovec *iov)
{
    int count = 0;
    uint64_t skip = reply->sent;

    if (skip < reply->head_size) {
        iov[count].iov_base = (uint8_t *)reply->head + skip;
        iov[count++].iov_len = reply->head_size - skip;
        skip = 0;
    } else {
        skip -= reply->head_size;
    }
    if (reply->payload_size > skip) {
        iov[count].iov_base = (uint8_t *)reply->payload + skip;
        iov[count++].iov_len = reply->payload_size - skip;
    }
    return count;
}

static void account_sent(struct fad_writer *writer, uint64_t sent)
{
    while (sent > 0) {
        struct fad_reply *first = STAILQ_FIRST(&writer->replies);
        uint64_t left = first->head_size + first->payload_size - first->sent;
        if (sent < left) {
            first->sent += sent;
            return;
        }
        sent -= left;
        drop_first(writer);
    }
}

int fad_writer_flush(struct fad_writer *writer, int fd, int *progress)
{
    size_t budget = WRITE_BUDGET;

    while (writer->count > 0) {
        struct iovec iov[2 * BATCH];
        struct msghdr message = {.msg_iov = iov};
        struct fad_reply *reply;
        ssize_t sent;

        reply = STAILQ_FIRST(&writer->replies);
        for (int i = 0; i < BATCH && reply; i++, reply = STAILQ_NEXT(reply, link))
            message.msg_iovlen += (size_t)gather(reply, iov + message.msg_iovlen);
        sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? 0 : -errno;
        *progress = 1;
        account_sent(writer, (uint64_t)sent);
        if ((size_t)sent >= budget)
            return 0;
        budget -= (size_t)sent;
    }
    return 0;
}

void fad_writer_clear(struct fad_writer *writer)
{
    while (writer->count > 0)
        drop_first(writer);
}
