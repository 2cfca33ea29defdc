/* cuda_ffma.h: what a GPU's float32 arithmetic does at most: a loop of nothing but fused
 * multiply-adds, run by this process through the CUDA driver, which is loaded at run time. Linked
 * into fa-cli, for its bench, and not into libfa. */
#ifndef FA_CUDA_FFMA_H
#define FA_CUDA_FFMA_H

#include "proto/fa_status.h"

#include <stdbool.h>
#include <stdint.h>

struct ffma;

/* Readies the loop on the GPU with this UUID. NULL: *error says why it cannot be run. To be ended
 * by ffma_end. */
struct ffma *ffma_begin(const uint8_t uuid[16], struct fa_error *error);
void ffma_end(struct ffma *ffma); /* NULL is legal */

/* Runs it once, for about a millisecond, and waits. FLOP a second (two for each multiply-add), in
 * 10^12; NaN: *error says why. */
double ffma_tflops(struct ffma *ffma, struct fa_error *error);

#endif
