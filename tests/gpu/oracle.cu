/* oracle.cu: the definition of attention in double precision, as kernels/cpu/reference.c has it:
 * all scores of a row in memory, their maximum, the exponentials, the weighted sum. */
#include "tests/gpu/oracle.h"

#include "kernels/mask.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace
{

constexpr unsigned GROUP = 8;                  /* rows of one head that share loads */
constexpr unsigned THREADS = 256;              /* of every block */
constexpr unsigned CHUNK = 4096;               /* keys that one block sums values of */
constexpr size_t SCORES_MAX = (size_t)1 << 27; /* of rows taken together */
constexpr size_t ROWS_MAX = (size_t)1 << 20;

struct row {
    int64_t q, k, v; /* offsets of its query, first key and first value */
    uint32_t visible;
};

struct group {
    uint32_t first, count, visible; /* rows of one head; the most keys that one sees */
};

/* What the kernels below work on: some rows of the list. */
struct batch {
    const float *q, *k, *v;
    int64_t k_row, v_row;
    double scale;
    uint32_t kv_len, head_dim;
    unsigned tiles;  /* of THREADS keys */
    unsigned chunks; /* of CHUNK keys */
    const row *rows;
    const group *groups;
    double *scores; /* [rows, kv_len], then weights */
    double *parts;  /* [rows, chunks, head_dim] */
    double *o;      /* [rows, head_dim] */
    double *lse;    /* [rows] */
};

/* A block: the scores of a group against THREADS keys, one for each thread. */
__global__ void score(batch b)
{
    __shared__ double q[GROUP][FA_HEAD_DIM_MAX];
    const group g = b.groups[blockIdx.x / b.tiles];
    const uint32_t key = blockIdx.x % b.tiles * THREADS + threadIdx.x;
    double sums[GROUP] = {};

    for (unsigned i = threadIdx.x; i < GROUP * b.head_dim; i += THREADS) {
        const unsigned r = i / b.head_dim, d = i % b.head_dim;
        q[r][d] = r < g.count ? (double)b.q[b.rows[g.first + r].q + d] : 0;
    }
    __syncthreads();
    if (key >= g.visible)
        return;
    const float *k = b.k + b.rows[g.first].k + key * b.k_row;
    for (unsigned d = 0; d < b.head_dim; d++)
        for (unsigned r = 0; r < GROUP; r++)
            sums[r] += q[r][d] * k[d];
    for (unsigned r = 0; r < g.count; r++)
        b.scores[(size_t)(g.first + r) * b.kv_len + key] = b.scale * sums[r];
}

/* The block's total or maximum of one number a thread, in all threads. */
template <bool MAXIMUM> __device__ double reduce(double mine)
{
    __shared__ double all[THREADS];

    __syncthreads();
    all[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const double other = all[threadIdx.x + half];
            all[threadIdx.x] = MAXIMUM ? fmax(all[threadIdx.x], other) : all[threadIdx.x] + other;
        }
    }
    __syncthreads();
    return all[0];
}

/* A block: a row's scores become weights that sum to 1, or 0 where there is none. */
__global__ void normalise(batch b)
{
    const uint32_t keys = b.rows[blockIdx.x].visible;
    double *scores = b.scores + (size_t)blockIdx.x * b.kv_len;
    double top = -INFINITY, sum = 0;

    for (uint32_t j = threadIdx.x; j < keys; j += THREADS)
        top = fmax(top, scores[j]); /* passes over NaN, which the exponential then keeps */
    top = reduce<true>(top);
    if (top == -INFINITY)
        top = 0;
    for (uint32_t j = threadIdx.x; j < keys; j += THREADS) {
        scores[j] = exp(scores[j] - top);
        sum += scores[j];
    }
    sum = reduce<false>(sum);
    for (uint32_t j = threadIdx.x; j < keys && sum != 0; j += THREADS)
        scores[j] /= sum;
    if (threadIdx.x == 0)
        b.lse[blockIdx.x] = sum == 0 ? -INFINITY : top + log(sum);
}

/* A block: what CHUNK keys add to a group's outputs. A thread has one dimension, and every
 * `lanes`-th key of the chunk. */
__global__ void weigh(batch b)
{
    __shared__ double sums[THREADS];
    const group g = b.groups[blockIdx.x / b.chunks];
    const unsigned chunk = blockIdx.x % b.chunks, lanes = THREADS / b.head_dim;
    const unsigned lane = threadIdx.x / b.head_dim, d = threadIdx.x % b.head_dim;
    const uint32_t first = chunk * CHUNK, last = min(first + CHUNK, g.visible);
    const float *v = b.v + b.rows[g.first].v + d;
    double mine[GROUP] = {};
    uint32_t visible[GROUP] = {};

    for (unsigned r = 0; r < g.count; r++)
        visible[r] = b.rows[g.first + r].visible;
    for (uint32_t j = first + lane; lane < lanes && j < last; j += lanes) {
        const double value = v[j * b.v_row];
        for (unsigned r = 0; r < GROUP; r++)
            if (j < visible[r]) /* a weight of 0 is none where the value is NaN */
                mine[r] += b.scores[(size_t)(g.first + r) * b.kv_len + j] * value;
    }
    for (unsigned r = 0; r < g.count; r++) {
        __syncthreads();
        sums[threadIdx.x] = mine[r];
        __syncthreads();
        if (lane == 0) {
            double sum = 0;
            for (unsigned i = 0; i < lanes; i++)
                sum += sums[i * b.head_dim + d];
            b.parts[((size_t)(g.first + r) * b.chunks + chunk) * b.head_dim + d] = sum;
        }
    }
}

/* A block: a row's outputs; 0 where the row has no weights, even if a value is NaN. */
__global__ void add(batch b)
{
    for (unsigned d = threadIdx.x; d < b.head_dim; d += THREADS) {
        double sum = 0;
        for (unsigned chunk = 0; chunk < b.chunks; chunk++)
            sum += b.parts[((size_t)blockIdx.x * b.chunks + chunk) * b.head_dim + d];
        b.o[(size_t)blockIdx.x * b.head_dim + d] = b.lse[blockIdx.x] == -INFINITY ? 0 : sum;
    }
}

row row_at(const fa_problem &p, uint64_t index)
{
    const uint32_t i = (uint32_t)(index % p.q_len);
    const int64_t h = (int64_t)(index / p.q_len % p.heads),
                  n = (int64_t)(index / p.q_len / p.heads);
    const int64_t kv = h / (p.heads / p.kv_heads);

    return {n * p.q.batch + h * p.q.head + i * p.q.row, n * p.k.batch + kv * p.k.head,
            n * p.v.batch + kv * p.v.head, mask_visible_keys(&p, i)};
}

/* Of some rows of the list: what b.rows and b.groups are to hold. */
struct lists {
    row *rows;
    group *groups;
    unsigned row_count, group_count;
};

/* Groups are of neighbours in the list that read the same keys and values. */
void append(struct lists *lists, const row &now)
{
    const unsigned i = lists->row_count++, last = lists->group_count - 1;

    lists->rows[i] = now;
    if (i > 0 && lists->groups[last].count < GROUP && lists->rows[i - 1].k == now.k &&
        lists->rows[i - 1].v == now.v) {
        lists->groups[last].count++;
        lists->groups[last].visible = std::max(lists->groups[last].visible, now.visible);
    } else {
        lists->groups[lists->group_count++] = {i, 1, now.visible};
    }
}

cudaError_t run(const batch &b, const struct lists &lists, double *o, double *lse)
{
    const unsigned rows = lists.row_count, groups = lists.group_count;

    cudaMemcpy((void *)b.rows, lists.rows, rows * sizeof(row), cudaMemcpyHostToDevice);
    cudaMemcpy((void *)b.groups, lists.groups, groups * sizeof(group), cudaMemcpyHostToDevice);
    if (b.tiles)
        score<<<groups * b.tiles, THREADS>>>(b);
    normalise<<<rows, THREADS>>>(b);
    if (b.chunks)
        weigh<<<groups * b.chunks, THREADS>>>(b);
    add<<<rows, THREADS>>>(b);
    cudaMemcpy(o, b.o, rows * sizeof(double) * b.head_dim, cudaMemcpyDeviceToHost);
    if (lse)
        cudaMemcpy(lse, b.lse, rows * sizeof(double), cudaMemcpyDeviceToHost);
    return cudaGetLastError();
}

} // namespace

cudaError_t oracle_rows(const fa_problem *problem, const fa_tensors *tensors, const uint64_t *list,
                        uint64_t count, double *o, double *lse)
{
    const size_t width = problem->head_dim, keys = problem->kv_len;
    const size_t most =
        std::min((size_t)count, std::max((size_t)1, std::min(SCORES_MAX / (keys + 1), ROWS_MAX)));
    const size_t chunks = (keys + CHUNK - 1) / CHUNK;
    double *numbers = nullptr;
    char *memory = nullptr;
    struct lists lists = {(row *)malloc(most * sizeof(row)), (group *)malloc(most * sizeof(group))};
    cudaError_t error = cudaErrorMemoryAllocation;

    if (count == 0)
        error = cudaSuccess;
    else if (lists.rows && lists.groups)
        error = cudaMalloc(&numbers, most * (keys + chunks * width + width + 1) * sizeof(double));
    if (error == cudaSuccess)
        error = cudaMalloc(&memory, most * (sizeof(row) + sizeof(group)));
    const batch b = {
        .q = (const float *)tensors->q,
        .k = (const float *)tensors->k,
        .v = (const float *)tensors->v,
        .k_row = problem->k.row,
        .v_row = problem->v.row,
        .scale = problem->scale,
        .kv_len = problem->kv_len,
        .head_dim = problem->head_dim,
        .tiles = (unsigned)((keys + THREADS - 1) / THREADS),
        .chunks = (unsigned)chunks,
        .rows = (const row *)memory,
        .groups = (const group *)(memory + most * sizeof(row)),
        .scores = numbers,
        .parts = numbers + most * keys,
        .o = numbers + most * (keys + chunks * width),
        .lse = numbers + most * (keys + chunks * width + width),
    };
    for (uint64_t done = 0; error == cudaSuccess && done < count; done += most) {
        lists.row_count = lists.group_count = 0;
        for (uint64_t i = done; i < std::min(count, done + most); i++)
            append(&lists, row_at(*problem, list ? list[i] : i));
        error = run(b, lists, o + done * width, lse ? lse + done : nullptr);
    }
    cudaFree(numbers);
    cudaFree(memory);
    free(lists.rows);
    free(lists.groups);
    return error;
}
