/* load.h: the parts of `fa-cli load`: options, what is counted, the loop that sends and takes
 * requests, and the report. load.c puts them together.
 *
 * One thread serves all clients, each a connection with a number of slots: the memory of a request.
 * A slot is free, or its request is in flight, or it rests after a failure. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include "client/cli/request.h"
#include "client/cli/times.h"
#include "proto/fa_histogram.h"

#define LOAD_CLIENTS_MAX  512u
#define LOAD_INFLIGHT_MAX 1024u

/* A request that was sent later than this after its time, in microseconds, is late. */
#define LOAD_LATE_US 1000

/* Without a rate a slot whose request failed rests so long, in microseconds: sent again at once,
 * refusals would be the load. */
#define LOAD_REST_US 1000

/* --- load_options.c -------------------------------------------------------------------------- */

struct load_options {
    struct request_options request; /* first */
    uint32_t clients;
    uint32_t inflight; /* of each client at most */
    double rate;       /* requests a second of all clients; 0: as fast as replies come */
    double warmup;     /* seconds, as is duration */
    double duration;
    /* With a rate: requests due in the warm-up, and until the measurement's end. */
    uint64_t warmup_arrivals, arrivals;
};

enum cli_exit load_parse(int argc, char **argv, struct load_options *out, struct cli_error *error);

/* --- load.c ---------------------------------------------------------------------------------- */

struct load_slot {
    struct load_client *client;
    struct request_tensors tensors;
    struct fa_forward_args args;
    double sent_us;
    double start_us; /* from when latency counts: sent, with a rate when it should have been */
    double ready_us; /* until then it rests */
    bool measured;
    bool in_flight;
    bool has_result;        /* the latest request was OK: its output is there */
    struct load_slot *next; /* free or resting */
};

struct load_client {
    struct fa_client *client;
    struct request_places places;
    struct load_slot *slots;
    struct load_slot *free;
    uint32_t in_flight; /* slots */
    uint64_t next;      /* with a rate: the number of its next arrival, of all clients' */
    uint64_t answered;  /* its part of load_results' */
    /* After the load: whether a slot had a result, and whether all had the reference's bits. */
    bool compared, same_bits;
};

/* Why sending ended. */
enum load_end { LOAD_COMPLETE, LOAD_INTERRUPTED, LOAD_LOST, LOAD_TIMED_OUT };

#define LOAD_STATUSES (FA_DISCONNECTED + 1)

struct load_results {
    enum load_end end;
    struct fa_error lost; /* how, with LOAD_LOST */
    double seconds;       /* measured: until sending ended; 0: it ended in the warm-up */
    uint64_t answered;    /* OK replies that came in that time, whenever their request was sent */
    /* Measured requests, which were sent in that time: answered, or ended by the connection's end.
     * Latencies are theirs. */
    uint64_t requests, failed;
    uint64_t by_status[LOAD_STATUSES];
    /* Requests before them. */
    uint64_t warmup_failed;
    uint64_t warmup_by_status[LOAD_STATUSES];
    struct fa_error examples[LOAD_STATUSES]; /* the first of each, in the warm-up too */
    uint64_t unanswered;                     /* in flight when waiting ended */
    struct fa_histogram latency;             /* nanoseconds, of what succeeded */
    struct fa_histogram phases[CLI_PHASES];  /* microseconds, as the daemon told */
    /* With a rate: */
    uint64_t scheduled; /* arrivals of the measurement that came due */
    uint64_t unsent;    /* of them, for which no slot got free */
    uint64_t late;      /* of them, sent late or unsent */
    double late_max_us; /* the largest delay, of an unsent one until sending ended */
};

struct load {
    struct load_options options;
    struct request_tensors tensors;     /* of the reference request, and the inputs of all */
    struct fa_forward_result reference; /* how it went */
    bool checked;                       /* against float64; check tells */
    struct request_check check;
    struct load_client *clients;
    uint32_t connected; /* of them */
    struct load_results results;
};

/* --- load_count.c --------------------------------------------------------------------------- */

/* With a rate, of a measured request: it was sent so long after it was due. */
void load_count_late(struct load_results *results, double late_us);
/* It was never sent, and was due so long before sending ended. */
void load_count_unsent(struct load_results *results, double late_us);

/* What the slot's request, measured or not, came to. */
void load_count_success(struct load_results *results, const struct load_slot *slot,
                        const struct fa_forward_result *result, double now_us);
void load_count_failure(struct load_results *results, const struct load_slot *slot,
                        const struct fa_error *error);

/* --- load_loop.c ----------------------------------------------------------------------------- */

/* Runs the load on clients that are connected and idle, and fills in the results. */
void load_loop(struct load *load);

/* --- load_report.c --------------------------------------------------------------------------- */

void load_print(const struct load *load);
enum cli_exit load_print_json(const struct load *load, struct cli_error *error);

/* How many clients' results were compared, and how many of them had other bits. */
uint32_t load_compared(const struct load *load);
uint32_t load_different(const struct load *load);

enum cli_exit cli_load(int argc, char **argv, struct cli_error *error);

#endif
