#include "client/cli/random.h"

#include <math.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15) /* SplitMix64's increment: 2^64 / the golden ratio */

/* SplitMix64's output function (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Over (0, 1]: 53 bits, never 0, so that its logarithm is finite. */
static double unit(uint64_t bits)
{
    return (double)((bits >> 11) + 1) * 0x1p-53;
}

void cli_random_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t count)
{
    /* Two rounds keep neighbouring seeds and streams from sharing a sequence at an offset. */
    uint64_t start = mix(mix(seed + GOLDEN) ^ (stream * GOLDEN));

    for (size_t i = 0; i < count; i += 2) {
        uint64_t index = first + i;
        double radius = sqrt(-2 * log(unit(mix(start + (index + 1) * GOLDEN))));
        double angle = 2 * M_PI * unit(mix(start + (index + 2) * GOLDEN));

        out[i] = (float)(radius * cos(angle));
        if (i + 1 < count)
            out[i + 1] = (float)(radius * sin(angle));
    }
}
