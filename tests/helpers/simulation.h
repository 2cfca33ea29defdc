/* simulation.h: clients of the scheduler in virtual time, on the scripted backend's streams. A
 * client keeps some jobs in flight, all alike, which take what the test says, whatever the
 * scheduler was told to expect. Random numbers are those of random(3): srandom() the seed first. */
#ifndef SIMULATION_H
#define SIMULATION_H

#include "daemon/scheduler/scheduler.h"

#define SIM_DEPTH_MAX 512

struct sim_client;

struct sim_job {
    struct fad_work work;
    struct fa_problem problem;
    struct sim_client *client;
    struct sim_job *next_free;
    bool in_flight;
    uint64_t submitted_ns;
};

struct sim_client {
    /* What it is: */
    struct fad_flow *flow;
    enum fa_priority priority;
    uint32_t device;
    uint32_t units;   /* of a job */
    double unit_ns;   /* what one takes; at least 100 */
    double misjudged; /* the estimate as a multiple of that */
    bool in_order;    /* of the kernel */
    double fills;     /* shared devices: how much of the device a unit can use, at most; 0: all */
    uint32_t depth;   /* jobs in flight, at most SIM_DEPTH_MAX */
    uint64_t (*think_ns)(struct sim_client *client); /* from a reply to the next job; NULL: none */

    /* What became of it: */
    double used_ns;      /* device time, of ranges that ended */
    uint64_t done;       /* jobs */
    uint64_t launches;   /* that ended */
    uint64_t longest_ns; /* the longest wait from a submission to its first range's start */
    uint64_t slowest_ns; /* the longest time from a submission to its end */
    double kernel_ns;    /* fad_work_kernel_ns of its jobs, their sum */

    struct fa_kernel kernel;
    uint64_t wake_ns; /* when it will submit what is missing; UINT64_MAX: it waits for replies */
    struct sim_job jobs[SIM_DEPTH_MAX];
    struct sim_job *free; /* of those that were in flight before */
    uint32_t begun;       /* jobs that ever were in flight */
};

/* Starts a simulation on the scripted devices with so many streams each. */
void sim_begin(uint32_t streams);

/* The same, with devices[0] shared, so many of its streams express. A simple model: express ranges
 * have as much of the device as they can use first, the oldest first, and what they leave goes to
 * the others: to the oldest first if in_turn, as a GPU's blocks do, else equally to all. */
void sim_begin_shared(uint32_t streams, uint32_t express, bool in_turn);

/* A client that begins now, with one job of one unit in flight, rightly judged; change it before
 * the simulation goes on. Freed by sim_end. */
struct sim_client *sim_add(struct fad_flow *flow, enum fa_priority priority, double unit_ns);

/* Gives it more jobs in flight than all streams can hold, worth more than is kept of anyone's
 * time: it always has work waiting. */
struct sim_client *sim_backlog(struct sim_client *client);

/* One like that, with jobs of ten ranges of 240 us. */
struct sim_client *sim_flood(struct fad_flow *flow, enum fa_priority priority);

/* Goes on to a virtual time that is so much later. */
void sim_run(uint64_t ns);

/* Abandons the client's jobs in flight. */
void sim_give_up(struct sim_client *client);

/* Lets what is in flight come to an end, checks that nothing is left, and frees all. */
void sim_end(void);

/* Uniform from 0 to below 1; and from low to high, uniform in the logarithm. */
double sim_random(void);
double sim_random_log(double low, double high);

extern struct fad_scheduler sim_scheduler;

#endif
