#include "daemon/connection/discard.h"

#include <stdlib.h>
#include <unistd.h>

struct discard {
    uv_work_t work;
    int fd;
};

static void on_work(uv_work_t *work)
{
    close(((struct discard *)work->data)->fd);
}

static void on_done(uv_work_t *work, int status)
{
    (void)status;
    free(work->data);
}

void fad_discard_fd(uv_loop_t *loop, int fd)
{
    struct discard *discard = malloc(sizeof *discard);

    if (discard) {
        discard->fd = fd;
        discard->work.data = discard;
        if (uv_queue_work(loop, &discard->work, on_work, on_done) == 0)
            return;
        free(discard);
    }
    close(fd);
}
