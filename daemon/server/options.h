/* options.h: the daemon's command line, from one table that also makes the help text. */
#ifndef FAD_OPTIONS_H
#define FAD_OPTIONS_H

#include "daemon/util/account.h"
#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What a limit holds for. */
enum fad_level { FAD_LEVEL_CONNECTION, FAD_LEVEL_USER, FAD_LEVEL_DAEMON, FAD_LEVELS };

/* What a connection may have staged by default beside a payload of the largest size; a uid: twice
 * all of that. */
#define FAD_STAGED_BESIDE_PAYLOAD ((uint64_t)512 << 20)

struct fad_options {
    const char *socket;  /* NULL: see fa_socket.h */
    const char *backend; /* "auto", "cuda" or "cpu" */
    const char *devices; /* CUDA: as in fad_backend_config; NULL: all */
    uint64_t streams;    /* CUDA, of each device */
    uint64_t pinned;     /* CUDA: bytes */
    uint64_t workers;    /* CPU streams; 0: one a processor */
    uint64_t stall_seconds;
    uint64_t drain_seconds;
    uint64_t payload_max;                  /* bytes */
    struct fad_amounts limits[FAD_LEVELS]; /* 0: follows from payload_max or the memory */
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
