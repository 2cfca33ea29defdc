#include "daemon/connection/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum fa_status fad_memfd_check(int fd, int64_t *size, struct fa_error *error)
{
    struct statfs filesystem;
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);

    if (fstatfs(fd, &filesystem) != 0 || filesystem.f_type != TMPFS_MAGIC || seals < 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd",
                            "the descriptor is no memfd on tmpfs (make it by memfd_create without "
                            "MFD_HUGETLB)");
    if (!(seals & F_SEAL_SHRINK))
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd",
                            "not sealed against shrinking (add F_SEAL_SHRINK after setting its "
                            "size)");
    if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd",
                            "its descriptor is not open for reading");
    if (fstat(fd, &file) != 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd", "cannot read its size: %s",
                            strerror(errno));
    if (file.st_size <= 0)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd", "it has no bytes");
    *size = file.st_size;
    return FA_OK;
}

enum fa_status fad_memfd_check_writable(int fd, struct fa_error *error)
{
    int seals = fcntl(fd, F_GET_SEALS);
    int flags = fcntl(fd, F_GETFL);

    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) || flags < 0 ||
        (flags & O_ACCMODE) != O_RDWR)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "memfd",
                            "an output lies in it, but it is sealed against writing or its "
                            "descriptor is not open for writing");
    return FA_OK;
}
