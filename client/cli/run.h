/* run.h: the parts of `fa-cli run`, in the order in which they are used: options, tensors, the
 * check against float64, and the report. run.c puts them together. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "client/cli/cli.h"
#include "client/cli/options.h"
#include "kernels/fa_attention.h"

#include <stdint.h>

enum run_tensor { RUN_Q, RUN_K, RUN_V, RUN_O, RUN_LSE, RUN_TENSORS };

extern const char *const run_tensor_names[RUN_TENSORS]; /* "q", "k", "v", "o", "lse" */

/* --- run_options.c --------------------------------------------------------------------------- */

struct run_shape {
    uint32_t batch, heads, length, dim;
};

/* Which tensors go by shared memory; the others go inline. */
struct run_transports {
    bool memfd[RUN_TENSORS];
};

struct run_options {
    struct cli_target target; /* first */
    struct run_shape shape;
    uint32_t kv_len;
    uint32_t kv_heads;
    enum fa_mask mask;
    double scale;
    const char *version;
    struct run_transports transports;
    uint64_t seed;
    const char *inputs[3]; /* q, k, v: all or none */
    const char *out;
    const char *lse;
    uint32_t repeat;
    bool check;
    int timeout_ms; /* 0: none */
    /* Whether these were given, else they follow from the others: */
    bool shape_given, kv_len_given, kv_heads_given, scale_given;
};

/* Parses and checks what options alone can tell. */
enum cli_exit run_parse(int argc, char **argv, struct run_options *out, struct cli_error *error);

/* Whether the log-sum-exp is computed at all. */
bool run_wants_lse(const struct run_options *options);

/* Of the tensors that travel: "inline", "memfd", or "q=memfd,k=inline,..." */
void run_transports_text(const struct run_options *options, char *out, size_t size);

/* --- run_tensors.c --------------------------------------------------------------------------- */

struct run_tensors {
    struct fa_problem problem; /* packed strides */
    struct fa_shared shared;   /* zeroed when no tensor goes by memfd */
    float *data[RUN_TENSORS];  /* LSE: NULL when not wanted */
    uint64_t count[RUN_TENSORS];
    bool in_shared[RUN_TENSORS]; /* where data lies: in shared, else allocated alone */
};

/* Decides the shape, makes room, and reads or generates the inputs. Release in every case. */
enum cli_exit run_tensors_init(struct run_tensors *out, const struct run_options *options,
                               struct cli_error *error);
void run_tensors_release(struct run_tensors *tensors);

/* Fills the outputs with NaN, so that what the daemon did not write shows. */
void run_tensors_poison(struct run_tensors *tensors);

/* --- run_check.c ----------------------------------------------------------------------------- */

#define RUN_ROW_TOLERANCE 1e-5
#define RUN_LSE_TOLERANCE 1e-6

/* How far an output is from the float64 reference. */
struct run_check {
    uint64_t rows; /* compared, of total */
    uint64_t total;
    double rel_l2;
    double max_row;
    double max_lse;
    bool passed;
};

/* Whether the check failed by finite errors, which may be float32's own, and what to do then. */
bool run_may_be_rounding(const struct run_check *check);
#define RUN_ROUNDING_HINT                                               \
    "float32 itself loses about 6e-8 times the largest logit: compare " \
    "with --version v0"

/* Compares o and lse with the reference on all CPUs. Over 2e12 FLOP only up to 64 rows of each
 * (batch, head): the first, the last, and the neighbours of multiples of 64. */
enum cli_exit run_check(const struct run_tensors *tensors, struct run_check *out,
                        struct cli_error *error);

/* --- run_report.c ---------------------------------------------------------------------------- */

/* One forward pass as it went. */
struct run_pass {
    enum fa_status status;
    struct fa_error error; /* when status is not FA_OK */
    struct fa_forward_result result;
    double client_us;
    bool checked;
    struct run_check check;
    bool same_bits; /* as the first pass; only when checked */
};

/* What is the same for all passes. */
struct run_context {
    const struct run_options *options;
    const struct run_tensors *tensors;
    const char *backend;
};

/* FLOP a second over the kernel's time, in 10^12. NaN when no time was measured. */
double run_tflops(const struct fa_problem *problem, uint64_t kernel_us);

/* One JSON object on a line. */
enum cli_exit run_print_json(const struct run_context *context, const struct run_pass *pass,
                             struct cli_error *error);

/* For a person: what ran on what. Then, of one pass, times and check; of several, their spread. */
void run_print_what(const struct run_context *context, const struct run_pass *pass);
void run_print_times(const struct run_context *context, const struct run_pass *pass);
void run_print_check(const struct run_check *check);

/* Times of all passes, for the spread. A column a phase. */
enum { RUN_QUEUE, RUN_TRANSFER, RUN_KERNEL, RUN_TOTAL, RUN_CLIENT, RUN_PHASES };
void run_print_spread(const struct run_context *context, double *times[RUN_PHASES], size_t count);

/* --- run.c ----------------------------------------------------------------------------------- */

enum cli_exit cli_run(int argc, char **argv, struct cli_error *error);

#endif
