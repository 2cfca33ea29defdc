/* strip.h: the arithmetic of tiled.c on one strip of rows: the products of a block of keys, the
 * running softmax, and the merge of two parts.
 *
 * A strip is two vectors of query rows, one row a lane; its q, scores and o are kept transposed:
 * [dimension or key][row]. Nothing here reduces across a vector. */
#ifndef FA_KERNELS_CPU_STRIP_H
#define FA_KERNELS_CPU_STRIP_H

#include "kernels/cpu/vector.h"

#include <stddef.h>

/* Keys (of the scores) or dimensions (of o) that a product takes at once. SIDE * STRIP_VECTORS sums
 * and what feeds them must fit the registers: 32 of them with AVX-512, else 16. */
#if LANES == 16
#define SIDE 12
#elif LANES == 8
#define SIDE 6
#else
#define SIDE 4
#endif

#define STRIP_VECTORS 2
#define STRIP_ROWS    (STRIP_VECTORS * LANES)

/* One number of each row of a strip. A strip of LANES rows or fewer leaves the second vector
 * undefined and unused. */
struct lanes {
    vector v[STRIP_VECTORS];
};

/* A running softmax over some of the keys. o is not yet divided by sum. */
struct state {
    struct lanes top; /* the largest score, before the scale; -inf: none */
    struct lanes sum; /* of the weights exp(|scale| (score - top)) */
    struct lanes o[]; /* [head_dim] */
};

/* In units of struct lanes. */
INLINE size_t state_size(uint32_t head_dim)
{
    return sizeof(struct state) / sizeof(struct lanes) + head_dim;
}

/* A block of keys as one strip sees it. */
struct block {
    const float *k, *v; /* the first key and value */
    int64_t k_row, v_row;
    uint32_t head_dim;
    uint32_t keys;                   /* that any row sees */
    uint32_t common;                 /* that all rows see, <= keys */
    integers visible[STRIP_VECTORS]; /* that each row sees, counted from the block's first */
};

/* The functions below with `const unsigned` parameters are used with constants for these. */

/* Scores of `keys` keys: dots of their rows of k with the rows of q. */
INLINE void score_keys(const unsigned vectors, const unsigned keys, const struct block *block,
                       uint32_t first, const struct lanes *q, struct lanes *scores)
{
    const float *k = block->k + first * block->k_row;
    const int64_t k_row = block->k_row;
    vector sums[SIDE][STRIP_VECTORS] = {{{0}}};

    for (uint32_t d = 0; d < block->head_dim; d++) {
#pragma GCC unroll 12
        for (unsigned i = 0; i < keys; i++) {
            const float x = k[i * k_row + d];
#pragma GCC unroll 2
            for (unsigned n = 0; n < vectors; n++)
                sums[i][n] += x * q[d].v[n];
        }
    }
#pragma GCC unroll 12
    for (unsigned i = 0; i < keys; i++)
#pragma GCC unroll 2
        for (unsigned n = 0; n < vectors; n++)
            scores[first + i].v[n] = sums[i][n];
}

INLINE void score_block(const unsigned vectors, const struct block *block, const struct lanes *q,
                        struct lanes *scores)
{
    uint32_t j = 0;

    for (; j + SIDE <= block->keys; j += SIDE)
        score_keys(vectors, SIDE, block, j, q, scores);
    for (; j + 4 <= block->keys; j += 4)
        score_keys(vectors, 4, block, j, q, scores);
    for (; j < block->keys; j++)
        score_keys(vectors, 1, block, j, q, scores);
}

/* o = o * alpha + weights * v for `width` dimensions from `first` on. */
INLINE void add_values(const unsigned vectors, const unsigned masked, const unsigned width,
                       const struct block *block, uint32_t first, const struct lanes *weights,
                       const struct lanes *alpha, struct lanes *o)
{
    const float *v = block->v + first;
    const int64_t v_row = block->v_row;
    vector sums[SIDE][STRIP_VECTORS] = {{{0}}};

    for (uint32_t j = 0; j < block->common; j++) {
#pragma GCC unroll 12
        for (unsigned i = 0; i < width; i++) {
            const float x = v[j * v_row + i];
#pragma GCC unroll 2
            for (unsigned n = 0; n < vectors; n++)
                sums[i][n] += x * weights[j].v[n];
        }
    }
    for (uint32_t j = block->common; masked && j < block->keys; j++) {
#pragma GCC unroll 12
        for (unsigned i = 0; i < width; i++) {
            const float x = v[j * v_row + i];
#pragma GCC unroll 2
            for (unsigned n = 0; n < vectors; n++)
                sums[i][n] = select_of(block->visible[n] > (int32_t)j,
                                       sums[i][n] + x * weights[j].v[n], sums[i][n]);
        }
    }
#pragma GCC unroll 12
    for (unsigned i = 0; i < width; i++)
#pragma GCC unroll 2
        for (unsigned n = 0; n < vectors; n++)
            o[first + i].v[n] = o[first + i].v[n] * alpha->v[n] + sums[i][n];
}

INLINE void value_block(const unsigned vectors, const unsigned masked, const struct block *block,
                        const struct lanes *weights, const struct lanes *alpha, struct lanes *o)
{
    uint32_t d = 0;

    for (; d + SIDE <= block->head_dim; d += SIDE)
        add_values(vectors, masked, SIDE, block, d, weights, alpha, o);
    for (; d + 4 <= block->head_dim; d += 4)
        add_values(vectors, masked, 4, block, d, weights, alpha, o);
    for (; d < block->head_dim; d++)
        add_values(vectors, masked, 1, block, d, weights, alpha, o);
}

/* The shift of the exponents: the maximum, or 0 where there is none (-inf - -inf would be NaN). */
INLINE vector shift_of(vector top)
{
    return clear_where(top == -INFINITY, top);
}

/* Turns a block's scores into weights, masked ones into 0; brings top and sum up to date. *alpha is
 * what o so far is to be multiplied by. */
INLINE void weigh_block(const unsigned vectors, const struct block *block, float scale_log2,
                        struct lanes *scores, struct state *state, struct lanes *alpha)
{
    for (unsigned n = 0; n < vectors; n++) {
        vector top = state->top.v[n], sum = {0}, shift;
        for (uint32_t j = block->common; j < block->keys; j++)
            scores[j].v[n] =
                select_of(block->visible[n] > (int32_t)j, scores[j].v[n], splat(-INFINITY));
        for (uint32_t j = 0; j < block->keys; j++)
            top = larger_of(scores[j].v[n], top);
        shift = shift_of(top);
        for (uint32_t j = 0; j < block->keys; j++) {
            scores[j].v[n] = exp2_of((scores[j].v[n] - shift) * scale_log2);
            sum += scores[j].v[n];
        }
        alpha->v[n] = exp2_of((state->top.v[n] - shift) * scale_log2);
        state->top.v[n] = top;
        state->sum.v[n] = state->sum.v[n] * alpha->v[n] + sum;
    }
}

/* Brings the block into the state, with `scores` for its scores and then its weights. */
INLINE void add_block_of(const unsigned vectors, const struct block *block, const struct lanes *q,
                         float scale_log2, struct lanes *scores, struct state *state)
{
    struct lanes alpha;

    score_block(vectors, block, q, scores);
    weigh_block(vectors, block, scale_log2, scores, state, &alpha);
    if (block->common == block->keys)
        value_block(vectors, 0, block, scores, &alpha, state->o);
    else
        value_block(vectors, 1, block, scores, &alpha, state->o);
}

/* Makes a state the one of no keys. */
INLINE void reset(struct state *state, uint32_t head_dim)
{
    for (unsigned n = 0; n < STRIP_VECTORS; n++) {
        state->top.v[n] = splat(-INFINITY);
        state->sum.v[n] = splat(0);
        for (uint32_t d = 0; d < head_dim; d++)
            state->o[d].v[n] = splat(0);
    }
}

/* Adds a part, whose keys are later ones, to the total. */
INLINE void merge(unsigned vectors, float scale_log2, uint32_t head_dim, struct state *total,
                  const struct state *part)
{
    for (unsigned n = 0; n < vectors; n++) {
        const vector top = larger_of(part->top.v[n], total->top.v[n]);
        const vector shift = shift_of(top);
        const vector a = exp2_of((total->top.v[n] - shift) * scale_log2);
        const vector b = exp2_of((part->top.v[n] - shift) * scale_log2);
        total->top.v[n] = top;
        total->sum.v[n] = total->sum.v[n] * a + part->sum.v[n] * b;
        for (uint32_t d = 0; d < head_dim; d++)
            total->o[d].v[n] = total->o[d].v[n] * a + part->o[d].v[n] * b;
    }
}

#endif
