#include "client/cli/load.h"

#include <math.h>

void load_count_late(struct load_results *results, double late_us)
{
    results->late += late_us > LOAD_LATE_US;
    results->late_max_us = fmax(results->late_max_us, late_us);
}

void load_count_unsent(struct load_results *results, double late_us)
{
    results->unsent++;
    results->late++;
    results->late_max_us = fmax(results->late_max_us, late_us);
}

void load_count_success(struct load_results *results, const struct load_slot *slot,
                        const struct fa_forward_result *result, double now_us)
{
    uint64_t phases[CLI_PHASES];

    if (!slot->measured)
        return;
    results->requests++;
    fa_histogram_add(&results->latency, (uint64_t)fmax(0, (now_us - slot->start_us) * 1e3));
    cli_phases_of(result, phases);
    for (size_t i = 0; i < CLI_PHASES; i++)
        fa_histogram_add(&results->phases[i], phases[i]);
}

void load_count_failure(struct load_results *results, const struct load_slot *slot,
                        const struct fa_error *error)
{
    if (results->examples[error->status].status == FA_OK)
        results->examples[error->status] = *error;
    if (slot->measured) {
        results->requests++;
        results->failed++;
        results->by_status[error->status]++;
    } else {
        results->warmup_failed++;
        results->warmup_by_status[error->status]++;
    }
}
