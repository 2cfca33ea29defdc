/* cases.h: the reference cases that PyTorch computed in double precision, from test_data_dir().
 *
 *     size_t count;
 *     struct test_case *cases = test_cases_load(&count);
 *     for (size_t i = 0; i < count; i++)
 *         ... cases[i].q ...
 *     test_cases_free(cases, count);
 *
 * Only for tests that test_skip() when test_data_dir() is NULL. Anything wrong with the files fails
 * the calling test. */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include "proto/fa_types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One case. Tensors are packed: q and o [batch, heads, q_len, head_dim], k and v
 * [batch, kv_heads, kv_len, head_dim], lse [batch, heads, q_len]. */
struct test_case {
    char name[64];
    uint32_t batch;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t head_dim;
    enum fa_mask mask;
    bool has_scale; /* else the default one, and scale is 0 */
    double scale;
    float *q, *k, *v;
    double *o, *lse;
};

/* All cases, in the order of cases.json. */
struct test_case *test_cases_load(size_t *count);

void test_cases_free(struct test_case *cases, size_t count);

#endif
