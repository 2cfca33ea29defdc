/* carried.h: the counts that a daemon which starts anew hands on, in a memfd, to the program that
 * it executes in its own place: the statistics, the uids' tallies, and the log's. */
#ifndef FAD_CARRIED_H
#define FAD_CARRIED_H

#include "daemon/connection/statistics.h"
#include "daemon/connection/user.h"

/* Writes them down. A descriptor, close-on-exec, or a negative errno. */
int fad_carried_write(const struct fad_statistics *statistics, const struct fad_users *users);

/* Takes them over from such a descriptor, into statistics and users without anything in them. Any
 * status but FA_OK says why not, and nothing is taken: it is no memfd that this very version has
 * written. fd stays open. */
enum fa_status fad_carried_read(int fd, struct fad_statistics *statistics, struct fad_users *users,
                                struct fa_error *error);

#endif
