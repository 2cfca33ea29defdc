/* cli.h: what all of fa-cli shares: exit codes, the one error line, and the table of commands.
 *
 * Results go to stdout. What goes wrong becomes one struct cli_error, and main prints it as one
 * line on stderr; no other part prints errors. */
#ifndef CLI_H
#define CLI_H

#include "client/fa.h"

#include <stdbool.h>
#include <stddef.h>

/* X(NAME, number, text): what fa-cli exits with. `fa-cli --help` prints this list. */
#define CLI_EXIT_LIST(X)                                                        \
    X(OK, 0, "done")                                                            \
    X(FAILED, 1, "a request or its output failed; the line on stderr says why") \
    X(USAGE, 2, "a wrong option, value or input file")                          \
    X(NO_DAEMON, 3, "no daemon answers, or --spawn could not start one")        \
    X(CHECK, 4, "a result is wrong: over the tolerance, or not the bits of another pass")

enum cli_exit {
#define CLI_EXIT_ENUM(name, number, text) CLI_##name = (number),
    CLI_EXIT_LIST(CLI_EXIT_ENUM)
#undef CLI_EXIT_ENUM
};

/* The signals that end a command from outside. */
#define CLI_ENDING_SIGNALS SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM

/* What main prints before it exits: a sentence that says what to do, without "fa-cli: ". */
struct cli_error {
    enum cli_exit code;
    char text[1024];
};

/* Fills *error and returns code, so that a check can `return cli_fail(...)`. */
enum cli_exit cli_fail(struct cli_error *error, enum cli_exit code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A field of what --json prints. */
struct cli_field {
    const char *name; /* indented: within the one above */
    const char *help; /* its unit, and when it is null or left out */
};

/* A command. argv[0] is its name; options follow. Prints its results. Any return but CLI_OK comes
 * with *error filled, or with an empty text when the results already tell all. */
struct cli_command {
    const char *name;
    const char *title;    /* one line for the list of commands */
    const char *operands; /* words beside the options, for its help; NULL: it takes none */
    size_t operands_at;   /* of a struct cli_operands in the command's struct */
    const struct cli_option *options;
    size_t option_count;
    const char *notes; /* printed below the options by its help; NULL: none */
    const struct cli_field *fields;
    size_t field_count;
    enum cli_exit (*run)(int argc, char **argv, struct cli_error *error);
};

extern const struct cli_command cli_run_command;
extern const struct cli_command cli_info_command;
extern const struct cli_command cli_ping_command;
extern const struct cli_command cli_stats_command;
extern const struct cli_command cli_load_command;
extern const struct cli_command cli_bench_command;
extern const struct cli_command cli_doctor_command;

#endif
