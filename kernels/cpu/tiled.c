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
 * The work of a unit is a tile of rows against a span of keys. It walks the keys in blocks that
 * stay in the nearest caches: scores, maximum, weights, and o = o * alpha + (the block's part,
 * summed from 0 in registers). Every CHUNK_KEYS keys the state (o, maximum, sum) starts afresh and
 * is then merged into the total, so that a sum's length, and with it its error, stays short of the
 * key count.
 *
 * Many keys are several spans. Each unit of a tile then leaves its total in the launch's shared
 * state, and the one that finishes last merges them all, from the first span to the last: what ran
 * where and when cannot show in the result.
 *
 * A masked key must not touch a row even where v is NaN, and 0 * NaN is NaN: keys that only some
 * rows of a strip see are added under a lane mask. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/strip.h"
#include "kernels/mask.h"

#include <float.h>
#include <math.h>

#ifndef FA_ISA
#define FA_ISA base
#endif

/* FLOP/s of one core at (4,12,2048,64), AMD EPYC (Zen 4), 2026-11-29; an FMA loop of 16 or 8 lanes
 * does 125e9 there, one of multiplications and additions of 4 lanes 49e9. */
#if LANES == 16
#define RATE 90e9
#elif LANES == 8
#define RATE 74e9
#else
#define RATE 30e9
#endif

/* A unit of one row and one key with D = 64; D = 256 takes six times as long, D = 1 a ninth. Intel
 * Xeon with AVX-512, 2026-11-30: fa-cli run --shape 1,24000,1,64. */
#define UNIT_SECONDS 0.8e-6

#define TILE_ROWS  64u /* of a unit; small enough for ranges of a quarter of a millisecond */
#define STRIPS     (TILE_ROWS / STRIP_ROWS)
#define BLOCK_KEYS 48u  /* a multiple of every SIDE; speed is about the same from 24 to 240 */
#define CHUNK_KEYS 480u /* a multiple of BLOCK_KEYS */

/* A span has about SPAN_CHUNKS chunks, a millisecond or so. It has more where a head would else
 * have more than PARTS_MAX totals of tiles and spans to keep, or more than one for PART_CHUNKS
 * chunks of its keys, which is about a hundredth of the bytes of its k and v. */
#define SPAN_CHUNKS 16u
#define PART_CHUNKS 8u
#define PARTS_MAX   256u

struct strip {
    unsigned vectors; /* in use */
    struct lanes *q;  /* [head_dim], times the sign of the scale */
    struct state *chunk, *total;
    integers visible[STRIP_VECTORS]; /* keys that each row sees */
    uint32_t visible_to_all;         /* keys that every row sees */
    uint32_t visible_to_any;
};

/* How the keys of a tile are cut into units. */
struct spans {
    uint64_t count;
    uint32_t keys; /* of each but the last; a multiple of CHUNK_KEYS, or all where count is 1 */
};

struct tile {
    const struct fa_problem *problem;
    struct spans spans;
    struct fa_cpu_unit unit;
    float scale_log2; /* turns a difference of scores into an exponent of 2; > 0 */
    uint32_t strips;  /* in use */
    struct strip strip[STRIPS];
    struct lanes *scores; /* [BLOCK_KEYS], of the strip at hand; then its weights */

    /* In the shared state; NULL where there is one span. */
    uint32_t *done;      /* how many units of the tile are done */
    struct lanes *parts; /* their totals, [spans.count, strips of a tile] */
};

/* A function of what bits may depend on: M, N, D. */
static struct spans spans_of(const struct fa_problem *problem)
{
    const uint64_t chunks = ((uint64_t)problem->kv_len + CHUNK_KEYS - 1) / CHUNK_KEYS;
    const uint64_t tiles = ((uint64_t)problem->q_len + TILE_ROWS - 1) / TILE_ROWS;
    const uint64_t parts = chunks / PART_CHUNKS < PARTS_MAX ? chunks / PART_CHUNKS : PARTS_MAX;
    const uint64_t wanted = (chunks + SPAN_CHUNKS - 1) / SPAN_CHUNKS;
    const uint64_t count = wanted * tiles <= parts ? wanted : parts / tiles;
    uint64_t each;

    if (count <= 1)
        return (struct spans){1, problem->kv_len};
    each = (chunks + count - 1) / count;
    return (struct spans){(chunks + each - 1) / each, (uint32_t)(each * CHUNK_KEYS)};
}

/* The totals of one tile and span, in units of struct lanes. */
static size_t part_size(const struct fa_problem *problem)
{
    const uint32_t rows = problem->q_len < TILE_ROWS ? problem->q_len : TILE_ROWS;

    return (rows + STRIP_ROWS - 1) / STRIP_ROWS * state_size(problem->head_dim);
}

/* The shared state begins with a counter for each tile; this many bytes, a multiple of 64. */
static size_t counters_size(uint64_t tiles)
{
    return (tiles + 15) / 16 * 64;
}

/* Brings the keys [first, end) into a strip's chunk. */
static void add_block(const struct tile *tile, const struct strip *strip, uint32_t first,
                      uint32_t end)
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
        add_block_of(1, &block, strip->q, tile->scale_log2, tile->scores, strip->chunk);
    else
        add_block_of(STRIP_VECTORS, &block, strip->q, tile->scale_log2, tile->scores, strip->chunk);
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
}

static void store_strip(const struct tile *tile, uint32_t index)
{
    const struct fa_problem *problem = tile->problem;
    const struct strip *strip = &tile->strip[index];
    struct state *state = strip->total;
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

static struct state *part_of(const struct tile *tile, uint64_t span, uint32_t index)
{
    return (struct state *)(tile->parts + span * part_size(tile->problem) +
                            index * state_size(tile->problem->head_dim));
}

/* Sums the keys [first, end) up in the strips' totals. False when the launch was stopped. */
static bool walk(const struct fa_launch *launch, const struct tile *tile, uint32_t first,
                 uint32_t end)
{
    const uint32_t head_dim = tile->problem->head_dim;

    for (uint32_t i = 0; i < tile->strips; i++)
        reset(tile->strip[i].total, head_dim);
    for (uint32_t chunk = first; chunk < end; chunk += CHUNK_KEYS) {
        const uint32_t chunk_end = end - chunk < CHUNK_KEYS ? end : chunk + CHUNK_KEYS;
        if (fa_cpu_stopped(launch))
            return false;
        for (uint32_t i = 0; i < tile->strips; i++)
            reset(tile->strip[i].chunk, head_dim);
        for (uint32_t block = chunk; block < chunk_end; block += BLOCK_KEYS) {
            const uint32_t last = chunk_end - block < BLOCK_KEYS ? chunk_end : block + BLOCK_KEYS;
            for (uint32_t i = 0; i < tile->strips; i++)
                if (block < tile->strip[i].visible_to_any)
                    add_block(tile, &tile->strip[i], block, last);
        }
        for (uint32_t i = 0; i < tile->strips; i++)
            merge(tile->strip[i].vectors, tile->scale_log2, head_dim, tile->strip[i].total,
                  tile->strip[i].chunk);
    }
    return true;
}

/* Merges the totals of the first `spans` spans into those of the first, which become the strips'.
 * False when the launch was stopped. */
static bool merge_spans(const struct fa_launch *launch, struct tile *tile, uint64_t spans)
{
    for (uint32_t i = 0; i < tile->strips; i++) {
        tile->strip[i].total = part_of(tile, 0, i);
        for (uint64_t span = 1; span < spans; span++) {
            if (fa_cpu_stopped(launch))
                return false;
            merge(tile->strip[i].vectors, tile->scale_log2, tile->problem->head_dim,
                  tile->strip[i].total, part_of(tile, span, i));
        }
    }
    return true;
}

static uint64_t units(const struct fa_problem *problem)
{
    uint64_t count = fa_cpu_unit_count(problem, TILE_ROWS);

    if (__builtin_mul_overflow(count, spans_of(problem).count, &count))
        return UINT64_MAX;
    return count;
}

/* A counter for each tile; for each tile and span, the totals of its strips. */
static size_t state(const struct fa_problem *problem)
{
    const uint64_t tiles = fa_cpu_unit_count(problem, TILE_ROWS), spans = spans_of(problem).count;
    size_t bytes;

    if (spans == 1)
        return 0;
    if (__builtin_mul_overflow(tiles, spans * part_size(problem) * sizeof(struct lanes), &bytes) ||
        bytes > SIZE_MAX / 2 || tiles > SIZE_MAX / 8)
        return SIZE_MAX;
    return counters_size(tiles) + (bytes + 63) / 64 * 64;
}

/* The scores of a block; for every strip q, and o, top and sum of the chunk and in total. */
static size_t scratch(const struct fa_problem *problem, uint64_t units)
{
    const size_t strip = problem->head_dim + 2 * state_size(problem->head_dim);

    (void)units;
    return (BLOCK_KEYS + STRIPS * strip) * sizeof(struct lanes);
}

/* Sets a tile up for the unit; returns its span. */
static uint64_t find_unit(const struct fa_launch *launch, uint64_t unit, struct tile *tile)
{
    const uint64_t index = unit / tile->spans.count;

    tile->unit = fa_cpu_unit_at(launch, TILE_ROWS, index);
    tile->strips = (tile->unit.rows + STRIP_ROWS - 1) / STRIP_ROWS;
    if (tile->spans.count > 1) {
        const uint64_t tiles = fa_cpu_unit_count(tile->problem, TILE_ROWS);
        char *shared = (char *)launch->state + index / tiles * state(tile->problem);
        tile->done = (uint32_t *)shared + index % tiles;
        tile->parts = (struct lanes *)(shared + counters_size(tiles)) +
                      index % tiles * tile->spans.count * part_size(tile->problem);
    }
    return unit % tile->spans.count;
}

/* A unit whose launch is stopped does not count as done, so that nobody merges its tile. */
static void run_unit(const struct fa_launch *launch, struct tile *tile, uint64_t unit)
{
    const struct spans spans = tile->spans;
    const uint64_t span = find_unit(launch, unit, tile);
    const uint64_t first = span * spans.keys;
    uint64_t keys; /* that the tile sees */

    for (uint32_t i = 0; i < tile->strips; i++) {
        load_strip(tile, i);
        if (spans.count > 1)
            tile->strip[i].total = part_of(tile, span, i);
    }
    keys = tile->strip[tile->strips - 1].visible_to_any;
    /* The first span counts even where it sees no key; others that see none are passed over. */
    if (span == 0 || first < keys) {
        const uint64_t end = keys - first < spans.keys ? keys : first + spans.keys;
        if (!walk(launch, tile, (uint32_t)first, (uint32_t)end))
            return;
    }
    if (spans.count > 1) {
        const uint64_t seen = keys == 0 ? 1 : (keys - 1) / spans.keys + 1;
        if (__atomic_add_fetch(tile->done, 1, __ATOMIC_ACQ_REL) != spans.count ||
            !merge_spans(launch, tile, seen))
            return;
    }
    for (uint32_t i = 0; i < tile->strips; i++)
        store_strip(tile, i);
}

static enum fa_status run(const struct fa_launch *launch)
{
    const struct fa_problem *problem = launch->problem;
    struct tile tile = {.problem = problem, .spans = spans_of(problem), .scores = launch->scratch};
    struct lanes *space = tile.scores + BLOCK_KEYS;

    /* With scale 0 all scores are 0 (the sign makes q so), and any positive factor will do. One too
     * large for a float is cut: differences of scores are 0, or end at weight 0 either way. One too
     * small is cut as well: 0 * -inf would be NaN, and times the smallest float no difference of
     * finite scores comes to more than 1e-6. */
    tile.scale_log2 = (float)fmin(fmax(fabs(problem->scale) * M_LOG2E, FLT_TRUE_MIN), FLT_MAX);
    for (uint32_t i = 0; i < STRIPS; i++) {
        tile.strip[i].q = space;
        tile.strip[i].chunk = (struct state *)(space + problem->head_dim);
        space += problem->head_dim + state_size(problem->head_dim);
        tile.strip[i].total = (struct state *)space;
        space += state_size(problem->head_dim);
    }
    for (uint64_t i = 0; i < launch->range.count && !fa_cpu_stopped(launch); i++)
        run_unit(launch, &tile, launch->range.first + i);
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
    .state = state,
    .scratch = scratch,
    .launch = run,
    .rate = RATE,
    .unit_seconds = UNIT_SECONDS,
    .byte_seconds = FA_CPU_BYTE_SECONDS,
    .read_seconds = FA_CPU_READ_SECONDS,
};
