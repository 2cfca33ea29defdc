/* Random scripts of submissions, cancels, failures, refusals, deadlines and completions in any
 * order, also from inside finished(): every work ends once, and nothing is left. Seeds are even
 * where a device is shared. A failure prints the test's name and its seed: "name:seed". */
#include "daemon/scheduler/scheduler.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/test.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS    3
#define FLOWS     6
#define WORKS     40
#define UNITS_MAX 200

struct tracked {
    struct fad_work work;
    struct fa_problem problem;
    bool live;
    unsigned ended;
    unsigned char launched[UNITS_MAX], touched[UNITS_MAX];
};

static struct fad_scheduler scheduler;
static struct fad_group groups[GROUPS];
static struct fad_flow flows[FLOWS];
static struct tracked works[WORKS];
static unsigned submitted, succeeded;
static int depth; /* of finished() inside finished() */
static bool stopping;

/* --- The kernels ----------------------------------------------------------------------------- */

static struct tracked *owner(const struct fa_problem *problem)
{
    return fad_container_of(problem, struct tracked, problem);
}

static uint64_t units(const struct fa_problem *problem)
{
    return problem->q_len;
}

static size_t scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 64;
}

static enum fa_status touch(const struct fa_launch *launch)
{
    for (uint64_t u = 0; u < launch->range.count; u++)
        owner(launch->problem)->touched[launch->range.first + u]++;
    return FA_OK;
}

static const struct fa_kernel kernels[2] = {
    {.name = "any order", .units = units, .scratch = scratch, .launch = touch, .rate = 1e9},
    {.name = "in order",
     .in_order = true,
     .units = units,
     .scratch = scratch,
     .launch = touch,
     .rate = 1e9},
};

/* Called at each launch. */
static uint64_t check_launch(const struct fad_range_op *range)
{
    struct tracked *tracked = owner(range->launch.problem);
    unsigned ahead = 0;

    assert(tracked->live && tracked->work.status == 0);
    assert(tracked->work.deadline_ns == 0 || scripted.now_ns < tracked->work.deadline_ns);
    assert(range->device == tracked->work.device);
    for (uint64_t u = 0; u < range->launch.range.count; u++)
        tracked->launched[range->launch.range.first + u]++;
    for (unsigned i = 0; i < scripted.held_count; i++) {
        const struct fad_range_op *other = scripted.held[i].range;
        ahead += other->device == range->device && other->stream == range->stream;
        if (range->kernel->in_order && other->launch.problem == range->launch.problem)
            assert(other->stream == range->stream &&
                   other->launch.range.first < range->launch.range.first);
    }
    assert(ahead < FAD_RANGES_AHEAD);
    if (scripted.devices[range->device].express > 0)
        assert(tracked->work.is_short ==
               (range->stream == scripted.devices[range->device].streams - 1));
    return (uint64_t)random() % 500000;
}

/* --- Actions --------------------------------------------------------------------------------- */

static void act(void);

static void on_finished(struct fad_work *work)
{
    struct tracked *tracked = fad_container_of(work, struct tracked, work);

    assert(tracked->live && tracked->ended == 0);
    tracked->live = false;
    tracked->ended++;
    succeeded += work->status == 0;
    for (uint32_t u = 0; u < tracked->problem.q_len; u++) {
        assert(tracked->launched[u] <= 1 && tracked->touched[u] <= 1);
        assert(work->status != 0 || tracked->touched[u] == 1);
    }
    if (depth < 3 && !stopping && random() % 2) {
        depth++;
        act();
        depth--;
    }
}

static void submit(struct tracked *tracked)
{
    memset(tracked, 0, sizeof *tracked);
    tracked->live = true;
    tracked->problem =
        (struct fa_problem){.batch = 1,
                            .heads = 1,
                            .kv_heads = 1,
                            .q_len = 1 + (uint32_t)random() % (random() % 2 ? 4 : UNITS_MAX),
                            .kv_len = 1u << random() % 14,
                            .head_dim = 64,
                            .dtype = FA_DTYPE_FLOAT32,
                            .scale = 1};
    tracked->work = (struct fad_work){.flow = &flows[random() % FLOWS],
                                      .priority = (enum fa_priority)(1 + random() % 3),
                                      .device = (uint32_t)random() % 2,
                                      .kernel = &kernels[random() % 3 == 0],
                                      .problem = &tracked->problem,
                                      .finished = on_finished};
    if (random() % 3 == 0)
        tracked->work.deadline_ns = scripted.now_ns + (uint64_t)random() % 20000000;
    submitted++;
    fad_scheduler_submit(&scheduler, &tracked->work);
}

/* A held range, any but one that an in_order kernel has not come to yet. */
static void finish_any(void)
{
    unsigned index = (unsigned)random() % scripted.held_count;

    for (unsigned i = 0; scripted.held[index].range->kernel->in_order && i < index; i++)
        if (scripted.held[i].range->launch.problem == scripted.held[index].range->launch.problem)
            index = i;
    scripted.fail[SCRIPTED_LAUNCH] = random() % 50 == 0 ? FA_INTERNAL : 0;
    scripted_finish(index);
    scripted.fail[SCRIPTED_LAUNCH] = 0;
}

static void act(void)
{
    struct tracked *tracked = &works[random() % WORKS];
    int what = (int)random() % 100;

    if (what < 45 && !tracked->live)
        submit(tracked);
    else if (what < 48 && tracked->live)
        fad_scheduler_abandon(&scheduler, &tracked->work, FA_CANCELLED);
    else if (what < 50)
        scripted.now_ns += (uint64_t)random() % 1000000;
    else if (what < 90 && depth == 0 && scripted.held_count > 0)
        finish_any();
    scripted.refuse[SCRIPTED_LAUNCH] = random() % 100 == 0 ? FA_RESOURCE_EXHAUSTED : 0;
    fad_scheduler_dispatch(&scheduler, scripted.now_ns);
    scripted.refuse[SCRIPTED_LAUNCH] = 0;
}

/* --- What always holds ----------------------------------------------------------------------- */

static void check_all(void)
{
    uint64_t load_ns[2] = {0, 0}, next = UINT64_MAX;
    uint32_t least;
    unsigned under_way = 0, queued = 0, waiting[2] = {0, 0}, running[2] = {0, 0};

    for (unsigned w = 0; w < WORKS; w++) {
        const struct fad_work *work = &works[w].work;
        if (!works[w].live)
            continue;
        assert(work->queued || work->under_way > 0);
        assert(!work->queued || work->status == 0);
        assert(work->stop == (work->status != 0));
        assert(work->deadline_ns == 0 || work->deadline_ns > scripted.now_ns || work->status != 0);
        if (work->status == 0 && work->deadline_ns != 0 && work->deadline_ns < next)
            next = work->deadline_ns;
        load_ns[work->device] += work->load_ns;
        under_way += work->under_way;
        queued += work->queued;
        waiting[work->device] += work->queued;
        running[work->device] += work->under_way;
    }
    for (uint32_t d = 0; d < 2; d++)
        assert(running[d] > 0 || waiting[d] == 0);
    assert(fad_scheduler_next_deadline(&scheduler) == (next == UINT64_MAX ? 0 : next));
    assert(scheduler.under_way == under_way && under_way == scripted.held_count);
    assert(scheduler.queued == queued);
    for (uint32_t d = 0; d < 2; d++)
        assert(scheduler.load_ns[d] == load_ns[d]);
    least = fad_scheduler_least_loaded(&scheduler);
    assert(load_ns[least] <= load_ns[1 - least]);
}

START_TEST(every_work_ends_once_whatever_happens)
{
    srandom((unsigned)_i);
    scripted_reset();
    scripted.hold[SCRIPTED_LAUNCH] = true;
    scripted.takes_ns = check_launch;
    scripted.devices[0].shared = _i % 2 == 0;
    scripted.devices[0].express = _i % 4 == 0;
    scripted.devices[0].streams += _i % 2 == 0;
    ck_assert_int_eq(fad_scheduler_init(&scheduler, &scripted.base), 0);
    for (unsigned g = 0; g < GROUPS; g++)
        fad_group_init(&groups[g]);
    for (unsigned f = 0; f < FLOWS; f++)
        fad_flow_init(&flows[f], &groups[f % GROUPS]);
    for (int i = 0; i < 20000; i++) {
        act();
        check_all();
    }
    stopping = true;
    while (scripted.held_count > 0) {
        finish_any();
        fad_scheduler_dispatch(&scheduler, scripted.now_ns);
        check_all();
    }
    for (unsigned w = 0; w < WORKS; w++)
        ck_assert(!works[w].live);
    for (uint32_t d = 0; d < 2; d++) {
        ck_assert_uint_eq(scheduler.load_ns[d], 0);
        ck_assert(fad_ring_is_empty(&scheduler.rings[d]));
        for (unsigned g = 0; g < GROUPS; g++)
            ck_assert(fad_ring_is_empty(&groups[g].rings[d]) && !groups[g].shares[d].list);
    }
    ck_assert_uint_eq(fad_scheduler_next_deadline(&scheduler), 0);
    ck_assert_uint_gt(submitted, 5000);
    ck_assert_uint_gt(succeeded, submitted / 4);
    fad_scheduler_deinit(&scheduler);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("scheduler_random");
    TCase *tests = tcase_create("random");

    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, every_work_ends_once_whatever_happens, 1, 31);
    suite_add_tcase(suite, tests);
    return suite;
}
