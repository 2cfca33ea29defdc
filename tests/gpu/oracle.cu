/* oracle.cu: the definition of attention in double precision, as kernels/cpu/reference.c has it: all
 * scores of a row in memory, their maximum, the exponentials, the weighted sum. */
#include "tests/gpu/oracle.h"

#include "kernels/mask.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

constexpr unsigned GROUP = 8;     /* rows of one head that share loads */
constexpr unsigned THREADS = 256; /* of every block */
constexpr unsigned CHUNK = 4096;  /* keys that one block sums values of */
constexpr size_t SCORES_MAX = (size_t)1 << 27;

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

/* A block: a row's outputs. */
__global__ void add(batch b)
{
    for (unsigned d = threadIdx.x; d < b.head_dim; d += THREADS) {
        double sum = 0;
        for (unsigned chunk = 0; chunk < b.chunks; chunk++)
            sum += b.parts[((size_t)blockIdx.x * b.chunks + chunk) * b.head_dim + d];
        b.o[(size_t)blockIdx.x * b.head_dim + d] = sum;
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

/* Neighbours in the list that read the same keys and values. */
std::vector<group> group_rows(const std::vector<row> &rows)
{
    std::vector<group> groups;

    for (uint32_t i = 0; i < rows.size(); i++) {
        const row &now = rows[i];
        if (groups.empty() || groups.back().count == GROUP || rows[i - 1].k != now.k ||
            rows[i - 1].v != now.v)
            groups.push_back({i, 0, 0});
        groups.back().count++;
        groups.back().visible = std::max(groups.back().visible, now.visible);
    }
    return groups;
}

cudaError_t run(batch b, const std::vector<row> &rows, const std::vector<group> &groups, double *o,
                double *lse)
{
    const unsigned count = (unsigned)rows.size(), group_count = (unsigned)groups.size();

    cudaMemcpy((void *)b.rows, rows.data(), count * sizeof(row), cudaMemcpyHostToDevice);
    cudaMemcpy((void *)b.groups, groups.data(), group_count * sizeof(group),
               cudaMemcpyHostToDevice);
    if (b.tiles)
        score<<<group_count * b.tiles, THREADS>>>(b);
    normalise<<<count, THREADS>>>(b);
    if (b.chunks)
        weigh<<<group_count * b.chunks, THREADS>>>(b);
    add<<<count, THREADS>>>(b);
    cudaMemcpy(o, b.o, count * sizeof(double) * b.head_dim, cudaMemcpyDeviceToHost);
    if (lse)
        cudaMemcpy(lse, b.lse, count * sizeof(double), cudaMemcpyDeviceToHost);
    return cudaGetLastError();
}

} // namespace

cudaError_t oracle_rows(const fa_problem *problem, const fa_tensors *tensors, const uint64_t *list,
                        uint64_t count, double *o, double *lse)
{
    const size_t most = std::min<size_t>(
        {(size_t)count, std::max<size_t>(1, SCORES_MAX / ((size_t)problem->kv_len + 1)), 1 << 20});
    const size_t width = problem->head_dim;
    batch b = {};
    double *numbers = nullptr;
    char *lists = nullptr;
    cudaError_t error;

    if (count == 0)
        return cudaSuccess;
    b.q = (const float *)tensors->q;
    b.k = (const float *)tensors->k;
    b.v = (const float *)tensors->v;
    b.k_row = problem->k.row;
    b.v_row = problem->v.row;
    b.scale = problem->scale;
    b.kv_len = problem->kv_len;
    b.head_dim = problem->head_dim;
    b.tiles = (problem->kv_len + THREADS - 1) / THREADS;
    b.chunks = (problem->kv_len + CHUNK - 1) / CHUNK;
    error = cudaMalloc(&numbers, most * (b.kv_len + b.chunks * width + width + 1) * sizeof(double));
    if (error == cudaSuccess)
        error = cudaMalloc(&lists, most * (sizeof(row) + sizeof(group)));
    b.scores = numbers;
    b.parts = b.scores + most * b.kv_len;
    b.o = b.parts + most * b.chunks * width;
    b.lse = b.o + most * width;
    b.rows = (const row *)lists;
    b.groups = (const group *)(b.rows + most);
    for (uint64_t done = 0; error == cudaSuccess && done < count; done += most) {
        std::vector<row> rows;
        for (uint64_t i = done; i < std::min<uint64_t>(count, done + most); i++)
            rows.push_back(row_at(*problem, list ? list[i] : i));
        error = run(b, rows, group_rows(rows), o + done * width, lse ? lse + done : nullptr);
    }
    cudaFree(numbers);
    cudaFree(lists);
    return error;
}
