/* Accuracy over many keys that contribute equally. Each addition to a sum then rounds to the same
 * side, so that a sum's error grows with the number of its additions and does not average out, as
 * that of normally distributed data does. */
#include "tests/gpu/data.h"
#include "tests/gpu/device.h"
#include "tests/gpu/gpu.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const uint32_t kv_lengths[] = {8192, 32768, 65536, 262144};
static const uint32_t q_lengths[] = {4, 16384}; /* few and many: their keys are cut otherwise */
enum { KV_LENGTHS = 4, Q_LENGTHS = 2, CASES = KV_LENGTHS * Q_LENGTHS * ATTEND_HEAD_DIMS };

/* v1's error grows with its steps over the keys. */
#define IN_ORDER_KEYS 8192u

/* v is the same in all keys, another number in [1, 2) in each column: which way, and how far, a sum
 * rounds depends on it. */
static float value_of(uint32_t column, uint32_t head_dim)
{
    static const float bad[] = {1.1f, 1.3f, 1.7f, 1.03f, 1.12f, 1.97f};
    const uint32_t count = sizeof bad / sizeof bad[0];

    return column < count ? bad[column] : 1 + ((float)column + 0.3f) / (float)head_dim;
}

static void fill_values(const struct device *device)
{
    const struct fa_problem *problem = &device->problem;
    struct fa_extents column = fa_kv_extents(problem);

    column.width = 1;
    for (uint32_t d = 0; d < problem->head_dim; d++)
        GPU(data_fill((float *)device->tensors.v + d, column, problem->v, 0,
                      value_of(d, problem->head_dim), 0));
}

/* The score of one key; q must hold ones, and k zeroes elsewhere. */
static void set_score(const struct device *device, uint32_t key, double score)
{
    const struct fa_problem *problem = &device->problem;
    struct fa_extents row = fa_kv_extents(problem);

    row.rows = 1;
    GPU(data_fill((float *)device->tensors.k + key * problem->k.row, row, problem->k, 0,
                  (float)(score / problem->scale / problem->head_dim), 0));
}

/* The largest relative error of any element: what a row of its number alone would have. */
static double largest_error(const float *o, const double *reference, uint64_t count)
{
    double largest = 0;

    for (uint64_t i = 0; i < count; i++) {
        const double error = fabs(o[i] - reference[i]) / reference[i];
        if (!(error <= largest))
            largest = isnan(error) ? INFINITY : error;
    }
    return largest;
}

static void check_kernel(const struct device *device, const struct fa_kernel *kernel,
                         struct device_rows rows, struct device_reference reference,
                         const char *what)
{
    const struct fa_problem *p = &device->problem;
    struct fa_deviation deviation = {0};
    struct device_outputs outputs;
    double error;

    device_run(device, kernel);
    ck_assert_msg(device_nans(device) == 0, "%s leaves elements unwritten", kernel->name);
    outputs = device_outputs(device, rows);
    error = largest_error(outputs.o, reference.o, rows.count * p->head_dim);
    fa_deviation_add(&deviation, outputs.o, p->head_dim, outputs.lse, 1, reference.o, reference.lse,
                     rows.count, p->head_dim);
    free(outputs.o);
    printf("(%u,%u/%u,%u,%u,%u) %s %s: element %.2e, LSE %.2e\n", p->batch, p->heads, p->kv_heads,
           p->q_len, p->kv_len, p->head_dim, what, kernel->name, error, deviation.max_lse);
    ck_assert_msg(error <= 1e-5 && deviation.max_lse <= 1e-6,
                  "%s over %u keys, %u rows, %s: element %.2e, LSE %.2e", kernel->name, p->kv_len,
                  p->q_len, what, error, deviation.max_lse);
}

static void check(const struct device *device, const char *what)
{
    const struct device_rows rows = device_sample(&device->problem);
    const struct device_reference reference = device_reference(device, rows);
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    for (size_t i = 0; i < count; i++)
        if (attend_covers(kernels[i], &device->problem) &&
            (!kernels[i]->in_order || device->problem.kv_len <= IN_ORDER_KEYS))
            check_kernel(device, kernels[i], rows, reference, what);
    free(reference.o);
    free(rows.index);
}

static struct fa_problem problem_of(int index)
{
    const uint32_t head_dim = attend_head_dim(index % ATTEND_HEAD_DIMS, 40);
    const uint32_t q_len = q_lengths[index / ATTEND_HEAD_DIMS % Q_LENGTHS];
    const uint32_t kv_len = kv_lengths[index / ATTEND_HEAD_DIMS / Q_LENGTHS];

    return attend_problem(1, 1, 1, q_len, kv_len, head_dim, FA_MASK_NONE);
}

START_TEST(equal_weights)
{
    struct fa_problem problem = problem_of(_i);
    struct device device;

    problem.scale = 0;
    device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
    fill_values(&device);
    check(&device, "equal weights");
    device_release(&device);
}
END_TEST

/* The others' weights are equal, and not powers of 2. */
START_TEST(one_key_stands_out)
{
    const struct fa_problem problem = problem_of(_i);
    const uint32_t keys[] = {problem.kv_len / 2 + 7, 0, problem.kv_len - 1};
    static const char *const names[] = {"a key above", "the first key above", "the last key above"};
    const int places = problem.q_len < 16384 ? 3 : 1; /* where a pass is short */
    struct device device;

    device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
    fill_values(&device);
    GPU(data_fill((void *)device.tensors.q, fa_q_extents(&problem), problem.q, 0, 1, 0));
    GPU(data_fill((void *)device.tensors.k, fa_kv_extents(&problem), problem.k, 0, 0, 0));
    for (int i = 0; i < places; i++) {
        set_score(&device, keys[i], 8);
        check(&device, names[i]);
        set_score(&device, keys[i], 0);
    }
    device_release(&device);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("bias");
    TCase *tests = tcase_create("bias");

    suite_add_tcase(suite, tests);
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, equal_weights, 0, CASES);
    tcase_add_loop_test(tests, one_key_stands_out, 0, CASES);
    return suite;
}
