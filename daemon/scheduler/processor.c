#include "daemon/scheduler/processor.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* How much time that express ranges did not take is kept for those that still run. */
#define EXPRESS_NS_KEPT 200e3

/* Ranges that count as late ones, about. */
#define LATE 32

/* The ranges under way on a stream, which runs them one by one. */
struct fad_lane {
    double weights_ns[FAD_RANGES_AHEAD]; /* in the order of their launches */
    uint32_t under_way;
    double given; /* the processor's, when the first one began */
};

int fad_processor_init(struct fad_processor *processor, const struct fad_device *device)
{
    assert(device->streams > 0 && device->streams <= FAD_STREAMS_MAX);
    assert(device->express == 0 || (device->shared && device->express < device->streams));
    *processor = (struct fad_processor){.device = device};
    processor->lanes = calloc(device->streams, sizeof *processor->lanes);
    return processor->lanes ? 0 : -ENOMEM;
}

void fad_processor_deinit(struct fad_processor *processor)
{
    free(processor->lanes);
    processor->lanes = NULL;
}

bool fad_is_express(const struct fad_device *device, uint32_t stream)
{
    return stream >= device->streams - device->express;
}

/* Divides the time up to now. Ranges are seen to end later than they do, and not in that order: a
 * time that is past has been divided. */
static void divide(struct fad_processor *processor, uint64_t now_ns)
{
    if (now_ns > processor->until_ns) {
        const double ns = (double)(now_ns - processor->until_ns);
        processor->left_ns += ns;
        if (processor->express > 0 && processor->express_ns < EXPRESS_NS_KEPT)
            processor->express_ns += ns;
        processor->until_ns = now_ns;
    }
    if (processor->running == 0) {
        processor->left_ns = 0; /* nobody's */
    } else if (processor->left_ns > 0) {
        processor->given += processor->left_ns / processor->running_ns;
        processor->left_ns = 0;
    }
}

/* The stream's first range begins, or has ended. Sums of weights are rounded: what is left of them
 * when nothing runs would divide the time until something does. */
static void run(struct fad_processor *processor, uint32_t stream, int sign)
{
    struct fad_lane *lane = &processor->lanes[stream];

    if (fad_is_express(processor->device, stream)) {
        processor->express += (uint32_t)sign;
        return;
    }
    processor->running += (uint32_t)sign;
    processor->running_ns += sign * lane->weights_ns[0];
    if (processor->running == 0)
        processor->running_ns = processor->given = 0;
    lane->given = processor->given;
}

void fad_processor_launched(struct fad_processor *processor, const struct fad_range_op *range,
                            double weight_ns, uint64_t now_ns)
{
    struct fad_lane *lane = &processor->lanes[range->stream];

    assert(lane->under_way < FAD_RANGES_AHEAD);
    lane->weights_ns[lane->under_way++] = weight_ns + 1;
    if (lane->under_way > 1)
        return;
    divide(processor, now_ns);
    run(processor, range->stream, 1);
}

static double at_most(double x, double most)
{
    return x < most ? x : most;
}

static double at_least(double x, double least)
{
    return x > least ? x : least;
}

struct fad_taken fad_processor_took(struct fad_processor *processor,
                                    const struct fad_range_op *range)
{
    struct fad_lane *lane = &processor->lanes[range->stream];
    const double took_ns = (double)(range->op.finished_ns - range->op.started_ns);
    const double weight_ns = lane->weights_ns[0];
    struct fad_taken taken = {took_ns, took_ns};

    assert(lane->under_way > 0);
    divide(processor, range->op.finished_ns);
    if (fad_is_express(processor->device, range->stream)) {
        /* Nor less than an equal part, if it was expected to take next to nothing. */
        taken.ns = at_least(weight_ns, took_ns / processor->device->streams);
        taken.ns = at_most(at_most(taken.ns, took_ns), processor->express_ns);
        taken.charge_ns = taken.ns;
        processor->express_ns -= taken.ns;
        processor->left_ns -= taken.ns;
    } else if (processor->device->shared) {
        taken.ns = at_most((processor->given - lane->given) * weight_ns, took_ns);
        processor->late_ns += (taken.ns - processor->late_ns) / LATE;
        processor->late_expected_ns += (weight_ns - processor->late_expected_ns) / LATE;
        taken.charge_ns = weight_ns * processor->late_ns / processor->late_expected_ns;
    }
    run(processor, range->stream, -1);
    lane->under_way--;
    for (uint32_t i = 0; i < lane->under_way; i++)
        lane->weights_ns[i] = lane->weights_ns[i + 1];
    if (lane->under_way > 0)
        run(processor, range->stream, 1);
    if (processor->express == 0)
        processor->express_ns = 0;
    return taken;
}
