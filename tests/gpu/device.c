#include "tests/gpu/device.h"

#include "tests/gpu/data.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/oracle.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdlib.h>

static float *allocate(struct device *device, int index, struct fa_extents extents,
                       struct fa_strides strides, size_t shift)
{
    uint64_t span;

    ck_assert(fa_span(extents, strides, &span));
    device->memory[index] = gpu_alloc((span + shift) * sizeof(float));
    return (float *)device->memory[index] + shift;
}

void device_init(struct device *device, const struct fa_problem *problem, struct attend_data data,
                 uint64_t seed, size_t shift)
{
    const struct fa_extents q = fa_q_extents(problem), kv = fa_kv_extents(problem);
    const uint64_t apart = (uint64_t)1 << 40; /* seeds of different tensors never meet */
    float *first[5];

    first[0] = allocate(device, 0, q, problem->q, shift);
    first[1] = allocate(device, 1, kv, problem->k, shift);
    first[2] = allocate(device, 2, kv, problem->v, shift);
    first[3] = allocate(device, 3, q, problem->o, shift);
    first[4] = allocate(device, 4, fa_lse_extents(problem), problem->lse, shift);
    seed = (seed + 1) * 4 * apart;
    GPU(data_fill(first[0], q, problem->q, seed, 0, data.q_spread));
    GPU(data_fill(first[1], kv, problem->k, seed + apart, 0, 1));
    GPU(data_fill(first[2], kv, problem->v, seed + 2 * apart, data.v_mean, data.v_spread));
    device->problem = *problem;
    device->tensors = (struct fa_tensors){first[0], first[1], first[2], first[3], first[4]};
}

void device_release(struct device *device)
{
    for (int i = 0; i < 5; i++)
        gpu_free(device->memory[i]);
}

void device_poison(const struct device *device)
{
    const struct fa_problem *problem = &device->problem;

    GPU(data_fill(device->tensors.o, fa_q_extents(problem), problem->o, 0, NAN, 0));
    if (device->tensors.lse)
        GPU(data_fill(device->tensors.lse, fa_lse_extents(problem), problem->lse, 0, NAN, 0));
}

void *device_state(const struct fa_problem *problem, const struct fa_kernel *kernel, uint32_t count)
{
    const size_t bytes = count * kernel->state(problem);
    void *state = gpu_alloc(bytes);

    GPU(cudaMemset(state, 0, bytes));
    GPU(cudaDeviceSynchronize());
    return state;
}

void device_run_range(const struct device *devices, uint32_t count, const struct fa_kernel *kernel,
                      struct fa_range range, void *state)
{
    struct fa_tensors *tensors = malloc(count * sizeof *tensors);
    struct fa_launch launch = {
        .problem = &devices->problem,
        .tensors = tensors,
        .problem_count = count,
        .range = range,
        .state = state,
    };

    ck_assert_ptr_nonnull(tensors);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = devices[i].tensors;
    ck_assert_int_eq(gpu_run(kernel, launch), FA_OK);
    free(tensors);
}

void device_run(const struct device *device, const struct fa_kernel *kernel)
{
    const struct fa_range all = {0, kernel->units(&device->problem)};
    void *state = device_state(&device->problem, kernel, 1);

    device_poison(device);
    device_run_range(device, 1, kernel, all, state);
    gpu_free(state);
}

/* --- Rows ------------------------------------------------------------------------------------ */

struct device_rows device_all(const struct fa_problem *problem)
{
    return (struct device_rows){NULL, (uint64_t)problem->batch * problem->heads * problem->q_len};
}

enum { SAMPLE = 64, EDGES = 20 };

/* Ascending, each once. Edges are multiples of 64 spread over the head; those of every second tile
 * are multiples of 128, too. */
static uint32_t sample_head(uint32_t q_len, uint32_t *rows)
{
    const uint32_t tiles = (q_len - 1) / 64; /* edges inside the head */
    uint32_t count = 0;

    if (q_len <= SAMPLE) {
        for (; count < q_len; count++)
            rows[count] = count;
        return count;
    }
    rows[count++] = 0;
    for (uint32_t i = 0, last = 0; i < EDGES; i++) {
        const uint32_t edge = 1 + (uint32_t)((uint64_t)i * (tiles - 1) / (EDGES - 1));
        if (edge == last)
            continue;
        last = edge;
        for (uint32_t row = 64 * edge - 1; row <= 64 * edge + 1 && row < q_len - 1; row++)
            rows[count++] = row;
    }
    rows[count++] = q_len - 1;
    return count;
}

struct device_rows device_sample(const struct fa_problem *problem)
{
    const uint64_t heads = (uint64_t)problem->batch * problem->heads;
    const uint64_t picked = heads < SAMPLE ? heads : SAMPLE;
    struct device_rows rows = {malloc(picked * SAMPLE * sizeof(uint64_t)), 0};
    uint32_t of_head[SAMPLE];
    const uint32_t count = sample_head(problem->q_len, of_head);

    ck_assert_ptr_nonnull(rows.index);
    for (uint64_t i = 0; i < picked; i++) {
        const uint64_t head = picked == 1 ? 0 : i * (heads - 1) / (picked - 1);
        for (uint32_t j = 0; j < count; j++)
            rows.index[rows.count++] = head * problem->q_len + of_head[j];
    }
    return rows;
}

struct device_outputs device_outputs(const struct device *device, struct device_rows rows)
{
    const struct fa_problem *problem = &device->problem;
    const size_t elements = rows.count * problem->head_dim;
    struct device_outputs outputs = {.o = malloc((elements + rows.count + 1) * sizeof(float))};

    ck_assert_ptr_nonnull(outputs.o);
    outputs.lse = outputs.o + elements;
    GPU(data_rows(device->tensors.o, fa_q_extents(problem), problem->o, rows.index, rows.count,
                  outputs.o));
    GPU(data_rows(device->tensors.lse, fa_lse_extents(problem), problem->lse, rows.index,
                  rows.count, outputs.lse));
    return outputs;
}

struct device_reference device_reference(const struct device *device, struct device_rows rows)
{
    const size_t elements = rows.count * device->problem.head_dim;
    struct device_reference reference = {.o = malloc((elements + rows.count + 1) * sizeof(double))};

    ck_assert_ptr_nonnull(reference.o);
    reference.lse = reference.o + elements;
    GPU(oracle_rows(&device->problem, &device->tensors, rows.index, rows.count, reference.o,
                    reference.lse));
    return reference;
}

uint64_t device_nans(const struct device *device)
{
    const struct fa_problem *problem = &device->problem;
    uint64_t count = 0;

    GPU(data_nans(device->tensors.o, fa_q_extents(problem), problem->o, &count));
    GPU(data_nans(device->tensors.lse, fa_lse_extents(problem), problem->lse, &count));
    return count;
}
