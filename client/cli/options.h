/* options.h: command line options from a table, so that the parser, the defaults and the help are
 * one and the same. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "client/cli/cli.h"
#include "proto/fa_socket.h"

#include <stdint.h>
#include <stdio.h>

#define CLI_OPTION_MAX  32
#define CLI_OPERAND_MAX 32

/* Words of the command line that are no options and no option's value, in their order. */
struct cli_operands {
    const char *of[CLI_OPERAND_MAX];
    uint32_t count;
};

/* Turns text into *value. NULL when it did, else what a right value would be: "must be ...". */
typedef const char *cli_parse_fn(const char *text, void *value);

struct cli_option {
    const char *name;     /* without the dashes */
    const char *argument; /* its name in the help; NULL: a flag, whose value is a bool */
    const char *initial;  /* default, parsed like a given one; NULL: the value stays zeroed */
    const char *help;
    cli_parse_fn *parse; /* unused for a flag */
    size_t offset;       /* of the value in the command's struct */
};

/* Zeroes values (size bytes), sets the defaults, then parses argv[1..]. *given has bit i set when
 * option i was on the command line. CLI_USAGE names the option at fault. Names are not abbreviated.
 * --help is not looked at: main has done so. */
enum cli_exit cli_parse(const struct cli_command *command, int argc, char **argv, void *values,
                        size_t size, uint32_t *given, struct cli_error *error);

/* Prints the command's usage, options, notes and JSON fields. */
void cli_print_help(const struct cli_command *command, FILE *out);

/* --- Parsers --------------------------------------------------------------------------------- */

cli_parse_fn cli_parse_text;   /* const char *: as given, not empty */
cli_parse_fn cli_parse_count;  /* uint32_t: 1 .. 1 000 000 */
cli_parse_fn cli_parse_extent; /* uint32_t: 0 .. 2^31 - 1 */
cli_parse_fn cli_parse_u64;    /* uint64_t */
cli_parse_fn cli_parse_real;   /* double: finite */
cli_parse_fn
    cli_parse_seconds; /* int, in milliseconds: over 0, at most 24 days; fractions are legal */

/* Whether the first length bytes of text are that word. */
bool cli_is(const char *text, size_t length, const char *word);

/* A whole decimal number of digits only (no sign, no space) that is at most max. */
bool cli_parse_number(const char *text, size_t length, uint64_t max, uint64_t *out);

/* --- Shared by the commands ------------------------------------------------------------------ */

/* Where the daemon is: the first member of every command's struct. */
struct cli_target {
    const char *socket;
    bool spawn;
    bool json;
};

#define CLI_TARGET_OPTIONS CLI_OPTION_SOCKET, CLI_OPTION_SPAWN, CLI_OPTION_JSON

#define CLI_OPTION_SOCKET                                                           \
    {                                                                               \
        .name = "socket", .argument = "PATH", .parse = cli_parse_text,              \
        .offset = offsetof(struct cli_target, socket),                              \
        .help = "the daemon's socket (default: $FAD_SOCKET, else " FA_SOCKET_SYSTEM \
                ", else $XDG_RUNTIME_DIR/fad/fad.sock)",                            \
    }
#define CLI_OPTION_SPAWN                                                                         \
    {                                                                                            \
        .name = "spawn", .offset = offsetof(struct cli_target, spawn),                           \
        .help = "start a private daemon for this one command ($FAD_DAEMON, else the fad beside " \
                "fa-cli, else fad from PATH)",                                                   \
    }
#define CLI_OPTION_JSON                                                             \
    {                                                                               \
        .name = "json", .offset = offsetof(struct cli_target, json),                \
        .help = "print JSON, one object a line; a spawned daemon's log is dropped", \
    }

#endif
