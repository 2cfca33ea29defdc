/* reference.c: the oracle. The definition of attention in double precision: all scores of a row,
 * their maximum, the exponentials, the weighted sum. No running maximum, no rescaling.
 *
 * It is arranged for reuse only: rows that share a head are taken together, so that a block of keys
 * is converted (and transposed, which lets the compiler use vectors) once for all of them. */
#include "kernels/fa_attention.h"
#include "kernels/mask.h"

#include <math.h>
#include <stdlib.h>

#define ROWS_MAX 32u /* rows taken together */
#define KEYS     64u /* keys converted together */
#define GROUP    8u  /* keys or dimensions whose sums run side by side */

/* Pairs fit the vectors that every machine has. */
typedef double pair __attribute__((vector_size(2 * sizeof(double))));

struct group {
    pair of[GROUP / 2];
};

/* Up to ROWS_MAX rows of one head, against its keys. */
struct rows {
    const struct fa_problem *problem;
    const float *q, *k, *v; /* the first row, key and value */
    uint32_t first, count;  /* rows of the head */
    uint32_t keys;          /* that the last row, and so any of them, sees */
    double *scores;         /* [count, kv_len] */
    struct group *block;    /* KEYS keys or values, converted */
    double *o;              /* [count, head_dim] */
    double *lse;            /* [count] or NULL */
};

static double *scores_of(const struct rows *rows, uint32_t row)
{
    return rows->scores + (size_t)row * rows->problem->kv_len;
}

static double *lane_of(struct group *group, uint32_t lane)
{
    return (double *)group->of + lane;
}

/* *sums += factors[0] * terms[0] + factors[1] * terms[1] + ..., in this order. */
static void add_products(struct group *sums, const double *factors, const struct group *terms,
                         uint32_t count)
{
    struct group now = *sums;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t lane = 0; lane < GROUP / 2; lane++)
            now.of[lane] += factors[i] * terms[i].of[lane];
    *sums = now;
}

/* scale * q k^T for up to KEYS keys from `first` on. Masked ones are computed too, never used. */
static void score_block(const struct rows *rows, uint32_t first, uint32_t count)
{
    const uint32_t head_dim = rows->problem->head_dim;

    /* [group of keys][dimension][key of the group], zeroes past the last key */
    for (uint32_t j = 0; j < KEYS; j++)
        for (uint32_t d = 0; d < head_dim; d++)
            *lane_of(rows->block + j / GROUP * head_dim + d, j % GROUP) =
                j < count ? rows->k[(int64_t)(first + j) * rows->problem->k.row + d] : 0;

    for (uint32_t row = 0; row < rows->count; row++) {
        double q[FA_HEAD_DIM_MAX], *scores = scores_of(rows, row) + first;
        for (uint32_t d = 0; d < head_dim; d++)
            q[d] = rows->q[(int64_t)row * rows->problem->q.row + d];
        for (uint32_t j = 0; j < count; j += GROUP) {
            struct group sums = {{{0}}};
            add_products(&sums, q, rows->block + j / GROUP * head_dim, head_dim);
            for (uint32_t i = 0; i < GROUP && j + i < count; i++)
                scores[j + i] = rows->problem->scale * *lane_of(&sums, i);
        }
    }
}

/* Turns a row's scores into weights that sum to 1, and gives its LSE. False, and all weights 0,
 * where the row sees no key, or none with a score above -inf. */
static bool normalise(double *scores, uint32_t keys, double *lse)
{
    double top = -INFINITY, sum = 0;

    for (uint32_t j = 0; j < keys; j++)
        top = fmax(top, scores[j]); /* passes over NaN, which the exponential then keeps */
    if (top == -INFINITY)
        top = 0;
    for (uint32_t j = 0; j < keys; j++) {
        scores[j] = exp(scores[j] - top);
        sum += scores[j];
    }
    for (uint32_t j = 0; j < keys && sum != 0; j++)
        scores[j] /= sum;
    if (lse)
        *lse = sum == 0 ? -INFINITY : top + log(sum);
    return sum != 0;
}

/* Adds weight * v of up to KEYS keys from `first` on to the rows that see them. */
static void value_block(const struct rows *rows, uint32_t first, uint32_t count)
{
    const uint32_t head_dim = rows->problem->head_dim;

    /* [group of dimensions][key][dimension of the group] */
    for (uint32_t j = 0; j < count; j++)
        for (uint32_t d = 0; d < head_dim; d++)
            *lane_of(rows->block + d / GROUP * KEYS + j, d % GROUP) =
                rows->v[(int64_t)(first + j) * rows->problem->v.row + d];

    for (uint32_t row = 0; row < rows->count; row++) {
        const uint32_t visible = mask_visible_keys(rows->problem, rows->first + row);
        const uint32_t seen = visible < first ? 0 : visible - first;
        for (uint32_t d = 0; d < head_dim; d += GROUP) {
            double *o = rows->o + (size_t)row * head_dim + d;
            struct group sums = {{{0}}};
            for (uint32_t i = 0; i < GROUP && d + i < head_dim; i++)
                *lane_of(&sums, i) = o[i];
            add_products(&sums, scores_of(rows, row) + first, rows->block + d / GROUP * KEYS,
                         seen < count ? seen : count);
            for (uint32_t i = 0; i < GROUP && d + i < head_dim; i++)
                o[i] = *lane_of(&sums, i);
        }
    }
}

static void run_rows(const struct rows *rows)
{
    const uint32_t head_dim = rows->problem->head_dim;
    bool weighs[ROWS_MAX] = {false};

    for (size_t i = 0; i < (size_t)rows->count * head_dim; i++)
        rows->o[i] = 0;
    for (uint32_t first = 0; first < rows->keys; first += KEYS)
        score_block(rows, first, rows->keys - first < KEYS ? rows->keys - first : KEYS);
    for (uint32_t row = 0; row < rows->count; row++)
        weighs[row] =
            normalise(scores_of(rows, row), mask_visible_keys(rows->problem, rows->first + row),
                      rows->lse ? rows->lse + row : NULL);
    for (uint32_t first = 0; first < rows->keys; first += KEYS)
        value_block(rows, first, rows->keys - first < KEYS ? rows->keys - first : KEYS);
    for (uint32_t row = 0; row < rows->count; row++)
        for (uint32_t d = 0; d < head_dim && !weighs[row]; d++)
            rows->o[(size_t)row * head_dim + d] = 0; /* even where a value is NaN */
}

/* The rows from the index-th over (batch, head, row) on that share a head, ROWS_MAX and limit at
 * most. */
static struct rows rows_at(const struct fa_problem *problem, const struct fa_tensors *tensors,
                           uint64_t index, uint64_t limit)
{
    const uint64_t row = index % problem->q_len;
    const uint64_t head = index / problem->q_len % problem->heads;
    const uint64_t batch = index / problem->q_len / problem->heads;
    const uint64_t kv_head = head / (problem->heads / problem->kv_heads);
    uint64_t count = problem->q_len - row;

    count = count < ROWS_MAX ? count : ROWS_MAX;
    count = count < limit ? count : limit;
    return (struct rows){
        .problem = problem,
        .q = (const float *)tensors->q + (int64_t)batch * problem->q.batch +
             (int64_t)head * problem->q.head + (int64_t)row * problem->q.row,
        .k = (const float *)tensors->k + (int64_t)batch * problem->k.batch +
             (int64_t)kv_head * problem->k.head,
        .v = (const float *)tensors->v + (int64_t)batch * problem->v.batch +
             (int64_t)kv_head * problem->v.head,
        .first = (uint32_t)row,
        .count = (uint32_t)count,
        .keys = mask_visible_keys(problem, (uint32_t)(row + count - 1)),
    };
}

bool fa_reference(const struct fa_problem *problem, const struct fa_tensors *tensors,
                  struct fa_range rows, double *o, double *lse)
{
    const size_t row_bytes = ((size_t)problem->kv_len + 1) * sizeof(double); /* never 0 */
    double *scores = malloc(ROWS_MAX * row_bytes);
    const size_t dimensions = (problem->head_dim + GROUP - 1) / GROUP * GROUP;
    struct group *block = aligned_alloc(sizeof *block, KEYS * dimensions * sizeof(double));
    const bool enough = scores && block;

    for (uint64_t done = 0; enough && done < rows.count;) {
        struct rows now = rows_at(problem, tensors, rows.first + done, rows.count - done);
        now.scores = scores;
        now.block = block;
        now.o = o + done * problem->head_dim;
        now.lse = lse ? lse + done : NULL;
        run_rows(&now);
        done += now.count;
    }
    free(scores);
    free(block);
    return enough;
}
