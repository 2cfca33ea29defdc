#include "client/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The daemon maps the memory too. The seals promise it that no page vanishes under it, which would
 * be a SIGBUS there; the contents stay writable for both. */
static int make_sealed(size_t size)
{
    int fd = memfd_create("fa_shared", MFD_CLOEXEC | MFD_ALLOW_SEALING), saved;

    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

enum fa_status fa_shared_create(struct fa_shared *out, size_t size)
{
    void *data;
    int fd, saved;

    if (!out)
        return FA_INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (size == 0)
        return FA_INVALID_ARGUMENT;
    if (size > INT64_MAX) {
        errno = EFBIG;
        return FA_RESOURCE_EXHAUSTED;
    }
    fd = make_sealed(size);
    if (fd < 0)
        return FA_RESOURCE_EXHAUSTED;
    data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        saved = errno;
        close(fd);
        errno = saved;
        return FA_RESOURCE_EXHAUSTED;
    }
    *out = (struct fa_shared){data, size, fd};
    return FA_OK;
}

void fa_shared_destroy(struct fa_shared *shared)
{
    if (!shared)
        return;
    if (shared->data) {
        munmap(shared->data, shared->size);
        close(shared->fd);
    }
    memset(shared, 0, sizeof *shared);
    shared->fd = -1;
}
