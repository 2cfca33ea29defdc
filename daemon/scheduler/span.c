#include "daemon/scheduler/span.h"

void fad_span_add(struct fad_span *span, uint64_t from_ns, uint64_t until_ns)
{
    if (from_ns > span->until_ns) {
        span->before_ns += span->until_ns - span->from_ns;
        span->gap_ns = span->until_ns;
        span->from_ns = from_ns;
    } else if (from_ns < span->from_ns) {
        span->from_ns = from_ns > span->gap_ns ? from_ns : span->gap_ns;
    }
    if (until_ns > span->until_ns)
        span->until_ns = until_ns;
}

uint64_t fad_span_ns(const struct fad_span *span)
{
    return span->before_ns + (span->until_ns - span->from_ns);
}
