/* memfd.h: whether a client's descriptor is shared memory that can be used without ever
 * faulting. */
#ifndef FAD_MEMFD_H
#define FAD_MEMFD_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>

/* A client's shared memory, as it was when it was checked. */
struct fad_memfd {
    int fd; /* -1: there is none */
    uint64_t size;
    bool fixed; /* it can grow no more: size is all of its memory */
};

/* It must be a memfd on tmpfs (a hugetlb page can be missing even inside the size) that can no
 * longer shrink, so that no access inside size bytes ever raises SIGBUS; and, if written, one that
 * no seal keeps from being mapped for that. Fills *out. FA_INVALID_ARGUMENT names the field. The
 * descriptor stays the caller's. Asks nothing of the file that a client's own file system would
 * answer. */
enum fa_status fad_memfd_check(int fd, bool written, const char *field, struct fad_memfd *out,
                               struct fa_error *error);

#endif
