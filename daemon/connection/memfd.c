#include "daemon/connection/memfd.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum fa_status fad_memfd_check(int fd, bool written, const char *field, struct fad_memfd *out,
                               struct fa_error *error)
{
    struct statfs filesystem;
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);

    /* Only tmpfs and hugetlbfs know seals: no other file system is asked. */
    if (seals < 0 || fstatfs(fd, &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC)
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "the descriptor is no memfd on tmpfs (make it by memfd_create without "
                            "MFD_HUGETLB)");
    if (!(seals & F_SEAL_SHRINK))
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "not sealed against shrinking (add F_SEAL_SHRINK after setting its "
                            "size)");
    if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY)
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "its descriptor is not open for reading");
    if (written &&
        ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) || (flags & O_ACCMODE) != O_RDWR))
        return fa_error_set(error, FA_INVALID_ARGUMENT, field,
                            "it is to be written, but is sealed against writing or its "
                            "descriptor is not open for writing");
    if (fstat(fd, &file) != 0 || file.st_size <= 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, field, "it has no bytes (use ftruncate)");
    out->fd = fd;
    out->size = (uint64_t)file.st_size;
    out->fixed = seals & F_SEAL_GROW; /* and was before its size was asked */
    return FA_OK;
}
