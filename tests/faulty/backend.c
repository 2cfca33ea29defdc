#include "daemon/backend/backends.h"
#include "daemon/backend/completions.h"
#include "tests/faulty/faulty.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call that the real backend has, or nobody. */
struct call {
    TAILQ_ENTRY(call) link;
    struct fad_op *op;
    void (*done)(struct fad_op *op);
};

/* One a process: done() is told nothing but the op. */
static struct {
    struct fad_backend base;
    struct fad_backend_ops ops;
    struct fad_backend *inner;
    TAILQ_HEAD(calls, call) calls;
    STAILQ_HEAD(stuck, fad_op) stuck; /* nobody has them until the device is lost */
    struct fad_op own;
    bool lost, hung;
    bool terminates; /* a SIGTERM is to come with the loss */
} faulty;

/* --- Calls ----------------------------------------------------------------------------------- */

static void feign(struct fad_op *op)
{
    op->status = -EIO;
    op->text = "an illegal access was feigned";
}

static struct call *find(const struct fad_op *op)
{
    struct call *call;

    TAILQ_FOREACH (call, &faulty.calls, link)
        if (call->op == op)
            return call;
    abort();
}

/* The loss is there for the daemon to see. */
static void terminate(void)
{
    if (faulty.terminates)
        kill(getpid(), SIGTERM);
    faulty.terminates = false;
}

static void on_done(struct fad_op *op)
{
    struct call *call = find(op);

    op->done = call->done;
    TAILQ_REMOVE(&faulty.calls, call, link);
    free(call);
    if (faulty.hung)
        return;
    if (faulty.lost)
        feign(op);
    if (op->status == -EIO)
        terminate();
    op->done(op);
}

static void watch(struct fad_op *op)
{
    struct call *call = malloc(sizeof *call);

    if (!call)
        abort();
    *call = (struct call){.op = op, .done = op->done};
    op->done = on_done;
    TAILQ_INSERT_HEAD(&faulty.calls, call, link);
}

/* What the real backend said when it was called. */
static int watched(struct fad_op *op, int status)
{
    struct call *call = TAILQ_FIRST(&faulty.calls);

    if (status == 0)
        return 0;
    TAILQ_REMOVE(&faulty.calls, call, link);
    op->done = call->done;
    free(call);
    return status;
}

/* Is the call one that nobody is to have? */
static bool keep_stuck(struct fad_op *op, uint64_t size)
{
    if (size != FAULTY_SIZE_STUCK)
        return false;
    watch(op);
    STAILQ_INSERT_TAIL(&faulty.stuck, op, link);
    return true;
}

static void lose(void)
{
    struct fad_op *op;

    faulty.lost = true;
    while (!faulty.hung && (op = STAILQ_FIRST(&faulty.stuck))) {
        STAILQ_REMOVE_HEAD(&faulty.stuck, link);
        fad_completions_push(faulty.base.completions, op);
    }
}

static int region_open(struct fad_backend *backend, struct fad_region *region, struct fad_op *op)
{
    (void)backend;
    if (faulty.lost)
        return -EIO;
    if (keep_stuck(op, region->source.size))
        return 0;
    watch(op);
    return watched(op, faulty.inner->ops->region_open(faulty.inner, region, op));
}

static int region_close(struct fad_backend *backend, struct fad_region *region, struct fad_op *op)
{
    (void)backend;
    if (faulty.lost)
        return -EIO;
    watch(op);
    return watched(op, faulty.inner->ops->region_close(faulty.inner, region, op));
}

static int copy(struct fad_backend *backend, struct fad_copy *asked)
{
    (void)backend;
    if (faulty.lost)
        return -EIO;
    if (keep_stuck(&asked->op, asked->size))
        return 0;
    watch(&asked->op);
    return watched(&asked->op, faulty.inner->ops->copy(faulty.inner, asked));
}

static int event_wait(struct fad_backend *backend, struct fad_event_wait *wait)
{
    (void)backend;
    if (faulty.lost)
        return -EIO;
    watch(&wait->op);
    return watched(&wait->op, faulty.inner->ops->event_wait(faulty.inner, wait));
}

static int launch_range(struct fad_backend *backend, struct fad_range_op *range)
{
    const double scale = range->launch.problem->scale;
    const bool wanted =
        scale == FAULTY_SCALE_LOSE || scale == FAULTY_SCALE_HANG || scale == FAULTY_SCALE_TERM;
    const bool hurts = strcmp(faulty.ops.name, "cuda") == 0 && faulty_hurt_cuda;

    (void)backend;
    if (faulty.lost)
        return -EIO;
    faulty.terminates |= scale == FAULTY_SCALE_TERM;
    if (wanted && hurts)
        faulty_hurt_cuda(range);
    if (wanted && !hurts) {
        feign(&range->op);
        faulty.hung = scale == FAULTY_SCALE_HANG;
        fad_completions_push(faulty.base.completions, &range->op);
        lose();
        terminate();
        return 0;
    }
    watch(&range->op);
    return watched(&range->op, faulty.inner->ops->launch_range(faulty.inner, range));
}

/* --- The rest is the real one's --------------------------------------------------------------- */

static bool poll_inner(struct fad_backend *backend)
{
    (void)backend;
    return faulty.inner->ops->poll(faulty.inner);
}

static void tick(struct fad_backend *backend)
{
    (void)backend;
    faulty.inner->ops->tick(faulty.inner);
}

static void *host_alloc(struct fad_backend *backend, size_t size)
{
    (void)backend;
    return faulty.inner->ops->host_alloc(faulty.inner, size);
}

static void host_free(struct fad_backend *backend, void *memory, size_t size)
{
    (void)backend;
    faulty.inner->ops->host_free(faulty.inner, memory, size);
}

static void deinit(struct fad_backend *backend)
{
    (void)backend;
    while (faulty.lost) /* as a thread of a driver's may be stuck */
        pause();
    faulty.inner->ops->deinit(faulty.inner);
}

/* --- Begin ----------------------------------------------------------------------------------- */

static void on_own(struct fad_op *op)
{
    (void)op;
}

static void lose_at_start(void)
{
    const char *text = getenv(FAULTY_STARTS);
    const long left = text ? strtol(text, NULL, 10) : 0;
    char less[24];

    if (left <= 0)
        return;
    snprintf(less, sizeof less, "%ld", left - 1);
    setenv(FAULTY_STARTS, less, 1);
    faulty.lost = true;
    faulty.own = (struct fad_op){
        .done = on_own, .status = -EIO, .text = "an illegal access was feigned at the start"};
    fad_completions_push(faulty.base.completions, &faulty.own);
}

static int probe_named(const char *name, const struct fad_backend_config *config,
                       struct fad_completions *completions, struct fad_backend **out,
                       struct fa_error *error)
{
    const int r = fad_backend_named(name)->probe(config, completions, &faulty.inner, error);

    if (r < 0)
        return r;
    TAILQ_INIT(&faulty.calls);
    STAILQ_INIT(&faulty.stuck);
    faulty.ops = (struct fad_backend_ops){
        .name = faulty.inner->ops->name,
        .region_open = region_open,
        .region_close = region_close,
        .copy = copy,
        .event_wait = faulty.inner->ops->event_wait ? event_wait : NULL,
        .launch_range = launch_range,
        .poll = faulty.inner->ops->poll ? poll_inner : NULL,
        .tick = faulty.inner->ops->tick ? tick : NULL,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .deinit = deinit,
    };
    faulty.base = *faulty.inner;
    faulty.base.ops = &faulty.ops;
    lose_at_start();
    *out = &faulty.base;
    return 0;
}

#define PROBE(kind)                                                                        \
    static int probe_##kind(const struct fad_backend_config *config,                       \
                            struct fad_completions *completions, struct fad_backend **out, \
                            struct fa_error *error)                                        \
    {                                                                                      \
        return probe_named(#kind, config, completions, out, error);                        \
    }

PROBE(auto)
PROBE(cuda)
PROBE(cpu)

const struct fad_backend_ops *faulty_backend_named(const char *name)
{
    static const struct fad_backend_ops backends[] = {{.name = "auto", .probe = probe_auto},
                                                      {.name = "cuda", .probe = probe_cuda},
                                                      {.name = "cpu", .probe = probe_cpu}};

    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i].name, name) == 0)
            return &backends[i];
    return NULL;
}
