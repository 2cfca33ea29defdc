/* What a launch on the device may hold without changing a bit: several problems, wherever they lie;
 * other sequences; half of the work on another stream. */
#include "tests/gpu/data.h"
#include "tests/gpu/device.h"
#include "tests/gpu/gpu.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The loop index of these tests runs over kernels and head_dims. */
static const struct fa_kernel *kernel_of(int index)
{
    size_t count;
    return place_kernels(&count)[index / ATTEND_HEAD_DIMS];
}

/* Fails unless all outputs are bit by bit the expected ones. */
static void expect_bits(const struct device *device, struct device_outputs expected,
                        const char *when)
{
    const struct device_rows rows = device_all(&device->problem);
    const size_t bytes = rows.count * (device->problem.head_dim + 1) * sizeof(float);
    struct device_outputs outputs = device_outputs(device, rows);

    if (memcmp(outputs.o, expected.o, bytes) != 0)
        ck_abort_msg("other bits: %s", when);
    free(outputs.o);
}

static struct device_outputs run_alone(const struct device *device, const struct fa_kernel *kernel)
{
    device_run(device, kernel);
    return device_outputs(device, device_all(&device->problem));
}

/* --- Several problems ------------------------------------------------------------------------ */

enum { PROBLEMS_MAX = 150 };

/* All in one launch, in an order that is not that of their memory, a third of them aligned to one
 * element only and a third to two. */
static void check_several(const struct fa_problem *problem, const struct fa_kernel *kernel,
                          uint32_t count)
{
    struct device made[PROBLEMS_MAX], ordered[PROBLEMS_MAX];
    struct device_outputs expected[PROBLEMS_MAX];
    const struct fa_range all = {0, count * kernel->units(problem)};
    void *state = device_state(problem, kernel, count);

    for (uint32_t i = 0; i < count; i++)
        device_init(&made[i], problem, ATTEND_NORMAL, i, i % 3);
    for (uint32_t i = 0; i < count; i++) {
        ordered[i] = made[i * 67 % count]; /* a prime that divides no count */
        expected[i] = run_alone(&ordered[i], kernel);
        ck_assert(i == 0 || expected[i].o[0] != expected[0].o[0]);
    }
    for (uint32_t i = 0; i < count; i++)
        device_poison(&ordered[i]);
    device_run_range(ordered, count, kernel, all, state);
    for (uint32_t i = 0; i < count; i++) {
        expect_bits(&ordered[i], expected[i], "in a launch of several");
        free(expected[i].o);
    }
    for (uint32_t i = 0; i < count; i++)
        device_release(&made[i]);
    gpu_free(state);
}

START_TEST(several_problems_in_a_launch)
{
    static const uint32_t counts[] = {1, 2, 5, 64, 65, 150};
    const struct fa_kernel *kernel = kernel_of(_i);
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 40);
    struct fa_problem rows = attend_problem(2, 2, 1, 70, 90, head_dim, FA_MASK_CAUSAL_BOTTOM_RIGHT);
    struct fa_problem keys = attend_problem(1, 2, 1, 9, 9000, head_dim, FA_MASK_NONE);
    struct fa_problem few = attend_problem(1, 2, 1, 3, 9000, head_dim, FA_MASK_NONE);

    ck_assert(attend_covers(kernel, &rows) && attend_covers(kernel, &keys));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_several(&rows, kernel, counts[i]);
        check_several(&keys, kernel, counts[i]);
        check_several(&few, kernel, counts[i]);
    }
}
END_TEST

/* --- One problem ----------------------------------------------------------------------------- */

enum { SEQUENCES = 32, RUNS = 30 };

/* Outputs of a sequence within those of the batch. */
static struct device_outputs sequence_of(struct device_outputs batch,
                                         const struct fa_problem *problem, uint32_t sequence)
{
    const size_t rows = (size_t)problem->heads * problem->q_len;

    return (struct device_outputs){.o = batch.o + sequence * rows * problem->head_dim,
                                   .lse = batch.lse + sequence * rows};
}

/* Runs the sequence by itself, where it lies, and expects the bits that it has in the batch. */
static void expect_alone(const struct device *device, const struct fa_kernel *kernel,
                         struct device_outputs batch, uint32_t sequence)
{
    const struct fa_problem *problem = &device->problem;
    const struct fa_tensors *whole = &device->tensors;
    const struct device_outputs within = sequence_of(batch, problem, sequence);
    const size_t rows = (size_t)problem->heads * problem->q_len;
    struct device_outputs outputs;
    struct device alone = *device;

    alone.problem.batch = 1;
    alone.tensors = (struct fa_tensors){
        attend_at(whole->q, problem->q, sequence, 0, 0),
        attend_at(whole->k, problem->k, sequence, 0, 0),
        attend_at(whole->v, problem->v, sequence, 0, 0),
        attend_at(whole->o, problem->o, sequence, 0, 0),
        attend_at(whole->lse, problem->lse, sequence, 0, 0),
    };
    outputs = run_alone(&alone, kernel);
    ck_assert(memcmp(outputs.o, within.o, rows * problem->head_dim * sizeof(float)) == 0);
    ck_assert(memcmp(outputs.lse, within.lse, rows * sizeof(float)) == 0);
    free(outputs.o);
}

/* The batch has tiles enough for v4's large ones, a sequence has not. */
START_TEST(alone_and_in_a_batch)
{
    const struct fa_kernel *kernel = kernel_of(_i);
    struct fa_problem problem = attend_problem(
        SEQUENCES, 8, 4, 200, 260, attend_head_dim(_i % ATTEND_HEAD_DIMS, 40), FA_MASK_NONE);
    struct device_outputs expected;
    struct device device;

    ck_assert(attend_covers(kernel, &problem));
    device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
    expected = run_alone(&device, kernel);
    for (int run = 1; run < RUNS; run++) {
        device_run(&device, kernel);
        expect_bits(&device, expected, "run again");
    }
    for (uint32_t sequence = 0; sequence < SEQUENCES; sequence += SEQUENCES - 1)
        expect_alone(&device, kernel, expected, sequence);
    free(expected.o);
    device_release(&device);
}
END_TEST

/* Units of v4 that one block begins and another ends (relay.cuh) have the bits that they have in
 * ranges, where none is cut. A unit is all of a head's keys, or a span of them, or all in two
 * chunks. */
START_TEST(units_that_two_blocks_share)
{
    enum { FEW = 100 };
    const struct fa_kernel *kernel = kernel_of(_i);
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 40);
    const struct fa_problem problems[] = {
        attend_problem(60, 10, 5, 9, 600, head_dim, FA_MASK_NONE),
        attend_problem(30, 4, 2, 9, 9000, head_dim, FA_MASK_NONE),
        attend_problem(1, 32, 2, 2400, 9000, head_dim, FA_MASK_NONE),
    };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        const struct fa_problem *problem = &problems[i];
        const uint64_t units = kernel->units(problem);
        struct device_outputs expected;
        struct device device;
        void *state = device_state(problem, kernel, 1);
        ck_assert(attend_covers(kernel, problem));
        ck_assert_uint_ge(units, 600);
        ck_assert_uint_gt(kernel->scratch(problem, units), 0);
        device_init(&device, problem, ATTEND_NORMAL, 1, 0);
        expected = run_alone(&device, kernel);
        device_poison(&device);
        for (uint64_t first = 0; first < units; first += FEW)
            device_run_range(&device, 1, kernel,
                             (struct fa_range){first, units - first < FEW ? units - first : FEW},
                             state);
        expect_bits(&device, expected, "in ranges");
        free(expected.o);
        device_release(&device);
        gpu_free(state);
    }
}
END_TEST

/* Sets one key's k and one of its v's elements, in all sequences. */
static void set_key(const struct device *device, uint32_t key, float k, uint32_t column, float v)
{
    const struct fa_problem *problem = &device->problem;
    struct fa_extents extents = fa_kv_extents(problem);

    extents.rows = 1;
    GPU(data_fill((float *)device->tensors.k + key * problem->k.row, extents, problem->k, 0, k, 0));
    extents.width = 1;
    GPU(data_fill((float *)device->tensors.v + key * problem->v.row + column, extents, problem->v,
                  0, v, 0));
}

/* How many tiles of keys a block passes over that a row does not see depends on the tile of rows
 * that the row is in, whose size v4 chooses by the number of heads. That must not show, not even in
 * the sign of a zero. In every 64 keys the third one's score is 2 (in base 2) above all before it,
 * so that the sums so far are divided by 4: the least number below 0, which the column of an odd 64
 * has there alone, becomes -0 in the next 64. */
START_TEST(signs_of_zeroes_alone_and_in_a_batch)
{
    enum { LENGTH = 4096, BATCH = 16, COLUMNS = LENGTH / 128 };
    const struct fa_kernel *kernel = kernel_of(_i);
    const uint32_t head_dim = attend_head_dim(_i % ATTEND_HEAD_DIMS, 40);
    const struct fa_problem problem =
        attend_problem(BATCH, 1, 1, LENGTH, LENGTH, head_dim, FA_MASK_CAUSAL_TOP_LEFT);
    struct fa_extents columns = fa_kv_extents(&problem);
    struct device_outputs expected;
    struct device device;

    ck_assert(attend_covers(kernel, &problem));
    device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
    columns.width = COLUMNS;
    GPU(data_fill((void *)device.tensors.q, fa_q_extents(&problem), problem.q, 0, 1, 0));
    GPU(data_fill((void *)device.tensors.k, fa_kv_extents(&problem), problem.k, 0, 0, 0));
    GPU(data_fill((void *)device.tensors.v, columns, problem.v, 0, 0, 0));
    for (uint32_t i = 0; i < LENGTH / 64; i++)
        set_key(&device, 64 * i + 2, (float)(2 * i * M_LN2 / problem.scale / head_dim), i / 2,
                i % 2 == 1 ? -0x1p-149f : 0);
    expected = run_alone(&device, kernel);
    ck_assert(expected.o[(size_t)(2 * 64 + 10) * head_dim] == 0);
    for (uint32_t sequence = 0; sequence < BATCH; sequence += BATCH - 1)
        expect_alone(&device, kernel, expected, sequence);
    free(expected.o);
    device_release(&device);
}
END_TEST

/* Of both lengths, so that one may be cut along the keys. */
static struct fa_problem shape(int index, int which)
{
    const uint32_t head_dim = attend_head_dim(index % ATTEND_HEAD_DIMS, 40);

    return which == 0 ? attend_problem(2, 6, 3, 515, 777, head_dim, FA_MASK_CAUSAL_BOTTOM_RIGHT)
                      : attend_problem(1, 4, 2, 5, 20000, head_dim, FA_MASK_NONE);
}

struct half {
    const struct device *device;
    const struct fa_kernel *kernel;
    struct fa_range range;
    void *state;
};

static void *run_half(void *argument)
{
    const struct half *half = argument;
    device_run_range(half->device, 1, half->kernel, half->range, half->state);
    return NULL;
}

/* Threads launch on streams of their own. */
START_TEST(halves_on_two_streams)
{
    const struct fa_kernel *kernel = kernel_of(_i);

    for (int which = 0; which < 2; which++) {
        const struct fa_problem problem = shape(_i, which);
        const uint64_t units = kernel->units(&problem);
        struct device_outputs expected;
        struct device device;
        ck_assert(attend_covers(kernel, &problem) && !kernel->in_order);
        device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
        expected = run_alone(&device, kernel);
        for (int run = 0; run < 10; run++) {
            void *state = device_state(&problem, kernel, 1);
            struct half halves[2] = {{&device, kernel, {0, units / 2}, state},
                                     {&device, kernel, {units / 2, units - units / 2}, state}};
            pthread_t threads[2];
            device_poison(&device);
            for (int i = 0; i < 2; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, run_half, &halves[i]), 0);
            for (int i = 0; i < 2; i++)
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
            expect_bits(&device, expected, "two streams");
            gpu_free(state);
        }
        free(expected.o);
        device_release(&device);
    }
}
END_TEST

static bool is_any(const struct fa_kernel *kernel)
{
    (void)kernel;
    return true;
}

static bool is_unordered(const struct fa_kernel *kernel)
{
    return !kernel->in_order;
}

static bool is_v4(const struct fa_kernel *kernel)
{
    return strncmp(kernel->name, "cuda-v4", 7) == 0;
}

/* Registers a test for such kernels as cover its head_dim. */
static void add(TCase *tests, const TTest *test, bool is_meant(const struct fa_kernel *kernel))
{
    size_t count;

    place_kernels(&count);
    for (int i = 0; i < (int)count * ATTEND_HEAD_DIMS; i++) {
        const struct fa_problem problem = shape(i, 0);
        if (place_covers(kernel_of(i), &problem) && is_meant(kernel_of(i)))
            tcase_add_loop_test(tests, test, i, i + 1);
    }
}

Suite *test_suite(void)
{
    Suite *suite = suite_create("launch");
    TCase *tests = tcase_create("launch");

    suite_add_tcase(suite, tests);
    add(tests, several_problems_in_a_launch, is_any);
    add(tests, alone_and_in_a_batch, is_any);
    add(tests, signs_of_zeroes_alone_and_in_a_batch, is_any);
    add(tests, units_that_two_blocks_share, is_v4);
    add(tests, halves_on_two_streams, is_unordered);
    return suite;
}
