/* Accuracy of every kernel of the device where a CPU would take too long: real shapes, many keys,
 * heads and elements. Prints what was measured, a line for each kernel. */
#include "tests/gpu/device.h"
#include "tests/gpu/gpu.h"
#include "tests/helpers/place.h"
#include "tests/helpers/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NaN is not within any bound. */
static bool within(const struct fa_deviation *deviation, double l2_bound)
{
    return deviation->max_row <= 1e-5 && deviation->max_lse <= 1e-6 &&
           fa_deviation_l2(deviation) <= l2_bound;
}

static struct fa_deviation deviation_of(struct device_outputs outputs, uint64_t count,
                                        uint32_t head_dim, struct device_reference reference)
{
    struct fa_deviation deviation = {0};

    fa_deviation_add(&deviation, outputs.o, head_dim, outputs.lse, 1, reference.o, reference.lse,
                     count, head_dim);
    return deviation;
}

/* Runs a kernel over a problem; all elements must be written, and the rows be right. */
static void check_kernel(const struct device *device, const struct fa_kernel *kernel,
                         struct device_rows rows, struct device_reference reference, double bound)
{
    const struct fa_problem *p = &device->problem;
    struct fa_deviation deviation;
    struct device_outputs outputs;

    device_run(device, kernel);
    ck_assert_msg(device_nans(device) == 0, "%s leaves elements unwritten", kernel->name);
    outputs = device_outputs(device, rows);
    deviation = deviation_of(outputs, rows.count, p->head_dim, reference);
    free(outputs.o);
    printf("(%u,%u/%u,%u,%u,%u) %s %s: L2 %.2e, row %.2e, LSE %.2e\n", p->batch, p->heads,
           p->kv_heads, p->q_len, p->kv_len, p->head_dim, fa_mask_name(p->mask), kernel->name,
           fa_deviation_l2(&deviation), deviation.max_row, deviation.max_lse);
    ck_assert_msg(within(&deviation, bound), "%s: L2 above %g, or a row", kernel->name, bound);
}

enum rows { ALL_ROWS, SOME_ROWS };

/* v1 has a block for each head, and so few of them where heads are few. */
static bool takes_longer(const struct fa_kernel *kernel, const struct fa_problem *problem,
                         double seconds)
{
    const uint64_t flops = fa_problem_flops(problem);

    return fa_kernel_seconds(kernel, problem) > seconds ||
           (kernel->in_order && flops / ((uint64_t)problem->batch * problem->heads) > 10000000000);
}

/* Every kernel that covers the problem and takes `seconds` at most, about. l2_bound 0 is the
 * place's. */
static void check(const struct fa_problem *problem, struct attend_data data, enum rows which,
                  double seconds, double l2_bound)
{
    struct device_rows rows = which == ALL_ROWS ? device_all(problem) : device_sample(problem);
    struct device_reference reference;
    struct device device;
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);
    int checked = 0;

    device_init(&device, problem, data, 1, 0);
    reference = device_reference(&device, rows);
    for (size_t i = 0; i < count; i++) {
        const double bound = l2_bound > 0 ? l2_bound : place_l2_bound(kernels[i], problem->kv_len);
        if (!attend_covers(kernels[i], problem))
            continue;
        if (takes_longer(kernels[i], problem, seconds)) {
            printf("left out: %s would take long\n", kernels[i]->name);
            continue;
        }
        check_kernel(&device, kernels[i], rows, reference, bound);
        checked++;
    }
    ck_assert_int_gt(checked, 0);
    free(reference.o);
    free(rows.index);
    device_release(&device);
}

/* --- Shapes ---------------------------------------------------------------------------------- */

START_TEST(the_primary_shape)
{
    const uint32_t head_dim = _i / 3 == 0 ? 64 : 128;
    struct fa_problem problem =
        attend_problem(4, 12, 12, 2048, 2048, head_dim, (enum fa_mask)(_i % 3));

    check(&problem, ATTEND_NORMAL, ALL_ROWS, INFINITY, 0);
}
END_TEST

/* Few rows, for which the keys may be spread over blocks, and many; values about 0, whose mean is
 * small beside them, and about 1. */
START_TEST(many_keys)
{
    const uint32_t q_len = _i / 2 == 0 ? 64 : 2049;
    const struct attend_data data = {.q_spread = 1, .v_mean = (float)(_i % 2), .v_spread = 1};
    struct fa_problem problem = attend_problem(1, 4, 2, q_len, 65536, 64, FA_MASK_NONE);

    check(&problem, data, SOME_ROWS, INFINITY, 0);
    problem = attend_problem(1, 2, 1, q_len, 65536, 128, FA_MASK_CAUSAL_BOTTOM_RIGHT);
    check(&problem, data, SOME_ROWS, INFINITY, 0);
}
END_TEST

/* More heads than a grid has in its second and third dimension. Rows of so few keys have no bound
 * in L2 but that of a row. */
START_TEST(many_heads)
{
    static const uint32_t shapes[][3] = {{1, 80000, 64}, {80000, 1, 64}, {40000, 2, 128}};
    struct fa_problem problem = attend_problem(shapes[_i][0], shapes[_i][1], shapes[_i][1], 3, 5,
                                               shapes[_i][2], FA_MASK_CAUSAL_BOTTOM_RIGHT);

    /* Half of the spread, for the LSE of so few keys is a score, and the rows are many. */
    check(&problem, (struct attend_data){0.5f, 1, 1}, ALL_ROWS, INFINITY, 1e-5);
}
END_TEST

/* Packed tensors of more than 2^31 elements: q and o, then k and v. */
START_TEST(elements_past_two_to_the_31)
{
    const uint32_t lengths[2][2] = {{32832, 4}, {2, 32832}};
    struct fa_problem problem =
        attend_problem(1, 1024, 1024, lengths[_i][0], lengths[_i][1], 64, FA_MASK_NONE);

    ck_assert_uint_gt((uint64_t)1024 * 32832 * 64, (uint64_t)1 << 31);
    check(&problem, (struct attend_data){1, 1, 1}, SOME_ROWS, INFINITY, 1e-5);
}
END_TEST

/* More than 2e12 FLOP, for kernels that do it in two seconds. */
START_TEST(much_work)
{
    struct fa_problem problem = attend_problem(1, 8, 8, 32768, 32768, 64, FA_MASK_NONE);

    ck_assert_uint_gt(fa_problem_flops(&problem), 2000000000000);
    check(&problem, ATTEND_NORMAL, SOME_ROWS, 2, 0);
}
END_TEST

/* --- Whether any of this would be seen ------------------------------------------------------- */

START_TEST(planted_errors_are_seen)
{
    const struct fa_problem problem = attend_problem(1, 2, 2, 200, 300, 64, FA_MASK_NONE);
    const struct device_rows rows = device_all(&problem);
    struct device device;
    struct device_reference reference;
    size_t count;
    const struct fa_kernel *const *kernels = place_kernels(&count);

    device_init(&device, &problem, ATTEND_NORMAL, 1, 0);
    reference = device_reference(&device, rows);
    for (size_t i = 0; i < count; i++) {
        const size_t row = 333;
        struct device_outputs outputs;
        struct fa_deviation deviation;
        double norm = 0;
        float kept;

        if (!attend_covers(kernels[i], &problem))
            continue;
        device_run(&device, kernels[i]);
        outputs = device_outputs(&device, rows);
        deviation = deviation_of(outputs, rows.count, 64, reference);
        ck_assert(within(&deviation, 1e-6));
        for (size_t d = 0; d < 64; d++)
            norm += reference.o[row * 64 + d] * reference.o[row * 64 + d];
        kept = outputs.o[row * 64 + 7];
        outputs.o[row * 64 + 7] += (float)(1e-4 * sqrt(norm));
        deviation = deviation_of(outputs, rows.count, 64, reference);
        ck_assert(!within(&deviation, 1e-3));
        outputs.o[row * 64 + 7] = NAN;
        deviation = deviation_of(outputs, rows.count, 64, reference);
        ck_assert(!within(&deviation, INFINITY));
        outputs.o[row * 64 + 7] = kept;
        outputs.lse[row] += 1e-4f;
        deviation = deviation_of(outputs, rows.count, 64, reference);
        ck_assert(!within(&deviation, 1e-6));
        free(outputs.o);
    }
    free(reference.o);
    device_release(&device);
}
END_TEST

START_TEST(unwritten_elements_are_seen)
{
    const struct fa_problem problem = attend_problem(2, 3, 3, 100, 4, 64, FA_MASK_NONE);
    struct device device;

    device_init(&device, &problem, ATTEND_NORMAL, 1, 1);
    device_poison(&device);
    ck_assert_uint_eq(device_nans(&device), (uint64_t)6 * 100 * 65);
    device_release(&device);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("large");
    TCase *tests = tcase_create("large"), *seen = tcase_create("planted");

    suite_add_tcase(suite, tests);
    tcase_add_loop_test(tests, the_primary_shape, 0, 6);
    tcase_add_loop_test(tests, many_keys, 0, 4);
    tcase_add_loop_test(tests, many_heads, 0, 3);
    tcase_add_loop_test(tests, elements_past_two_to_the_31, 0, 2);
    tcase_add_test(tests, much_work);
    suite_add_tcase(suite, seen);
    tcase_add_test(seen, planted_errors_are_seen);
    tcase_add_test(seen, unwritten_elements_are_seen);
    return suite;
}
