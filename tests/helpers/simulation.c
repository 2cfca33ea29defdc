#include "tests/helpers/simulation.h"

#include "tests/helpers/scripted.h"

#include <assert.h>
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS_MAX 64

struct fad_scheduler sim_scheduler;

static struct sim_client *clients[CLIENTS_MAX];
static unsigned client_count;
static bool ending;

/* devices[0], if shared: */
static bool in_turn;
static double left_ns[64]; /* device time that scripted.held[] needs to end */
static unsigned known;     /* of them */
static uint64_t since_ns;  /* they are of then */

double sim_random(void)
{
    return (double)random() / ((double)RAND_MAX + 1);
}

double sim_random_log(double low, double high)
{
    return low * pow(high / low, sim_random());
}

/* --- The kernel ------------------------------------------------------------------------------ */

static uint64_t sim_units(const struct fa_problem *problem)
{
    return problem->q_len;
}

static size_t sim_scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 64;
}

static struct sim_client *client_of(const struct fa_problem *problem)
{
    return fad_container_of(problem, struct sim_job, problem)->client;
}

static uint64_t takes_ns(const struct fad_range_op *range)
{
    return (uint64_t)(client_of(range->launch.problem)->unit_ns *
                      (double)range->launch.range.count);
}

static enum fa_status sim_launch(const struct fa_launch *launch)
{
    struct sim_client *client = client_of(launch->problem);
    client->used_ns += client->unit_ns * (double)launch->range.count;
    client->launches++;
    return FA_OK;
}

/* --- Clients --------------------------------------------------------------------------------- */

static void on_finished(struct fad_work *work)
{
    struct sim_job *job = fad_container_of(work, struct sim_job, work);
    struct sim_client *client = job->client;

    job->in_flight = false;
    job->next_free = client->free;
    client->free = job;
    client->done += work->status == 0;
    if (work->started_ns != 0 && work->started_ns - job->submitted_ns > client->longest_ns)
        client->longest_ns = work->started_ns - job->submitted_ns;
    if (scripted.now_ns - job->submitted_ns > client->slowest_ns)
        client->slowest_ns = scripted.now_ns - job->submitted_ns;
    client->kernel_ns += (double)fad_work_kernel_ns(work);
    client->wake_ns = scripted.now_ns + (client->think_ns ? client->think_ns(client) : 0);
}

/* The kernel's rate at which the estimate is as the client says. */
static void judge(struct sim_client *client, const struct fa_problem *problem)
{
    double wanted = client->units * client->unit_ns * client->misjudged * 1e-9;

    client->kernel = (struct fa_kernel){.name = "simulated",
                                        .in_order = client->in_order,
                                        .units = sim_units,
                                        .scratch = sim_scratch,
                                        .launch = sim_launch,
                                        .rate = HUGE_VAL};
    wanted -= fa_kernel_seconds(&client->kernel, problem);
    assert(wanted > 0);
    client->kernel.rate = (double)fa_problem_flops(problem) / wanted;
}

static void submit(struct sim_client *client, struct sim_job *job)
{
    job->client = client;
    job->in_flight = true;
    job->submitted_ns = scripted.now_ns;
    job->problem = (struct fa_problem){.batch = 1,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .q_len = client->units,
                                       .kv_len = 64,
                                       .head_dim = 1,
                                       .dtype = FA_DTYPE_FLOAT32,
                                       .scale = 1};
    judge(client, &job->problem);
    job->work = (struct fad_work){.flow = client->flow,
                                  .priority = client->priority,
                                  .device = client->device,
                                  .kernel = &client->kernel,
                                  .problem = &job->problem,
                                  .finished = on_finished};
    fad_scheduler_submit(&sim_scheduler, &job->work);
}

static void wake(struct sim_client *client)
{
    client->wake_ns = UINT64_MAX;
    assert(client->depth <= SIM_DEPTH_MAX);
    if (ending)
        return;
    while (client->free) {
        struct sim_job *job = client->free;
        client->free = job->next_free;
        submit(client, job);
    }
    while (client->begun < client->depth)
        submit(client, &client->jobs[client->begun++]);
}

struct sim_client *sim_add(struct fad_flow *flow, enum fa_priority priority, double unit_ns)
{
    struct sim_client *client = calloc(1, sizeof *client);

    ck_assert_ptr_nonnull(client);
    ck_assert_uint_lt(client_count, CLIENTS_MAX);
    client->flow = flow;
    client->priority = priority;
    client->units = 1;
    client->unit_ns = unit_ns;
    client->misjudged = 1;
    client->depth = 1;
    client->wake_ns = scripted.now_ns;
    return clients[client_count++] = client;
}

struct sim_client *sim_backlog(struct sim_client *client)
{
    client->depth = 8 + (uint32_t)(3e6 / (client->units * client->unit_ns));
    return client;
}

struct sim_client *sim_flood(struct fad_flow *flow, enum fa_priority priority)
{
    struct sim_client *client = sim_add(flow, priority, 10e3);

    client->units = 240;
    return sim_backlog(client);
}

void sim_give_up(struct sim_client *client)
{
    for (uint32_t j = 0; j < client->begun; j++)
        if (client->jobs[j].in_flight && client->jobs[j].work.status == 0)
            fad_scheduler_abandon(&sim_scheduler, &client->jobs[j].work, FA_CANCELLED);
}

/* --- Time ------------------------------------------------------------------------------------ */

void sim_begin(uint32_t streams)
{
    scripted_reset();
    scripted.hold[SCRIPTED_LAUNCH] = true;
    scripted.takes_ns = takes_ns;
    scripted.devices[0].streams = scripted.devices[1].streams = streams;
    ending = false;
    known = 0;
    since_ns = scripted.now_ns;
    ck_assert_int_eq(fad_scheduler_init(&sim_scheduler, &scripted.base), 0);
}

/* --- A shared device ------------------------------------------------------------------------- */

void sim_begin_shared(uint32_t streams, uint32_t express, bool oldest_first)
{
    sim_begin(streams);
    fad_scheduler_deinit(&sim_scheduler);
    scripted.devices[0].shared = true;
    scripted.devices[0].express = express;
    in_turn = oldest_first;
    ck_assert_int_eq(fad_scheduler_init(&sim_scheduler, &scripted.base), 0);
}

/* How much of the device the range can use. */
static double most(const struct fad_range_op *range)
{
    const double fills = client_of(range->launch.problem)->fills;
    const double all = fills * (double)range->launch.range.count;
    return all == 0 || all > 1 ? 1 : all;
}

static uint64_t start_of(const struct scripted_held *held)
{
    const uint64_t free_ns = scripted.free_ns[0][held->range->stream];
    return free_ns > held->taken_ns ? free_ns : held->taken_ns;
}

/* Whether the range has its part before the other one. What one cannot use goes to those behind. */
static bool before(const struct scripted_held *held, const struct scripted_held *other)
{
    if (in_turn)
        return start_of(held) < start_of(other);
    return most(held->range) < most(other->range);
}

/* The part of the device that each held range has now. The first of its stream runs. */
static void find_rates(double rates[64])
{
    const struct fad_device *device = &scripted.devices[0];
    bool busy[SCRIPTED_STREAMS_MAX] = {false}, runs[64] = {false};
    double free = 1;
    unsigned others = 0;

    for (unsigned i = 0; i < scripted.held_count; i++) {
        const uint32_t stream = scripted.held[i].range->stream;
        assert(scripted.held[i].range->device == 0);
        rates[i] = 0;
        if (busy[stream])
            continue;
        busy[stream] = true;
        runs[i] = stream < device->streams - device->express;
        if (runs[i])
            others++;
        else
            free -= rates[i] = fmin(free, most(scripted.held[i].range));
    }
    for (; others > 0; others--) {
        unsigned next = 64;
        for (unsigned i = 0; i < scripted.held_count; i++) {
            if (runs[i] && (next == 64 || before(&scripted.held[i], &scripted.held[next])))
                next = i;
        }
        assert(next < 64);
        runs[next] = false;
        rates[next] = fmin(in_turn ? free : free / others, most(scripted.held[next].range));
        free -= rates[next];
        if (free < 1e-6) /* what rounding leaves */
            free = 0;
    }
}

/* Lets the device run up to the time. */
static void advance(uint64_t now_ns)
{
    double rates[64] = {0};

    for (; known < scripted.held_count; known++)
        left_ns[known] = (double)takes_ns(scripted.held[known].range);
    find_rates(rates);
    for (unsigned i = 0; i < known; i++)
        left_ns[i] -= rates[i] * (double)(now_ns - since_ns);
    since_ns = now_ns;
}

/* Which range ends first as things are, and when. Ranges are told to the scripted backend as ones
 * that take what they took. */
static bool first_end(unsigned *index, uint64_t *end_ns)
{
    double rates[64] = {0};

    if (!scripted.devices[0].shared)
        return scripted_first_end(index, end_ns);
    advance(scripted.now_ns);
    find_rates(rates);
    *end_ns = UINT64_MAX;
    for (unsigned i = 0; i < known; i++) {
        const double rest_ns = left_ns[i] > 0 ? left_ns[i] / rates[i] : 0;
        if (rates[i] > 0 && scripted.now_ns + (uint64_t)ceil(rest_ns) < *end_ns) {
            *index = i;
            *end_ns = scripted.now_ns + (uint64_t)ceil(rest_ns);
        }
    }
    return *end_ns != UINT64_MAX;
}

static void finish(unsigned index, uint64_t end_ns)
{
    struct scripted_held *held = &scripted.held[index];

    if (scripted.devices[0].shared) {
        advance(end_ns);
        held->takes_ns = end_ns - start_of(held);
        memmove(&left_ns[index], &left_ns[index + 1], (--known - index) * sizeof left_ns[0]);
    }
    scripted_finish(index);
}

/* --- Steps ----------------------------------------------------------------------------------- */

/* Takes the next step before the time; false: there is none. */
static bool step(uint64_t until_ns)
{
    struct sim_client *first = NULL;
    unsigned index = 0;
    uint64_t end_ns;
    const bool held = first_end(&index, &end_ns);

    for (unsigned c = 0; c < client_count; c++)
        if (clients[c]->wake_ns != UINT64_MAX && (!first || clients[c]->wake_ns < first->wake_ns))
            first = clients[c];
    if (first && first->wake_ns < until_ns && (!held || first->wake_ns <= end_ns)) {
        if (scripted.now_ns < first->wake_ns)
            scripted.now_ns = first->wake_ns;
        if (scripted.devices[0].shared)
            advance(scripted.now_ns); /* before there are more of them */
        wake(first);
    } else if (held && end_ns < until_ns) {
        finish(index, end_ns);
    } else {
        return false;
    }
    fad_scheduler_dispatch(&sim_scheduler, scripted.now_ns);
    return true;
}

void sim_run(uint64_t ns)
{
    const uint64_t until_ns = scripted.now_ns + ns;

    while (step(until_ns))
        ;
    if (scripted.devices[0].shared)
        advance(until_ns);
    scripted.now_ns = until_ns;
}

void sim_end(void)
{
    ending = true;
    for (unsigned c = 0; c < client_count; c++)
        sim_give_up(clients[c]);
    while (step(UINT64_MAX))
        ;
    for (uint32_t d = 0; d < 2; d++) {
        ck_assert_uint_eq(sim_scheduler.load_ns[d], 0);
        ck_assert(fad_ring_is_empty(&sim_scheduler.rings[d]));
    }
    fad_scheduler_deinit(&sim_scheduler);
    for (unsigned c = 0; c < client_count; c++)
        free(clients[c]);
    client_count = 0;
}
