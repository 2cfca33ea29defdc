/* processor.h: how much of a device's time a range took.
 *
 * Where each stream has a processor of its own that is what it took on its stream. The ranges on
 * the streams of a shared device run side by side: the device's time is divided among them, so that
 * what all of them took comes to the time during which any ran.
 *
 * A GPU starts the blocks of one range after those of another, and a range counts as running from
 * when its stream comes to it: so a moment's time is divided by the lengths that were expected of
 * the ranges under way, not equally, or the short ones would pay for the long ones before them.
 * What a range had so is still more a matter of its place among the others than of its own work:
 * its flow is charged what was expected of it, times what all ranges of late took of what was
 * expected of them.
 *
 * Ranges on express streams come first and often fill a small part of the device only: they are
 * taken at what was expected, as far as it is possible, and the others have what remains. */
#ifndef FAD_PROCESSOR_H
#define FAD_PROCESSOR_H

#include "daemon/backend/backend.h"

struct fad_processor {
    const struct fad_device *device;
    struct fad_lane *lanes;           /* of the streams */
    uint64_t until_ns;                /* the time up to which it is divided */
    double left_ns;                   /* of it, not given yet; < 0: express ranges took it before */
    uint32_t running;                 /* streams that run a range, not the express ones */
    double running_ns;                /* expected of these ranges */
    double given;                     /* ns per expected ns to each of them, since none ran */
    double late_ns, late_expected_ns; /* what those that ended lately took, and was expected */
    double express_ns;                /* during which express ranges ran, and that none has taken */
    uint32_t express;                 /* streams that run some */
};

/* 0 or -ENOMEM. */
int fad_processor_init(struct fad_processor *processor, const struct fad_device *device);
void fad_processor_deinit(struct fad_processor *processor);

/* Whether the stream is for short works, which the device prefers. */
bool fad_is_express(const struct fad_device *device, uint32_t stream);

/* A range was given to its stream, at that time. weight_ns: how long it was expected to take before
 * anything of its work was measured; else a range would be taken for long because it was before. */
void fad_processor_launched(struct fad_processor *processor, const struct fad_range_op *range,
                            double weight_ns, uint64_t now_ns);

struct fad_taken {
    double ns;        /* of the device's time */
    double charge_ns; /* what the flow is to pay for it */
};

/* A range ended, its times set. */
struct fad_taken fad_processor_took(struct fad_processor *processor,
                                    const struct fad_range_op *range);

#endif
