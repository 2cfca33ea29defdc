/* fa_attention.h: attention forward passes, the one header that others include of kernels/.
 *
 *     o = softmax(scale * q k^T + mask) v        lse = log(sum(exp(scale * q k^T + mask)))
 *
 * per (batch, head), with B = batch, H = heads, G = kv_heads, M = q_len, N = kv_len, D = head_dim:
 *     q [B, H, M, D]   k, v [B, G, N, D]   o [B, H, M, D]   lse [B, H, M]
 *
 * What every kernel here promises:
 *  - A row that sees no key (masked, or N = 0) gets o = 0 and lse = -inf.
 *  - A masked key never influences o or lse, whatever it holds; NaN and Inf that a row does see
 *    propagate as in float arithmetic: a score of +inf makes its row NaN. A score of -inf is
 *    weight 0; a row that sees no other score counts as one that sees no key.
 *  - Query head h reads key/value head h / (H / G).
 *  - The bits of a row depend on its (batch, head)'s data and on M, N, D, mask, scale and H / G,
 *    never on B, H, the range it ran in, strides, alignment, or what else runs.
 *  - Offsets are 64 bits wide; pointers need the alignment of one element only.
 * Sums are float, and values are summed before they are divided: scores, their differences, and
 * head by head the sum of |v| over the keys must stay within a float's range. */
#ifndef FA_ATTENTION_H
#define FA_ATTENTION_H

#include "proto/fa_status.h"
#include "proto/fa_types.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FA_HEAD_DIM_MAX 256u

struct fa_problem {
    uint32_t batch;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t head_dim;
    enum fa_dtype dtype;
    enum fa_mask mask;
    double scale; /* finite; the default is fa_default_scale(head_dim) */
    struct fa_strides q, k, v, o, lse;
};

/* The five tensors' first elements, on the platform the kernel runs on. lse NULL: not wanted. */
struct fa_tensors {
    const void *q;
    const void *k;
    const void *v;
    void *o;
    void *lse;
};

/* Consecutive units of a problem's work: a unit is what a kernel says in fa_kernel.units. */
struct fa_range {
    uint64_t first;
    uint64_t count;
};

/* 1 / sqrt(head_dim). */
double fa_default_scale(uint32_t head_dim);

/* Extents of the named tensors, in the order [batch, heads, rows, width] (lse: width 1). */
struct fa_extents fa_q_extents(const struct fa_problem *problem);  /* also o's */
struct fa_extents fa_kv_extents(const struct fa_problem *problem); /* k's and v's */
struct fa_extents fa_lse_extents(const struct fa_problem *problem);

/* Sets all five strides to packed ones. The extents must be set. */
void fa_set_packed(struct fa_problem *problem);

/* Checks what does not depend on memory: head_dim within 1..FA_HEAD_DIM_MAX, kv_heads dividing
 * heads, extents below 2^31, a finite scale that a float can hold, known mask; FA_UNIMPLEMENTED for
 * a dtype that no kernel has. Names the field ("kv_heads") in *error. */
enum fa_status fa_problem_check(const struct fa_problem *problem, struct fa_error *error);

/* Multiplications and additions of both products: 4 B H M N D, of the visible part when causal.
 * Saturates. */
uint64_t fa_problem_flops(const struct fa_problem *problem);

/* Where a kernel runs. */
enum fa_platform { FA_CPU, FA_CUDA, FA_PLATFORM_COUNT };

struct fa_target {
    enum fa_platform platform;
    int arch; /* CUDA: compute capability, 10 * major + minor; CPU: 0, the machine is asked */
};

/* One call of a kernel: several problems of one shape (only pointers differ), a range over all of
 * their units (problem p has the units [p * units, (p + 1) * units)). CUDA: tensors, state and
 * scratch are on the stream's device; nothing of the struct is read after the call. */
struct fa_launch {
    const struct fa_problem *problem;
    const struct fa_tensors *tensors; /* [problem_count] */
    uint32_t problem_count;
    struct fa_range range;
    void *state;   /* problem_count * fa_kernel.state bytes, problem 0 first, 64-byte aligned */
    void *scratch; /* fa_kernel.scratch(range.count) bytes, 64-byte aligned, of this launch alone */
    void *stream;  /* CUDA: a cudaStream_t; CPU: unused, the call returns when the work is done */
    /* CPU: NULL, or a flag that another thread may set (atomically) when nobody wants the result
     * any more. A kernel that sees it set returns FA_OK early, within a millisecond or so, its
     * output undefined. CUDA: unused. */
    const bool *stop;
};

/* A kernel. Equal names give equal bits, of CUDA kernels on equal architectures. */
struct fa_kernel {
    const char *name;

    /* NULL when the kernel covers the problem, else why it does not ("head_dim is not 64"). */
    const char *(*refuses)(const struct fa_problem *problem);

    /* How many units the problem's work has. Any ranges that cover them all once give the whole
     * result: side by side and in any order, or, where in_order is set, one after another from the
     * first unit to the last. A problem without outputs has 0. */
    uint64_t (*units)(const struct fa_problem *problem);
    bool in_order;

    /* Bytes, a multiple of 64, that the ranges of one problem share: partial results. All zeroes
     * before the first range, kept until the last is done. Saturates at SIZE_MAX. */
    size_t (*state)(const struct fa_problem *problem);

    /* Bytes that a launch of so many units needs for itself. Saturates at SIZE_MAX. */
    size_t (*scratch)(const struct fa_problem *problem, uint64_t units);

    /* Runs (CPU) or enqueues (CUDA) the range. Allocates nothing, never synchronises. */
    enum fa_status (*launch)(const struct fa_launch *launch);

    double rate;         /* FLOP/s of one stream, measured */
    double unit_seconds; /* what a unit takes besides its FLOP, measured */
    double byte_seconds; /* what a byte of the outputs takes besides, about */
    double read_seconds; /* what a byte of k and v takes at least, about */
};

/* A first guess of how long the problem takes on one stream, in seconds: its FLOP at the kernel's
 * rate, or reading its k and v where that takes longer, and what its units and its outputs' bytes
 * take besides. */
double fa_kernel_seconds(const struct fa_kernel *kernel, const struct fa_problem *problem);

/* A version: one rung of the ladder. The table has one row each, in the ladder's order. */
struct fa_version {
    const char *name;     /* "v3" */
    const char *title;    /* "Warp-local FlashAttention-2" */
    const char *fallback; /* the version that takes what this one's kernel refuses; NULL: none */
    /* The kernel for a target of each platform. NULL, or returning NULL: there is none. */
    const struct fa_kernel *(*kernel[FA_PLATFORM_COUNT])(const struct fa_target *target);
};

/* The table, *count rows. Static. */
const struct fa_version *fa_versions(size_t *count);

/* The version's kernel for the target, or NULL. */
const struct fa_kernel *fa_version_kernel(const struct fa_version *version,
                                          const struct fa_target *target);

/* What was chosen to run a problem. reason is NULL, or why it is not the version asked for by
 * name. */
struct fa_choice {
    const struct fa_version *version;
    const struct fa_kernel *kernel;
    const char *reason;
};

/* Chooses by the version's name ("auto": by shape and target only), following fallbacks. The
 * problem must have passed fa_problem_check. FA_INVALID_ARGUMENT (field "version") for a name not
 * in the table, FA_UNIMPLEMENTED when nothing on the platform covers the problem. */
enum fa_status fa_choose(const char *version, const struct fa_target *target,
                         const struct fa_problem *problem, struct fa_choice *out,
                         struct fa_error *error);

/* --- kernels/cpu ----------------------------------------------------------------------------- */

/* The CPU kernels that this machine can run: the plain one, and the tiled one once for each
 * instruction set. *count entries. Static. For tests and benchmarks; others go through
 * fa_choose. */
const struct fa_kernel *const *fa_cpu_kernels(size_t *count);

/* --- kernels/cuda, in builds with the CUDA toolkit ------------------------------------------ */

/* Readies the calling thread's current device for launches: loads every kernel, which would else
 * happen at its first launch and wait for whatever runs, and raises its limit of shared memory. The
 * device's compute capability goes to *arch. FA_UNIMPLEMENTED below 80. */
enum fa_status fa_cuda_prepare(int *arch, struct fa_error *error);

/* --- Oracle --------------------------------------------------------------------------------- */

/* The oracle: the same problem in double precision, from float tensors, on the calling thread.
 * rows counts query rows over (batch, head, row) in that order; o is packed [rows.count, D], lse
 * packed [rows.count] or NULL. False when memory runs out. Supports what fa_problem_check
 * passes. */
bool fa_reference(const struct fa_problem *problem, const struct fa_tensors *tensors,
                  struct fa_range rows, double *o, double *lse);

/* How far a result is from the oracle's. max_row is the largest relative error of any one row,
 * lse the largest |dLSE| / max(1, |LSE|) (0 without lse). Where the reference is 0, -inf, inf or
 * NaN the result must be the same, else the error is infinite. Accumulates: start from zeroes. */
struct fa_deviation {
    double difference_square; /* sum over elements of (o - ref)^2 */
    double reference_square;  /* sum of ref^2 */
    double max_row;
    double max_lse;
};

/* Adds count rows: o at stride o_stride (elements) and lse at stride lse_stride, against packed
 * reference rows. lse and lse_reference NULL: o only. */
void fa_deviation_add(struct fa_deviation *deviation, const float *o, int64_t o_stride,
                      const float *lse, int64_t lse_stride, const double *o_reference,
                      const double *lse_reference, uint64_t count, uint32_t head_dim);

/* ||o - ref|| / ||ref|| over all added rows; 0 when both are 0. NaN and Inf come through. */
double fa_deviation_l2(const struct fa_deviation *deviation);

#ifdef __cplusplus
}
#endif

#endif
