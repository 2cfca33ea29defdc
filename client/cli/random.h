/* random.h: normally distributed input that a seed decides. */
#ifndef CLI_RANDOM_H
#define CLI_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Values come in pairs: fills out with elements [first, first + count) of the stream's N(0, 1)
 * sequence; first must be even. Each element follows from (seed, stream, index) alone, so any split
 * of a tensor over threads gives the same. SplitMix64 and Box-Muller in double: the integers are
 * the same on every machine, and so are the floats but for the last place of the C library's log
 * and cos, which hardly ever survives the rounding to float. */
void cli_random_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t count);

#endif
