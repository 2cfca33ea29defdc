/* cut.h: how long works take, and the ranges they are cut into.
 *
 * A work's units are taken to be as long as the kernel's estimate says, then as measured of its
 * ranges. Its ranges are to take RANGE_NS of their device's time each.
 *
 * On a shared device a range may take longer than its units' share of the device: few units do not
 * fill it, and no range takes less than a unit does by itself. Units then seem the longer, the
 * fewer are in a range. So measuring makes ranges longer there, never shorter than estimated: else
 * they would shrink until the device were empty. And the streams together may not fill the device:
 * ranges grow as long as that makes units cheaper. */
#ifndef FAD_CUT_H
#define FAD_CUT_H

#include "daemon/scheduler/scheduler.h"

/* How long a range should take. Long ones make others wait; short ones cost a hand-over each, about
 * 10 us on the CPU. */
#define RANGE_NS     250e3
#define RANGE_NS_MIN 25e3

/* What ranges on a shared device may grow to. */
#define RANGE_NS_MAX 4e6

/* Begins a work's estimates; its units are set. */
void fad_cut_begin(struct fad_work *work, const struct fad_device *device);

/* How long so many of its units take, of the device's time. */
double fad_cut_estimate_ns(const struct fad_work *work, uint64_t units);

/* How many units the work's next range has. */
uint64_t fad_cut_units(const struct fad_work *work, const struct fad_device *device);

/* A range of so many units took so much of the device's time. */
void fad_cut_correct(struct fad_work *work, const struct fad_device *device, uint64_t units,
                     double took_ns);

#endif
