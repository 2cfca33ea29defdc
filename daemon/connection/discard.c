#include "daemon/connection/discard.h"

#include "daemon/connection/connection.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

struct discard {
    uv_work_t work;
    struct fad_connection *connection;
    int fd;
};

static void on_work(uv_work_t *work)
{
    static const struct linger no_linger;
    const int fd = ((struct discard *)work->data)->fd;

    /* A socket that lingers does so for as long as its sender said. Others have no such thing. */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger);
    close(fd);
}

static void on_done(uv_work_t *work, int status)
{
    struct discard *discard = work->data;
    struct fad_connection *connection = discard->connection;

    (void)status;
    free(discard);
    connection->discards--;
    fad_connection_flush(connection); /* it may be read from again */
    connection->busy--;
    fad_connection_free_if_done(connection);
}

void fad_discard_fd(struct fad_connection *connection, int fd)
{
    struct discard *discard = malloc(sizeof *discard);

    if (discard) {
        discard->connection = connection;
        discard->fd = fd;
        discard->work.data = discard;
        if (uv_queue_work(connection->service->loop, &discard->work, on_work, on_done) == 0) {
            connection->discards++;
            connection->busy++;
            return;
        }
        free(discard);
    }
    close(fd);
}

void fad_discard_socket(struct fad_connection *connection)
{
    int unread = 0;

    /* Descriptors that came and were not read are closed with it. From now on none can come. */
    (void)shutdown(connection->fd, SHUT_RDWR);
    if (ioctl(connection->fd, FIONREAD, &unread) == 0 && unread == 0)
        close(connection->fd);
    else
        fad_discard_fd(connection, connection->fd);
}
