/* deviation.c: how far a float result is from the oracle's. */
#include "kernels/fa_attention.h"

#include <math.h>

/* |result - reference|, with the two rules that make it a test: what the reference has of inf or
 * NaN the result must have too, and a result that is NaN or inf alone is infinitely far away. */
static double distance(float result, double reference)
{
    if (isnan(reference))
        return isnan(result) ? 0 : INFINITY;
    if (isinf(reference))
        return (double)result == reference ? 0 : INFINITY;
    return isfinite(result) ? fabs((double)result - reference) : INFINITY;
}

static void add_row(struct fa_deviation *deviation, const float *o, const double *reference,
                    uint32_t head_dim)
{
    double difference_square = 0, reference_square = 0;

    for (uint32_t d = 0; d < head_dim; d++) {
        double difference = distance(o[d], reference[d]);
        difference_square += difference * difference;
        if (isfinite(reference[d]))
            reference_square += reference[d] * reference[d];
    }
    deviation->difference_square += difference_square;
    deviation->reference_square += reference_square;
    if (difference_square > 0) /* over a row of zeroes this gives inf */
        deviation->max_row = fmax(deviation->max_row, sqrt(difference_square / reference_square));
}

void fa_deviation_add(struct fa_deviation *deviation, const float *o, int64_t o_stride,
                      const float *lse, int64_t lse_stride, const double *o_reference,
                      const double *lse_reference, uint64_t count, uint32_t head_dim)
{
    for (uint64_t i = 0; i < count; i++) {
        add_row(deviation, o + (int64_t)i * o_stride, o_reference + i * head_dim, head_dim);
        if (lse) {
            double reference = lse_reference[i];
            double size = isfinite(reference) ? fmax(1, fabs(reference)) : 1;
            double error = distance(lse[(int64_t)i * lse_stride], reference) / size;
            deviation->max_lse = fmax(deviation->max_lse, error);
        }
    }
}

double fa_deviation_l2(const struct fa_deviation *deviation)
{
    if (deviation->difference_square == 0)
        return 0;
    return sqrt(deviation->difference_square / deviation->reference_square);
}
