#include "daemon/connection/statistics.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* Data types are numbered from 1 without gaps. */
#define DTYPE_PLACE(name, number, text, bytes) PLACE_##name,
enum { FA_DTYPE_LIST(DTYPE_PLACE) DTYPES };

int fad_statistics_init(struct fad_statistics *statistics, uint64_t now_ns)
{
    size_t version_count;
    const struct fa_version *versions = fa_versions(&version_count);

    statistics->started_ns = now_ns;
    statistics->lost = 0;
    statistics->row_count = version_count * DTYPES + 1;
    assert(statistics->row_count <= FAD_STATISTICS_ROWS_MAX);
    /* 39 KB a row: the system gives memory to those that are used. */
    statistics->rows = calloc(statistics->row_count, sizeof *statistics->rows);
    if (!statistics->rows)
        return -ENOMEM;
    for (size_t i = 0; i + 1 < statistics->row_count; i++) {
        statistics->rows[i].version = &versions[i / DTYPES];
        statistics->rows[i].dtype = (enum fa_dtype)(i % DTYPES + 1);
    }
    return 0;
}

void fad_statistics_deinit(struct fad_statistics *statistics)
{
    free(statistics->rows);
    statistics->rows = NULL;
}

static void count(struct fad_counters *counters, const struct fad_outcome *outcome)
{
    assert(outcome->status < FAD_STATUS_COUNTS);
    counters->requests++;
    counters->by_status[outcome->status]++;
    counters->received_bytes += outcome->received_bytes;
    counters->sent_bytes += outcome->sent_bytes;
}

static struct fad_statistics_row *find_row(struct fad_statistics *statistics,
                                           const struct fad_outcome *outcome)
{
    size_t version_count, index = statistics->row_count - 1;
    const struct fa_version *versions = fa_versions(&version_count);

    if (outcome->version)
        index = (size_t)(outcome->version - versions) * DTYPES + (size_t)outcome->dtype - 1;
    assert(index < statistics->row_count);
    assert(statistics->rows[index].version == outcome->version);
    return &statistics->rows[index];
}

void fad_statistics_note(struct fad_statistics *statistics, const struct fad_outcome *outcome)
{
    struct fad_statistics_row *row = find_row(statistics, outcome);

    count(&row->counters, outcome);
    if (outcome->status != FA_OK)
        return;
    fa_histogram_add(&row->queue, outcome->queue_ns);
    fa_histogram_add(&row->transfer, outcome->transfer_ns);
    fa_histogram_add(&row->kernel, outcome->kernel_ns);
    fa_histogram_add(&row->total, outcome->total_ns);
}

void fad_tally_note(struct fad_tally *tally, const struct fad_outcome *outcome)
{
    count(&tally->counters, outcome);
    if (outcome->status == FA_OK)
        fa_histogram_add(&tally->total, outcome->total_ns);
}
