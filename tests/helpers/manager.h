/* manager.h: what a service manager does for a daemon: hands it sockets, and hears what it tells.
 * As with proc.h, what goes wrong here fails the calling test. */
#ifndef TEST_MANAGER_H
#define TEST_MANAGER_H

#include "tests/helpers/proc.h"

#include <stddef.h>

/* test_begin with descriptors handed over as LISTEN_FDS has it: from 3 on, or closed where fds has
 * -1. count 0: none, and no such variables. err: the program's standard error, or -1 for a pipe. */
void manager_begin(struct test_process *process, const char *const argv[], const int *fds,
                   int count, int err);

/* A socket of the type that listens at the path, or is bound to the abstract name that follows
 * an '@'. Datagram sockets do not listen. */
int manager_socket(int type, const char *path);

/* Connects to a daemon that may just be starting. */
int manager_connect(const char *path);

/* The next notification on a datagram socket, into out: a text of at most 255 bytes. */
void manager_hear(int fd, char out[256]);

/* Hears until one has the line, and leaves that one in out. */
void manager_await(int fd, const char *line, char out[256]);

#endif
