/* host.h: host memory for backends: clients' shared memory, and staging memory that is not pinned.
 *
 * Giving memory back takes milliseconds where it is large: a worker does that, the closer. */
#ifndef FAD_HOST_H
#define FAD_HOST_H

#include "daemon/backend/worker.h"

/* Maps a region's memfd, whose descriptor it closes, or for OWNED zeroed memory; base and size are
 * then set. 0, or a status > 0 and the descriptor stays the caller's. */
int fad_host_open(struct fad_region *region);

/* Undoes it: op, with its done() set, goes to the completion list. */
void fad_host_close(struct fad_region *region, struct fad_op *op, struct fad_worker *closer);

/* 64-byte aligned, uncleared. NULL: there is none. */
void *fad_host_alloc(size_t size);
void fad_host_free(void *memory, size_t size, struct fad_worker *closer);

#endif
