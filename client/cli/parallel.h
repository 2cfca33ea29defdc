/* parallel.h: long work on all CPUs, and the line that shows how far something long is. */
#ifndef CLI_PARALLEL_H
#define CLI_PARALLEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Calls task(context, i) once for each i < count, from as many threads as there are CPUs, in any
 * order. A thread that cannot be started is done without. */
void cli_parallel(void (*task)(void *context, uint64_t index), void *context, uint64_t count);

/* A line on stderr, when that is a terminal, that appears after a second and goes again at the end.
 * The parts are private. */
struct cli_progress {
    const char *title; /* "checking against float64" */
    uint64_t total;    /* 0: unknown, the line then counts seconds */
    _Atomic uint64_t done;
    bool running, stop, shown;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t condition;
};

/* Between begin and end, anyone may add to progress->done. The struct must stay where it is. */
void cli_progress_begin(struct cli_progress *progress, const char *title, uint64_t total);
void cli_progress_end(struct cli_progress *progress);

/* Between hide and show the line is away, so that something else can be printed. */
void cli_progress_hide(struct cli_progress *progress);
void cli_progress_show(struct cli_progress *progress);

#endif
