#include "client/cli/parallel.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 256

/* --- Work ------------------------------------------------------------------------------------ */

struct work {
    void (*task)(void *context, uint64_t index);
    void *context;
    uint64_t count;
    _Atomic uint64_t next;
};

static void *work_on(void *argument)
{
    struct work *work = argument;
    uint64_t index;

    while ((index = atomic_fetch_add(&work->next, 1)) < work->count)
        work->task(work->context, index);
    return NULL;
}

static uint64_t cpu_count(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint64_t)CPU_COUNT(&set);
    return 1; /* more CPUs than the set holds, or none told: the work is done all the same */
}

void cli_parallel(void (*task)(void *context, uint64_t index), void *context, uint64_t count)
{
    struct work work = {task, context, count, 0};
    pthread_t threads[THREADS_MAX];
    uint64_t wanted = cpu_count(), started = 0;

    if (wanted > count)
        wanted = count;
    if (wanted > THREADS_MAX)
        wanted = THREADS_MAX;
    /* The calling thread is one of them. */
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, work_on, &work) == 0)
        started++;
    work_on(&work);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

/* --- Progress -------------------------------------------------------------------------------- */

#define FIRST_SHOWN_MS 1000
#define SHOWN_EVERY_MS 250

/* Under the mutex. */
static void erase(struct cli_progress *progress)
{
    if (progress->shown)
        fprintf(stderr, "\r\033[K");
    progress->shown = false;
}

static void *show(void *argument)
{
    struct cli_progress *progress = argument;
    struct timespec wake;
    unsigned shown_ms = FIRST_SHOWN_MS;

    clock_gettime(CLOCK_MONOTONIC, &wake);
    wake.tv_sec += FIRST_SHOWN_MS / 1000;
    pthread_mutex_lock(&progress->mutex);
    while (!progress->stop) {
        if (pthread_cond_timedwait(&progress->condition, &progress->mutex, &wake) != ETIMEDOUT)
            continue;
        if (progress->total)
            fprintf(stderr, "\r\033[Kfa-cli: %s: %.0f %%", progress->title,
                    100.0 * (double)atomic_load(&progress->done) / (double)progress->total);
        else
            fprintf(stderr, "\r\033[Kfa-cli: %s: %u s", progress->title, shown_ms / 1000);
        progress->shown = true;
        shown_ms += SHOWN_EVERY_MS;
        wake.tv_nsec += SHOWN_EVERY_MS * 1000000L;
        wake.tv_sec += wake.tv_nsec / 1000000000L;
        wake.tv_nsec %= 1000000000L;
    }
    erase(progress);
    pthread_mutex_unlock(&progress->mutex);
    return NULL;
}

void cli_progress_begin(struct cli_progress *progress, const char *title, uint64_t total)
{
    pthread_condattr_t attributes;

    progress->title = title;
    progress->total = total;
    atomic_init(&progress->done, 0);
    progress->stop = false;
    progress->running = false;
    progress->shown = false;
    if (!isatty(STDERR_FILENO))
        return;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&progress->condition, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&progress->mutex, NULL);
    progress->running = pthread_create(&progress->thread, NULL, show, progress) == 0;
}

void cli_progress_end(struct cli_progress *progress)
{
    if (!progress->running)
        return;
    pthread_mutex_lock(&progress->mutex);
    progress->stop = true;
    pthread_cond_signal(&progress->condition);
    pthread_mutex_unlock(&progress->mutex);
    pthread_join(progress->thread, NULL);
    pthread_cond_destroy(&progress->condition);
    pthread_mutex_destroy(&progress->mutex);
    progress->running = false;
}

void cli_progress_hide(struct cli_progress *progress)
{
    if (!progress->running)
        return;
    pthread_mutex_lock(&progress->mutex);
    erase(progress);
}

void cli_progress_show(struct cli_progress *progress)
{
    if (progress->running)
        pthread_mutex_unlock(&progress->mutex);
}
