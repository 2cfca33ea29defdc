/* request.h: the forward pass that `fa-cli run`, `load` and `bench` ask for: its options, its
 * tensors, the check of its result, and what of it is printed. */
#ifndef CLI_REQUEST_H
#define CLI_REQUEST_H

#include "client/cli/cli.h"
#include "client/cli/options.h"
#include "kernels/fa_attention.h"

#include <cjson/cJSON.h>
#include <stdint.h>

enum request_tensor { REQUEST_Q, REQUEST_K, REQUEST_V, REQUEST_O, REQUEST_LSE, REQUEST_TENSORS };

extern const char *const request_tensor_names[REQUEST_TENSORS]; /* "q", "k", "v", "o", "lse" */

/* --- request_options.c ----------------------------------------------------------------------- */

struct request_shape {
    uint32_t batch, heads, length, dim;
};

/* How a tensor travels. */
enum request_way { REQUEST_INLINE, REQUEST_MEMFD, REQUEST_REGION, REQUEST_IPC };

struct request_ways {
    enum request_way of[REQUEST_TENSORS];
};

/* The first member of a command's struct that has REQUEST_OPTIONS in its table. */
struct request_options {
    struct cli_target target; /* first */
    struct request_shape shape;
    uint32_t kv_len;
    uint32_t kv_heads;
    enum fa_mask mask;
    double scale;
    const char *version;
    struct request_ways ways;
    uint64_t seed;
    enum fa_priority priority;
    uint64_t deadline_us; /* 0: none */
    int timeout_ms;       /* 0: none */
    /* Whether these were given, else they follow from the others: */
    bool shape_given, kv_len_given, kv_heads_given, scale_given;
    /* Set by the command: */
    const char *inputs[3]; /* files of q, k, v; all NULL: random input */
    bool wants_lse;
    const char *shape_from; /* what the shape is from, for errors; NULL: "--shape" */
};

cli_parse_fn request_parse_shape, request_parse_mask, request_parse_ways, request_parse_priority;

/* The first rows of the table, in this order, so that request_set_given knows their bits. */
enum { REQUEST_SHAPE, REQUEST_KV_LEN, REQUEST_KV_HEADS, REQUEST_SCALE, REQUEST_SEED };

#define REQUEST_AT(field) offsetof(struct request_options, field)
#define REQUEST_OPTIONS                                                                           \
    [REQUEST_SHAPE] = {"shape",                                                                   \
                       "B,H,S,D",                                                                 \
                       "1,12,128,64",                                                             \
                       "batch, heads, query rows, head dimension",                                \
                       request_parse_shape,                                                       \
                       REQUEST_AT(shape)},                                                        \
    [REQUEST_KV_LEN] = {"kv-len",                                                                 \
                        "N",                                                                      \
                        NULL,                                                                     \
                        "keys a head (default: as many as query rows)",                           \
                        cli_parse_extent,                                                         \
                        REQUEST_AT(kv_len)},                                                      \
    [REQUEST_KV_HEADS] = {"kv-heads",                                                             \
                          "G",                                                                    \
                          NULL,                                                                   \
                          "heads of k and v; divides H (default: H)",                             \
                          cli_parse_extent,                                                       \
                          REQUEST_AT(kv_heads)},                                                  \
    [REQUEST_SCALE] = {"scale",                                                                   \
                       "X",                                                                       \
                       NULL,                                                                      \
                       "factor of q k^T; 0 and negative are legal (default: 1/sqrt(D))",          \
                       cli_parse_real,                                                            \
                       REQUEST_AT(scale)},                                                        \
    [REQUEST_SEED] = {"seed",          "N", "1", "of the random N(0,1) input", cli_parse_u64,     \
                      REQUEST_AT(seed)},                                                          \
    {"mask",                                                                                      \
     "NAME",                                                                                      \
     "none",                                                                                      \
     "none, causal-bottom-right or causal-top-left",                                              \
     request_parse_mask,                                                                          \
     REQUEST_AT(mask)},                                                                           \
    {"version",      "NAME",                                                                      \
     "auto",         "the kernel version; `fa-cli info` lists them",                              \
     cli_parse_text, REQUEST_AT(version)},                                                        \
    {"transport",                                                                                 \
     "LIST",                                                                                      \
     "inline",                                                                                    \
     "how tensors travel: inline, memfd (shared memory), region (memory that the daemon holds), " \
     "ipc (this process's device memory, by CUDA IPC), or each its own, as in q=memfd,o=inline",  \
     request_parse_ways,                                                                          \
     REQUEST_AT(ways)},                                                                           \
    {"priority",                                                                                  \
     "NAME",                                                                                      \
     "normal",                                                                                    \
     "low, normal or high: the weight of its turns",                                              \
     request_parse_priority,                                                                      \
     REQUEST_AT(priority)},                                                                       \
    {"deadline-us", "N",                                                                          \
     "0",           "microseconds after which the daemon drops a pass that is not done; 0: none", \
     cli_parse_u64, REQUEST_AT(deadline_us)},                                                     \
    {                                                                                             \
        "timeout", "SECONDS", NULL, "give up on a pass after that long (default: never)",         \
            cli_parse_seconds, REQUEST_AT(timeout_ms)                                             \
    }

/* Whether the files of q, k and v are all there or none; and, if they are, that no option was given
 * that is of random input: its name, or NULL. */
enum cli_exit request_check_inputs(const struct request_options *options, const char *random,
                                   struct cli_error *error);

/* Takes cli_parse's bits in. */
void request_set_given(struct request_options *options, uint32_t given);

/* Of the tensors that travel: "inline", "memfd", "region", "ipc", or "q=memfd,k=inline,..." */
void request_ways_text(const struct request_options *options, char *out, size_t size);

/* --- request_tensors.c ----------------------------------------------------------------------- */

struct request_tensors {
    struct fa_problem problem; /* packed strides */
    enum request_way way[REQUEST_TENSORS];
    uint64_t count[REQUEST_TENSORS]; /* elements */
    uint64_t bytes[REQUEST_TENSORS]; /* room for them; 0 when not wanted, as LSE may be */
    /* In this process, for a tensor in a region or in device memory a copy. LSE: NULL when not
     * wanted. */
    float *data[REQUEST_TENSORS];
    bool borrowed[REQUEST_TENSORS];   /* data is another's */
    uint64_t offset[REQUEST_TENSORS]; /* in shared, or in the request's part of the others */
    struct fa_shared shared;          /* zeroed when no tensor goes by memfd */
    /* The part of a region that is this request's; 0 bytes: no tensor lies in one. */
    const struct fa_region *region;
    uint64_t region_offset, region_bytes;
    /* And its part of device memory. */
    char *device;
    uint64_t device_bytes;
};

/* Whether the shape that the options give is one that the daemon takes. Not with inputs from files,
 * whose shape counts. */
enum cli_exit request_check_shape(const struct request_options *options, struct cli_error *error);

/* Decides the shape, makes room, and reads or generates the inputs. Release in every case. */
enum cli_exit request_tensors_init(struct request_tensors *out,
                                   const struct request_options *options, struct cli_error *error);

/* --- request_memory.c ------------------------------------------------------------------------ */

/* Places the tensors of a problem that is set; their elements are left as they come. For
 * request_tensors_init. */
enum cli_exit request_make_room(struct request_tensors *tensors,
                                const struct request_options *options, struct cli_error *error);

/* What the kernel says can be had without swapping, in bytes, or UINT64_MAX. A shared mapping that
 * the system cannot back ends in SIGBUS, not in a NULL, so ask before. */
uint64_t request_available_bytes(void);

/* Another request's tensors with the same inputs: borrowed where that is possible, else copied.
 * from must outlive it. False when memory runs out, errno says why. Release in every case. */
bool request_tensors_clone(struct request_tensors *out, const struct request_tensors *from);

/* Bytes that a clone allocates. */
uint64_t request_clone_bytes(const struct request_tensors *tensors);

void request_tensors_release(struct request_tensors *tensors);

/* The arguments of the pass. They point into options and tensors. */
struct fa_forward_args request_args(const struct request_tensors *tensors,
                                    const struct request_options *options);

/* --- request_places.c ------------------------------------------------------------------------ */

/* Memory that is not the host's own here, of requests with the same shape: a region of the
 * daemon's, and device memory. NULL where no tensor goes that way. */
struct request_places {
    struct fa_region *region;
    void *device;
};

/* Makes them for count requests like this one, on the daemon's device with this UUID; NULL: device
 * memory on the first that this process sees, and a region on the same, or where the daemon wants
 * it. *wrong tells a failure, as in all that follow. Release in every case. */
enum fa_status request_places_alloc(struct request_places *out,
                                    const struct request_tensors *tensors, struct fa_client *client,
                                    uint32_t count, const uint8_t *uuid, struct fa_error *wrong);

/* client NULL: it is closed, and with it the region is gone. */
enum fa_status request_places_release(struct request_places *places, struct fa_client *client,
                                      struct fa_error *wrong);

/* Gives the tensors that travel so the part of the places that is the request's with this index,
 * and writes the inputs there. */
enum fa_status request_upload(struct request_tensors *tensors, struct fa_client *client,
                              const struct request_places *places, uint32_t index,
                              struct fa_error *wrong);

/* Fills the outputs with NaN, so that what the daemon did not write shows. client NULL: but for
 * what lies in the places. */
enum fa_status request_poison(struct request_tensors *tensors, struct fa_client *client,
                              struct fa_error *wrong);

/* Reads outputs that lie in the places into data. */
enum fa_status request_download(struct request_tensors *tensors, struct fa_client *client,
                                struct fa_error *wrong);

/* --- request_check.c ------------------------------------------------------------------------- */

#define REQUEST_ROW_TOLERANCE 1e-5
#define REQUEST_LSE_TOLERANCE 1e-6

/* How far an output is from the float64 reference. */
struct request_check {
    uint64_t rows; /* compared, of total */
    uint64_t total;
    double rel_l2;
    double max_row;
    double max_lse;
    bool passed;
};

/* Whether the check failed by finite errors, which may be float32's own, and what to do then. */
bool request_may_be_rounding(const struct request_check *check);
#define REQUEST_ROUNDING_HINT                                           \
    "float32 itself loses about 6e-8 times the largest logit: compare " \
    "with --version v0"

/* What a pass came to, packed as in request_tensors; lse NULL: not wanted. */
struct request_output {
    const float *o;
    const float *lse;
};

/* Compares count outputs of passes with the tensors' inputs to the reference, which is computed
 * once, on all CPUs. Over 2e12 FLOP only up to 64 rows of each (batch, head): the first, the last,
 * and the neighbours of multiples of 64. */
enum cli_exit request_check_outputs(const struct request_tensors *tensors,
                                    const struct request_output *outputs, size_t count,
                                    struct request_check *out, struct cli_error *error);

/* The same of the tensors' own o and lse. */
enum cli_exit request_check(const struct request_tensors *tensors, struct request_check *out,
                            struct cli_error *error);

/* --- request_report.c ------------------------------------------------------------------------ */

/* What was asked for: the fields REQUEST_FIELDS. */
bool request_add_json(cJSON *object, const struct request_options *options,
                      const struct fa_problem *problem);

#define REQUEST_FIELDS                                                                         \
    {"dtype", "of the tensors"}, {"shape", "[B,H,S,D]"}, {"kv_len", "keys a head"},            \
        {"kv_heads", "heads of k and v"}, {"mask", "as --mask"}, {"scale", "factor of q k^T"}, \
        {"transport", "of the tensors that travel, as --transport"},                           \
        {"priority", "as --priority"},                                                         \
        {"deadline_us", "as --deadline-us; null when there is none"},                          \
    {                                                                                          \
        "seed", "of the random input; null when it is from files"                              \
    }

/* FLOP a second over the kernel's time, in 10^12. NaN when no time was measured. */
double request_tflops(const struct fa_problem *problem, double kernel_us);

/* The lines "ran" (with "redirect" where one happened) and "shape". */
void request_print_what(const struct request_options *options, const struct fa_problem *problem,
                        const struct fa_forward_result *result, const char *backend);

/* "random, seed 1", or the files' names. */
void request_print_input(const struct request_options *options);

/* The names that a version may have: "auto, v0, v1". */
void request_version_names(const struct fa_info *info, char *out, size_t size);

/* What was wrong, in terms of the options. */
enum cli_exit request_fail(const struct request_options *options, const struct fa_client *client,
                           const struct fa_error *wrong, struct cli_error *error);

#endif
