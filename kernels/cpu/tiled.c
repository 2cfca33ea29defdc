/* tiled.c: FlashAttention-2 for one CPU core, compiled once for each instruction set (FA_ISA).
 *
 * The idea: query rows are the lanes of a vector. Two vectors of rows are a strip, and a strip's
 * q, scores and o are kept transposed: [dimension or key][row]. Then
 *  - both products read k and v where they lie, one broadcast element at a time, so that any stride
 *    and any alignment will do and nothing is packed;
 *  - maxima, sums and rescaling go lane by lane, without a reduction across a vector;
 *  - every row goes through the same instructions whatever lane it has, so that its bits cannot
 *    depend on its neighbours; lanes past the last row repeat it and are not stored.
 *
 * The work of a unit is a tile of rows. It walks the keys in blocks that stay in the nearest
 * caches: scores, maximum, weights, and o = o * alpha + (the block's part, summed from 0 in
 * registers). Every CHUNK_KEYS keys the state (o, maximum, sum) starts afresh and is then merged
 * into the total, so that a sum's length, and with it its error, stays short of the key count.
 *
 * A masked key must not touch a row even where v is NaN, and 0 * NaN is NaN: keys that only some
 * rows of a strip see are added under a lane mask. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"
#include "kernels/mask.h"

#include <float.h>
#include <math.h>

#ifndef FA_ISA
#define FA_ISA base
#endif

/* Keys (of the scores) or dimensions (of o) that a product takes at once. SIDE * STRIP_VECTORS sums
 * and what feeds them must fit the registers: 32 of them with AVX-512, else 16.
 * RATE: FLOP/s of one core at (4,12,2048,64), AMD EPYC (Zen 4), 2026-11-29; an FMA loop of 16 or 8
 * lanes does 125e9 there, one of multiplications and additions of 4 lanes 49e9. */
#if LANES == 16
#define SIDE 12
#define RATE 90e9
#elif LANES == 8
#define SIDE 6
#define RATE 74e9
#else
#define SIDE 4
#define RATE 30e9
#endif

#define STRIP_VECTORS 2
#define STRIP_ROWS    (STRIP_VECTORS * LANES)
#define TILE_ROWS     64u /* of a unit; small enough for ranges of a quarter of a millisecond */
#define STRIPS        (TILE_ROWS / STRIP_ROWS)
#define BLOCK_KEYS    48u  /* a multiple of every SIDE; speed is about the same from 24 to 240 */
#define CHUNK_KEYS    480u /* a multiple of BLOCK_KEYS */

/* One number of each row of a strip. A strip of LANES rows or fewer leaves the second vector
 * undefined and unused. */
struct lanes {
    vector v[STRIP_VECTORS];
};

/* A running softmax over some of the keys. o is not yet divided by sum. */
struct state {
    struct lanes top; /* the largest score, before the scale; -inf: none */
    struct lanes sum; /* of the weights exp(|scale| (score - top)) */
    struct lanes *o;  /* [head_dim] */
};

struct strip {
    unsigned vectors; /* in use */
    struct lanes *q;  /* [head_dim], times the sign of the scale */
    struct state chunk, total;
    integers visible[STRIP_VECTORS]; /* keys that each row sees */
    uint32_t visible_to_all;         /* keys that every row sees */
    uint32_t visible_to_any;
};

struct tile {
    const struct fa_problem *problem;
    struct fa_cpu_unit unit;
    float scale_log2; /* turns a difference of scores into an exponent of 2; > 0 */
    uint32_t strips;  /* in use */
    struct strip strip[STRIPS];
    struct lanes *scores; /* [BLOCK_KEYS], of the strip at hand; then its weights */
};

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

INLINE void add_block_of(const unsigned vectors, const struct tile *tile, struct strip *strip,
                         const struct block *block)
{
    struct lanes alpha;

    score_block(vectors, block, strip->q, tile->scores);
    weigh_block(vectors, block, tile->scale_log2, tile->scores, &strip->chunk, &alpha);
    if (block->common == block->keys)
        value_block(vectors, 0, block, tile->scores, &alpha, strip->chunk.o);
    else
        value_block(vectors, 1, block, tile->scores, &alpha, strip->chunk.o);
}

/* Brings the keys [first, end) into a strip's chunk. */
static void add_block(const struct tile *tile, struct strip *strip, uint32_t first, uint32_t end)
{
    const struct fa_problem *problem = tile->problem;
    const uint32_t last = end < strip->visible_to_any ? end : strip->visible_to_any;
    const uint32_t common = last < strip->visible_to_all ? last : strip->visible_to_all;
    struct block block = {
        .k = tile->unit.k + (int64_t)first * problem->k.row,
        .v = tile->unit.v + (int64_t)first * problem->v.row,
        .k_row = problem->k.row,
        .v_row = problem->v.row,
        .head_dim = problem->head_dim,
        .keys = last - first,
        .common = common > first ? common - first : 0,
    };

    for (unsigned n = 0; n < STRIP_VECTORS; n++)
        block.visible[n] = strip->visible[n] - (int32_t)first;
    if (strip->vectors == 1)
        add_block_of(1, tile, strip, &block);
    else
        add_block_of(STRIP_VECTORS, tile, strip, &block);
}

static void reset(struct state *state, uint32_t head_dim)
{
    for (unsigned n = 0; n < STRIP_VECTORS; n++) {
        state->top.v[n] = splat(-INFINITY);
        state->sum.v[n] = splat(0);
        for (uint32_t d = 0; d < head_dim; d++)
            state->o[d].v[n] = splat(0);
    }
}

/* Adds the chunk, whose keys are later ones, to the total. */
static void merge(struct strip *strip, float scale_log2, uint32_t head_dim)
{
    struct state *total = &strip->total;
    const struct state *chunk = &strip->chunk;

    for (unsigned n = 0; n < strip->vectors; n++) {
        const vector top = larger_of(chunk->top.v[n], total->top.v[n]);
        const vector shift = shift_of(top);
        const vector a = exp2_of((total->top.v[n] - shift) * scale_log2);
        const vector b = exp2_of((chunk->top.v[n] - shift) * scale_log2);
        total->top.v[n] = top;
        total->sum.v[n] = total->sum.v[n] * a + chunk->sum.v[n] * b;
        for (uint32_t d = 0; d < head_dim; d++)
            total->o[d].v[n] = total->o[d].v[n] * a + chunk->o[d].v[n] * b;
    }
}

/* Fills in strip `index` of the tile: its rows' q, transposed, and what they see. */
static void load_strip(struct tile *tile, uint32_t index)
{
    const struct fa_problem *problem = tile->problem;
    const float sign = (float)((problem->scale > 0) - (problem->scale < 0));
    const uint32_t first = index * STRIP_ROWS, rows = tile->unit.rows - first;
    struct strip *strip = &tile->strip[index];

    strip->vectors = rows <= LANES ? 1 : STRIP_VECTORS;
    for (uint32_t lane = 0; lane < strip->vectors * LANES; lane++) {
        const uint32_t row = first + (lane < rows ? lane : rows - 1);
        const float *q = tile->unit.q + (int64_t)row * problem->q.row;
        const uint32_t visible = mask_visible_keys(problem, tile->unit.first_row + row);
        for (uint32_t d = 0; d < problem->head_dim; d++)
            strip->q[d].v[lane / LANES][lane % LANES] = q[d] * sign;
        strip->visible[lane / LANES][lane % LANES] = (int32_t)visible;
        if (lane == 0)
            strip->visible_to_all = visible;
        strip->visible_to_any = visible;
    }
    reset(&strip->total, problem->head_dim);
}

static void store_strip(const struct tile *tile, uint32_t index)
{
    const struct fa_problem *problem = tile->problem;
    const struct strip *strip = &tile->strip[index];
    const struct state *state = &strip->total;
    const uint32_t first = index * STRIP_ROWS;

    for (unsigned n = 0; n < strip->vectors; n++)
        for (uint32_t d = 0; d < problem->head_dim; d++)
            state->o[d].v[n] =
                clear_where(state->sum.v[n] == 0.0f, state->o[d].v[n] / state->sum.v[n]);
    for (uint32_t lane = 0; lane < STRIP_ROWS && first + lane < tile->unit.rows; lane++) {
        const double sum = state->sum.v[lane / LANES][lane % LANES];
        const double top = state->top.v[lane / LANES][lane % LANES];
        float *o = tile->unit.o + (int64_t)(first + lane) * problem->o.row;
        for (uint32_t d = 0; d < problem->head_dim; d++)
            o[d] = state->o[d].v[lane / LANES][lane % LANES];
        if (tile->unit.lse)
            tile->unit.lse[(int64_t)(first + lane) * problem->lse.row] =
                sum == 0 ? -INFINITY : (float)(fabs(problem->scale) * top + log(sum));
    }
}

static void run_tile(const struct fa_launch *launch, struct tile *tile)
{
    const uint32_t head_dim = tile->problem->head_dim;
    uint32_t keys;

    for (uint32_t i = 0; i < tile->strips; i++)
        load_strip(tile, i);
    keys = tile->strip[tile->strips - 1].visible_to_any;
    for (uint32_t chunk = 0; chunk < keys; chunk += CHUNK_KEYS) {
        const uint32_t end = keys - chunk < CHUNK_KEYS ? keys : chunk + CHUNK_KEYS;
        if (fa_cpu_stopped(launch))
            return;
        for (uint32_t i = 0; i < tile->strips; i++)
            reset(&tile->strip[i].chunk, head_dim);
        for (uint32_t first = chunk; first < end; first += BLOCK_KEYS) {
            const uint32_t last = end - first < BLOCK_KEYS ? end : first + BLOCK_KEYS;
            for (uint32_t i = 0; i < tile->strips; i++)
                if (first < tile->strip[i].visible_to_any)
                    add_block(tile, &tile->strip[i], first, last);
        }
        for (uint32_t i = 0; i < tile->strips; i++)
            merge(&tile->strip[i], tile->scale_log2, head_dim);
    }
    for (uint32_t i = 0; i < tile->strips; i++)
        store_strip(tile, i);
}

static uint64_t units(const struct fa_problem *problem)
{
    return fa_cpu_unit_count(problem, TILE_ROWS);
}

/* The scores of a block; for every strip q, o of the chunk and o in total. */
static size_t scratch(const struct fa_problem *problem)
{
    return (BLOCK_KEYS + (size_t)STRIPS * 3 * problem->head_dim) * sizeof(struct lanes);
}

static enum fa_status run(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    struct tile tile = {.problem = problem, .scores = launch->scratch};
    struct lanes *space = tile.scores + BLOCK_KEYS;

    /* With scale 0 all scores are 0 (the sign makes q so), and any positive factor will do. One too
     * large for a float is cut: differences of scores are 0, or end at weight 0 either way. */
    tile.scale_log2 =
        problem->scale == 0 ? 1 : (float)fmin(fabs(problem->scale) * M_LOG2E, FLT_MAX);
    for (uint32_t i = 0; i < STRIPS; i++) {
        tile.strip[i].q = space;
        tile.strip[i].chunk.o = space + problem->head_dim;
        tile.strip[i].total.o = space + 2 * (size_t)problem->head_dim;
        space += 3 * (size_t)problem->head_dim;
    }
    for (uint64_t i = 0; i < launch->range.count && !fa_cpu_stopped(launch); i++) {
        tile.unit = fa_cpu_unit_at(launch, TILE_ROWS, launch->range.first + i);
        tile.strips = (tile.unit.rows + STRIP_ROWS - 1) / STRIP_ROWS;
        run_tile(launch, &tile);
    }
    return FA_OK;
}

#define TEXT_(x)    #x
#define TEXT(x)     TEXT_(x)
#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

const struct fa_kernel JOIN(fa_cpu_tiled_, FA_ISA) = {
    .name = "tiled-" TEXT(FA_ISA),
    .refuses = fa_cpu_refuses_nothing,
    .units = units,
    .state = fa_cpu_no_state,
    .scratch = scratch,
    .launch = run,
    .rate = RATE,
};
