#include "daemon/scheduler/cut.h"

#include <math.h>

/* On a shared device, a work of at most so much is short: it goes out whole, on express streams. It
 * holds up those behind it for less than half a range; and cut up it would not fill the device. */
#define SHORT_NS 100e3

/* Longer ranges are kept if a unit then takes at most so much of what it took before. */
#define CHEAPER 0.75

/* Ranges for each stream between a trial that was in vain and the next one. */
#define PAUSE 16

/* Estimates end here (11 days), so that sums of them fit. */
#define ESTIMATE_NS_MAX 1e15

static uint32_t streams_for_long(const struct fad_device *device)
{
    return device->streams - device->express;
}

void fad_cut_begin(struct fad_work *work, const struct fad_device *device)
{
    const double ns = fa_kernel_seconds(work->kernel, work->problem) * 1e9;

    work->unit_ns = work->guessed_ns = ns / (double)work->units;
    work->is_short = device->shared && ns <= SHORT_NS;
    work->cut_ns = RANGE_NS;
    work->trial = (struct fad_trial){.before_ns = HUGE_VAL};
}

double fad_cut_estimate_ns(const struct fad_work *work, uint64_t units)
{
    double ns = (double)units * work->unit_ns;
    return ns < ESTIMATE_NS_MAX ? ns : ESTIMATE_NS_MAX;
}

/* At most cut_ns long, as many ranges for each stream as for any other, so that all end together;
 * but none shorter than RANGE_NS_MIN. */
uint64_t fad_cut_units(const struct fad_work *work, const struct fad_device *device)
{
    const uint32_t streams = streams_for_long(device);
    const bool measured = !device->shared || work->unit_ns < work->guessed_ns;
    const double unit_ns = (measured ? work->unit_ns : work->guessed_ns) + 1e-3;
    const double units = (double)work->units, cut_ns = work->cut_ns;
    double each = ceil(units / (streams * ceil(units * unit_ns / cut_ns / streams)));

    if (work->is_short)
        return work->units;
    if (each * unit_ns > cut_ns)
        each = floor(cut_ns / unit_ns);
    if (each * unit_ns < RANGE_NS_MIN)
        each = ceil(RANGE_NS_MIN / unit_ns);
    if (each < 1)
        return 1;
    return each < units ? (uint64_t)each : work->units;
}

/* Whether longer ranges make units cheaper is tried out. A trial ends after twice as many ranges as
 * run side by side: their mean counts, since which of them has the device first is a matter of
 * chance.
 * As long as each length is cheaper than the one before the next one is tried; else there is a
 * pause. */
static void try_longer(struct fad_work *work, const struct fad_device *device, double units,
                       double took_ns)
{
    struct fad_trial *trial = &work->trial;
    const int streams = (int)streams_for_long(device);
    double unit_ns;

    if (trial->ranges++ < 0)
        return;
    trial->units += units;
    trial->took_ns += took_ns;
    if (trial->ranges < 2 * streams)
        return;
    unit_ns = trial->took_ns / trial->units;
    if (unit_ns > CHEAPER * trial->before_ns) {
        work->cut_ns = trial->cut_before_ns;
        *trial = (struct fad_trial){.before_ns = HUGE_VAL, .ranges = -PAUSE * streams};
        return;
    }
    *trial = (struct fad_trial){.before_ns = unit_ns,
                                .cut_before_ns = work->cut_ns,
                                /* Those before are of the old length. */
                                .ranges = -(int)FAD_RANGES_AHEAD * streams};
    /* Ranges that did not fill the device do when they are estimated to take what they took. */
    work->cut_ns *= fmax(2, unit_ns / work->guessed_ns);
    work->cut_ns = fmin(work->cut_ns, RANGE_NS_MAX);
}

void fad_cut_correct(struct fad_work *work, const struct fad_device *device, uint64_t units,
                     double took_ns)
{
    const double unit_ns = took_ns / (double)units;

    /* What a range had of a shared device is more a matter of chance. */
    work->unit_ns += (unit_ns - work->unit_ns) / (device->shared ? 8 : 2);
    if (device->shared)
        try_longer(work, device, (double)units, took_ns);
}
