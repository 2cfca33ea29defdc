/* discard.h: getting rid of a descriptor that a client sent. */
#ifndef FAD_DISCARD_H
#define FAD_DISCARD_H

struct fad_connection;

/* Descriptors of a connection's that may wait to be closed; then it is not read from. */
#define FAD_DISCARDS_MAX 8u

/* Closes it, but not on the loop thread: the last close of a lingering socket or of a file on the
 * client's own FUSE can take as long as the client likes, and that of a memfd frees its memory. The
 * connection is not freed before. */
void fad_discard_fd(struct fad_connection *connection, int fd);

/* Closes the connection's own socket: where nothing is unread in it, at once. */
void fad_discard_socket(struct fad_connection *connection);

#endif
