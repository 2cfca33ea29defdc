/* memfd.h: whether a client's descriptor is shared memory that can be used without ever
 * faulting. */
#ifndef FAD_MEMFD_H
#define FAD_MEMFD_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>

/* It must be a memfd on tmpfs (a hugetlb page can be missing even inside the size) that can no
 * longer shrink, so that no access inside *size bytes ever raises SIGBUS; and, if written, one that
 * may be. The field named in *error is the tensor's location, given by the caller. The descriptor
 * stays the caller's. */
enum fa_status fad_memfd_check(int fd, int64_t *size, struct fa_error *error);

/* FA_INVALID_ARGUMENT when a seal forbids a writable mapping. */
enum fa_status fad_memfd_check_writable(int fd, struct fa_error *error);

#endif
