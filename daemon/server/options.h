/* options.h: the daemon's command line, from one table that also makes the help text. */
#ifndef FAD_OPTIONS_H
#define FAD_OPTIONS_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct fad_options {
    const char *socket; /* NULL: see fa_socket.h */
    uint64_t workers;   /* CPU streams; 0: one a processor */
    uint64_t stall_seconds;
    uint64_t payload_max; /* bytes */
    uint64_t connections;
    bool quiet;
    bool help;
    bool version;
};

/* Fills *options from the defaults and argv. FA_INVALID_ARGUMENT names the option. The strings stay
 * argv's. */
enum fa_status fad_options_parse(struct fad_options *options, int argc, char *argv[],
                                 struct fa_error *error);

/* Prints the usage. */
void fad_options_help(FILE *out);

#endif
