/* program.h: the daemon as a program. */
#ifndef FAD_PROGRAM_H
#define FAD_PROGRAM_H

#include "daemon/backend/backend.h"

/* Parses the options and runs a server; executes this program anew where the device was lost. The
 * exit code. backend_named is fad_backend_named, or as good as it. */
int fad_program(int argc, char *argv[],
                const struct fad_backend_ops *(*backend_named)(const char *name));

#endif
