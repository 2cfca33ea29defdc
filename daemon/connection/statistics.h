/* statistics.h: what became of the forwards: counters and times by version, by connection and by
 * uid. All in fixed memory; noting one costs no allocation. */
#ifndef FAD_STATISTICS_H
#define FAD_STATISTICS_H

#include "proto/fa_histogram.h"
#include "kernels/fa_attention.h"

#include <stddef.h>

/* The statuses that travel are numbered from 0 without gaps. */
#define FAD_STATUS_TRAVELS(name, number, text) +((number) < 64)
#define FAD_STATUS_COUNTS                      (FA_STATUS_LIST(FAD_STATUS_TRAVELS))

/* Rows at most: five versions times three data types, and one. */
#define FAD_STATISTICS_ROWS_MAX 16

/* What a forward came to, refusals included. */
struct fad_outcome {
    const struct fa_version *version; /* NULL: refused before that was known */
    enum fa_dtype dtype;              /* any when there is no version */
    enum fa_status status;
    uint64_t received_bytes; /* inline inputs */
    uint64_t sent_bytes;     /* inline outputs */
    /* As in ForwardReply, in nanoseconds; used when status is FA_OK. */
    uint64_t queue_ns, transfer_ns, kernel_ns, total_ns;
};

struct fad_counters {
    uint64_t requests;
    uint64_t by_status[FAD_STATUS_COUNTS];
    uint64_t received_bytes, sent_bytes;
};

/* Of a connection, or of all that a uid ever had. All zeroes is an empty one. */
struct fad_tally {
    struct fad_counters counters;
    struct fa_histogram total; /* of those answered OK */
};

struct fad_statistics_row {
    const struct fa_version *version; /* NULL, with dtype 0: refused before it was known */
    enum fa_dtype dtype;
    struct fad_counters counters;
    struct fa_histogram queue, transfer, kernel, total; /* of those answered OK */
};

struct fad_statistics {
    uint64_t started_ns;
    size_t row_count;
    struct fad_statistics_row *rows; /* the one without a version last */
    uint64_t lost;                   /* requests of every kind that were answered DEVICE_LOST */
};

/* Nothing happened yet. 0 or -ENOMEM. */
int fad_statistics_init(struct fad_statistics *statistics, uint64_t now_ns);

void fad_statistics_deinit(struct fad_statistics *statistics);

/* Notes a forward that was answered, in the row of its version and data type. */
void fad_statistics_note(struct fad_statistics *statistics, const struct fad_outcome *outcome);

/* The same for a connection or a uid. */
void fad_tally_note(struct fad_tally *tally, const struct fad_outcome *outcome);

#endif
