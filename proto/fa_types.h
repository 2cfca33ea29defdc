/* fa_types.h: the words that the wire, the kernels and the client share: masks, data types,
 * priorities, and the place of a tensor's elements. Plain C, no behaviour but the names. */
#ifndef FA_TYPES_H
#define FA_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, wire number, text form). Query row i of M sees key j of N: */
#define FA_MASK_LIST(X)                                                        \
    X(NONE, 0, "none")                               /* always */              \
    X(CAUSAL_BOTTOM_RIGHT, 1, "causal-bottom-right") /* when j <= i + N - M */ \
    X(CAUSAL_TOP_LEFT, 2, "causal-top-left")         /* when j <= i */

enum fa_mask {
#define FA_MASK_ENUM(name, number, text) FA_MASK_##name = (number),
    FA_MASK_LIST(FA_MASK_ENUM)
#undef FA_MASK_ENUM
};

/* X(NAME, wire number, text form, bytes an element). */
#define FA_DTYPE_LIST(X)        \
    X(FLOAT32, 1, "float32", 4) \
    X(FLOAT16, 2, "float16", 2) \
    X(BFLOAT16, 3, "bfloat16", 2)

enum fa_dtype {
#define FA_DTYPE_ENUM(name, number, text, bytes) FA_DTYPE_##name = (number),
    FA_DTYPE_LIST(FA_DTYPE_ENUM)
#undef FA_DTYPE_ENUM
};

/* X(NAME, wire number, text form, weight): a client's share of the device against the others of its
 * uid, while it has work of that priority. */
#define FA_PRIORITY_LIST(X)   \
    X(LOW, 1, "low", 1)       \
    X(NORMAL, 2, "normal", 4) \
    X(HIGH, 3, "high", 16)

enum fa_priority {
#define FA_PRIORITY_ENUM(name, number, text, weight) FA_PRIORITY_##name = (number),
    FA_PRIORITY_LIST(FA_PRIORITY_ENUM)
#undef FA_PRIORITY_ENUM
};

/* The text form, or NULL for a number not in the list. Static. */
const char *fa_mask_name(enum fa_mask mask);
const char *fa_dtype_name(enum fa_dtype dtype);
const char *fa_priority_name(enum fa_priority priority);

/* Its weight; 0 for a number not in the list. */
uint32_t fa_priority_weight(enum fa_priority priority);

/* Bytes of an element; 0 for a number not in the list. */
size_t fa_dtype_bytes(enum fa_dtype dtype);

/* Finds one by its text form. False when there is none of that name. */
bool fa_mask_parse(const char *text, enum fa_mask *out);
bool fa_priority_parse(const char *text, enum fa_priority *out);

/* Steps in elements, >= 0, between neighbours in batch, head and row; the last dimension is dense.
 * A step of 0 lets all of a dimension share the same elements (inputs only). */
struct fa_strides {
    int64_t batch;
    int64_t head;
    int64_t row;
};

/* A tensor's extents: [batch, heads, rows, width]. For lse the width is 1. */
struct fa_extents {
    uint32_t batch;
    uint32_t heads;
    uint32_t rows;
    uint32_t width;
};

/* The strides of a tensor without gaps. Products saturate at INT64_MAX; fa_span then refuses. */
struct fa_strides fa_packed_strides(struct fa_extents extents);

/* Elements from the tensor's first to its last, both counted (0 when an extent is 0), into *out.
 * False, *out untouched, when a stride is negative or the bytes would not fit an int64_t. */
bool fa_span(struct fa_extents extents, struct fa_strides strides, uint64_t *out);

/* True when no two index triples name the same element, by the rule that strides must nest: sorted
 * by size, each is at least the span of all dimensions inside it. What an output must satisfy. */
bool fa_strides_nest(struct fa_extents extents, struct fa_strides strides);

#ifdef __cplusplus
}
#endif

#endif
