/* run.h: the parts of `fa-cli run`: options and report. run.c puts them together. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "client/cli/cli.h"
#include "client/cli/request.h"
#include "client/cli/times.h"

#include <stdint.h>

/* --- run_options.c --------------------------------------------------------------------------- */

struct run_options {
    struct request_options request; /* first */
    const char *out;
    const char *lse;
    uint32_t repeat;
    bool check;
};

/* Parses and checks what options alone can tell. */
enum cli_exit run_parse(int argc, char **argv, struct run_options *out, struct cli_error *error);

/* --- run_report.c ---------------------------------------------------------------------------- */

/* One forward pass as it went. */
struct run_pass {
    enum fa_status status;
    struct fa_error error; /* when status is not FA_OK */
    struct fa_forward_result result;
    double client_us;
    bool checked;
    struct request_check check;
    bool same_bits; /* as the first pass; only when checked */
};

/* What is the same for all passes. */
struct run_context {
    const struct run_options *options;
    const struct request_tensors *tensors;
    const char *backend;
};

/* One JSON object on a line. */
enum cli_exit run_print_json(const struct run_context *context, const struct run_pass *pass,
                             struct cli_error *error);

/* For a person: what ran on what. Then, of one pass, times and check; of several, their spread. */
void run_print_what(const struct run_context *context, const struct run_pass *pass);
void run_print_times(const struct run_context *context, const struct run_pass *pass);
void run_print_check(const struct request_check *check);

/* Times of all passes, for the spread: a column for each of the daemon's phases, and the client's
 * own. */
enum { RUN_CLIENT = CLI_PHASES, RUN_TIMES };
void run_print_spread(const struct run_context *context, double *times[RUN_TIMES], size_t count);

/* --- run.c ----------------------------------------------------------------------------------- */

enum cli_exit cli_run(int argc, char **argv, struct cli_error *error);

#endif
