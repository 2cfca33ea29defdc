/* span.h: the time during which at least one of several things ran. They are told in the order of
 * their ends, about, and may have begun in any: what began before an earlier gap ended and ended
 * after it counts from the gap's beginning only. */
#ifndef FAD_SPAN_H
#define FAD_SPAN_H

#include <stdint.h>

struct fad_span {
    uint64_t before_ns;         /* how much of it lies before gap_ns */
    uint64_t gap_ns;            /* since then nothing ran, up to: */
    uint64_t from_ns, until_ns; /* the last stretch; 0: none */
};

/* Starts from zeroes. */
void fad_span_add(struct fad_span *span, uint64_t from_ns, uint64_t until_ns);

uint64_t fad_span_ns(const struct fad_span *span);

#endif
