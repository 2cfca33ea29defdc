#include "proto/fa_types.h"

#include <string.h>

const char *fa_mask_name(enum fa_mask mask)
{
    switch (mask) {
#define FA_MASK_CASE(name, number, text) \
    case FA_MASK_##name:                 \
        return text;
        FA_MASK_LIST(FA_MASK_CASE)
#undef FA_MASK_CASE
    }
    return NULL;
}

const char *fa_dtype_name(enum fa_dtype dtype)
{
    switch (dtype) {
#define FA_DTYPE_CASE(name, number, text, bytes) \
    case FA_DTYPE_##name:                        \
        return text;
        FA_DTYPE_LIST(FA_DTYPE_CASE)
#undef FA_DTYPE_CASE
    }
    return NULL;
}

size_t fa_dtype_bytes(enum fa_dtype dtype)
{
#define FA_DTYPE_MATCH(name, number, text, bytes) \
    if (dtype == FA_DTYPE_##name)                 \
        return bytes;
    FA_DTYPE_LIST(FA_DTYPE_MATCH)
#undef FA_DTYPE_MATCH
    return 0;
}

const char *fa_priority_name(enum fa_priority priority)
{
    switch (priority) {
#define NAME(name, number, text, weight) \
    case FA_PRIORITY_##name:             \
        return text;
        FA_PRIORITY_LIST(NAME)
#undef NAME
    }
    return NULL;
}

uint32_t fa_priority_weight(enum fa_priority priority)
{
    switch (priority) {
#define WEIGHT(name, number, text, weight) \
    case FA_PRIORITY_##name:               \
        return weight;
        FA_PRIORITY_LIST(WEIGHT)
#undef WEIGHT
    }
    return 0;
}

bool fa_priority_parse(const char *text, enum fa_priority *out)
{
#define PARSE(name, number, form, weight) \
    if (strcmp(text, form) == 0) {        \
        *out = FA_PRIORITY_##name;        \
        return true;                      \
    }
    FA_PRIORITY_LIST(PARSE)
#undef PARSE
    return false;
}

bool fa_mask_parse(const char *text, enum fa_mask *out)
{
#define FA_MASK_MATCH(name, number, form) \
    if (strcmp(text, form) == 0) {        \
        *out = FA_MASK_##name;            \
        return true;                      \
    }
    FA_MASK_LIST(FA_MASK_MATCH)
#undef FA_MASK_MATCH
    return false;
}

static int64_t saturating_product(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

struct fa_strides fa_packed_strides(struct fa_extents extents)
{
    struct fa_strides strides;
    strides.row = extents.width;
    strides.head = saturating_product(strides.row, extents.rows);
    strides.batch = saturating_product(strides.head, extents.heads);
    return strides;
}

/* Elements are at most 4 bytes wide: spans up to this many keep byte arithmetic inside int64_t. */
#define SPAN_LIMIT (INT64_MAX / 8)

bool fa_span(struct fa_extents extents, struct fa_strides strides, uint64_t *out)
{
    const int64_t steps[3] = {strides.batch, strides.head, strides.row};
    const int64_t counts[3] = {extents.batch, extents.heads, extents.rows};
    int64_t last = (int64_t)extents.width - 1;

    for (int i = 0; i < 3; i++)
        if (steps[i] < 0)
            return false;
    if (extents.batch == 0 || extents.heads == 0 || extents.rows == 0 || extents.width == 0) {
        *out = 0;
        return true;
    }
    for (int i = 0; i < 3; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(steps[i], counts[i] - 1, &reach) ||
            __builtin_add_overflow(last, reach, &last) || last >= SPAN_LIMIT)
            return false;
    }
    *out = (uint64_t)last + 1;
    return true;
}

bool fa_strides_nest(struct fa_extents extents, struct fa_strides strides)
{
    int64_t steps[3] = {strides.row, strides.head, strides.batch};
    int64_t counts[3] = {extents.rows, extents.heads, extents.batch};
    int64_t inner = extents.width; /* span of the dimensions inside the one looked at */

    if (extents.batch == 0 || extents.heads == 0 || extents.rows == 0 || extents.width == 0)
        return true;              /* no elements to share a place */
    for (int i = 0; i < 2; i++) { /* three entries: sort by step, smallest first */
        for (int j = 0; j + 1 < 3 - i; j++) {
            if (steps[j] > steps[j + 1]) {
                int64_t step = steps[j], count = counts[j];
                steps[j] = steps[j + 1], counts[j] = counts[j + 1];
                steps[j + 1] = step, counts[j + 1] = count;
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        if (counts[i] <= 1)
            continue;
        if (steps[i] < inner)
            return false;
        if (__builtin_add_overflow(inner, saturating_product(steps[i], counts[i] - 1), &inner))
            return false; /* beyond any memory */
    }
    return true;
}
