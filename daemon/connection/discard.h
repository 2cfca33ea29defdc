/* discard.h: getting rid of a descriptor that a client sent. */
#ifndef FAD_DISCARD_H
#define FAD_DISCARD_H

#include <uv.h>

/* Closes it, but not on the loop thread: the last close of a lingering socket or of a file on the
 * client's own FUSE can take as long as the client likes, and that of a memfd frees its memory. */
void fad_discard_fd(uv_loop_t *loop, int fd);

#endif
