/* faulty.h: fad-faulty is fad with a backend around the real ones that loses its device when a
 * request says so, by its scale or size. Everything else goes to the real one.
 *
 * Around the CPU backend the loss is feigned: every call under way ends with -EIO, and every later
 * one is refused so. Around another it is done to the device, by a hook, and the rest is left to
 * the real backend. */
#ifndef FAULTY_H
#define FAULTY_H

#include "daemon/backend/backend.h"

/* Forwards with these scales: */
#define FAULTY_SCALE_LOSE 1048573.0 /* loses the device */
#define FAULTY_SCALE_HANG 1048571.0 /* and what is under way, or the backend's deinit, never ends */
#define FAULTY_SCALE_TERM 1048569.0 /* loses it, and sends this process a SIGTERM */

/* Region openings and copies of so many bytes take until the device is lost. */
#define FAULTY_SIZE_STUCK 12340u

/* $FAD_FAULTY_STARTS: as often as that the device is lost at the start, before any request. */
#define FAULTY_STARTS "FAD_FAULTY_STARTS"

/* As fad_backend_named. */
const struct fad_backend_ops *faulty_backend_named(const char *name);

/* Makes the range's device fail so that its context is lost, before the range is launched. Linked
 * in where there is a GPU to do it to. */
void faulty_hurt_cuda(const struct fad_range_op *range) __attribute__((weak));

#endif
