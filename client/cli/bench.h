/* bench.h: the parts of `fa-cli bench`: options and report. bench.c puts them together. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "client/cli/request.h"
#include "client/cli/times.h"

#define BENCH_LENGTHS_MAX  32u
#define BENCH_VERSIONS_MAX 32u

/* --- bench_options.c ------------------------------------------------------------------------- */

struct bench_lengths {
    uint32_t of[BENCH_LENGTHS_MAX];
    uint32_t count;
};

struct bench_options {
    struct request_options request; /* first; of its shape the length is set for each in turn */
    struct bench_lengths lengths;
    uint32_t warmup, repetitions; /* passes of each version and length */
    struct cli_operands versions; /* names, or "all" */
};

enum cli_exit bench_parse(int argc, char **argv, struct bench_options *out,
                          struct cli_error *error);

/* --- bench_report.c -------------------------------------------------------------------------- */

/* A version, at one length. */
struct bench_entry {
    char version[16];                /* asked for */
    enum fa_status status;           /* of the pass that was checked: other than FA_OK: refused, */
    struct fa_error error;           /* because of this, */
    struct fa_forward_result result; /* else what ran */
    float *o;                        /* its output */
    struct request_check check;      /* of it; where it has not passed nothing was timed */
    double *kernel_us, *client_us;   /* repetitions of each, ascending once all are there */
};

/* What is the same for all entries of a length. */
struct bench_context {
    const struct bench_options *options;
    const struct fa_problem *problem;
    const struct fa_info *info;
    const struct fa_device *device; /* that it is on; NULL: the daemon has none */
    double v0_us;                   /* v0's median kernel time; NaN: it was not timed */
    double ffma_tflops; /* what a loop of multiply-adds does, in turn with them; NaN: none ran, */
    const struct fa_error *lack; /* because of this; NULL: no GPU */
};

/* Whether it has times. */
bool bench_was_timed(const struct bench_entry *entry);

/* For a person, the lines above the entries' lines. */
enum cli_exit bench_print_header(const struct bench_context *context, struct cli_error *error);

/* One line: columns, or a JSON object. */
enum cli_exit bench_print(const struct bench_context *context, const struct bench_entry *entry,
                          struct cli_error *error);

/* --- bench.c --------------------------------------------------------------------------------- */

enum cli_exit cli_bench(int argc, char **argv, struct cli_error *error);

#endif
