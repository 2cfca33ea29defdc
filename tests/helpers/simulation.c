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

static size_t sim_scratch(const struct fa_problem *problem)
{
    (void)problem;
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
    client->wake_ns = scripted.now_ns + (client->think_ns ? client->think_ns(client) : 0);
}

/* The kernel's rate at which the estimate is as the client says. */
static void judge(struct sim_client *client, const struct fa_problem *problem)
{
    double wanted = client->units * client->unit_ns * client->misjudged * 1e-9;

    client->kernel = (struct fa_kernel){.name = "simulated",
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
    ck_assert_int_eq(fad_scheduler_init(&sim_scheduler, &scripted.base), 0);
}

/* Takes the next step before the time; false: there is none. */
static bool step(uint64_t until_ns)
{
    struct sim_client *first = NULL;
    unsigned index = 0;
    uint64_t end_ns;
    const bool held = scripted_first_end(&index, &end_ns);

    for (unsigned c = 0; c < client_count; c++)
        if (clients[c]->wake_ns != UINT64_MAX && (!first || clients[c]->wake_ns < first->wake_ns))
            first = clients[c];
    if (first && first->wake_ns < until_ns && (!held || first->wake_ns <= end_ns)) {
        if (scripted.now_ns < first->wake_ns)
            scripted.now_ns = first->wake_ns;
        wake(first);
    } else if (held && end_ns < until_ns) {
        scripted_finish(index);
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
