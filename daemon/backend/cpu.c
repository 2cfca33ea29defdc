#include "daemon/backend/cpu.h"

#include "daemon/backend/completions.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Scratch larger than this is given back after the range that needed it. */
#define SCRATCH_KEPT ((size_t)16 << 20)

/* Regions up to this size are unmapped on the loop thread. */
#define UNMAP_AT_ONCE ((size_t)256 << 10)

/* From this size on, memory is asked for in huge pages: faulting in 75 MB of small ones costs more
 * than receiving the bytes. */
#define HUGE_PAGE ((size_t)2 << 20)

/* Ranges estimated to take no longer run on the loop thread: handing one over and being woken by
 * its end costs twice as much. */
#define RANGE_AT_ONCE_S 10e-6

/* What a kernel needs besides its tensors; kept from one range to the next. */
struct scratch {
    void *memory;
    size_t size;
};

struct worker {
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    STAILQ_HEAD(cpu_ops, fad_op) ops; /* under lock, as is stop */
    bool stop;
    struct fad_completions *completions;
    struct scratch scratch; /* the thread's own */
};

struct cpu_backend {
    struct fad_backend base;
    struct fad_device device;
    uint32_t streams;
    struct scratch scratch; /* of ranges that run on the loop thread */
    uint32_t worker_count;
    struct worker workers[]; /* one a stream, and a last one for calls that belong to none */
};

/* --- Workers --------------------------------------------------------------------------------- */

static void prepare(struct fad_op *op, void (*work)(struct fad_op *op, void *scratch),
                    void *subject)
{
    op->status = 0;
    op->text = NULL;
    op->work = work;
    op->subject = subject;
}

/* Does a prepared call on this thread. */
static void perform(struct fad_op *op, struct scratch *scratch, struct fad_completions *completions)
{
    op->started_ns = uv_hrtime();
    op->work(op, scratch);
    op->finished_ns = uv_hrtime();
    fad_completions_push(completions, op);
}

static void worker_main(void *argument)
{
    struct worker *worker = argument;

    uv_mutex_lock(&worker->lock);
    for (;;) {
        struct fad_op *op = STAILQ_FIRST(&worker->ops);
        if (op) {
            STAILQ_REMOVE_HEAD(&worker->ops, link);
            uv_mutex_unlock(&worker->lock);
            perform(op, &worker->scratch, worker->completions);
            uv_mutex_lock(&worker->lock);
        } else if (worker->stop) {
            break;
        } else {
            uv_cond_wait(&worker->wake, &worker->lock);
        }
    }
    uv_mutex_unlock(&worker->lock);
    free(worker->scratch.memory);
}

static void hand_over(struct worker *worker, struct fad_op *op)
{
    uv_mutex_lock(&worker->lock);
    STAILQ_INSERT_TAIL(&worker->ops, op, link);
    uv_cond_signal(&worker->wake);
    uv_mutex_unlock(&worker->lock);
}

/* For what must not wait behind ranges. */
static struct worker *odd_jobs(struct fad_backend *backend)
{
    struct cpu_backend *cpu = fad_container_of(backend, struct cpu_backend, base);
    return &cpu->workers[cpu->streams];
}

static void worker_end(struct worker *worker)
{
    uv_mutex_lock(&worker->lock);
    worker->stop = true;
    uv_cond_signal(&worker->wake);
    uv_mutex_unlock(&worker->lock);
    uv_thread_join(&worker->thread);
    assert(STAILQ_EMPTY(&worker->ops));
    uv_cond_destroy(&worker->wake);
    uv_mutex_destroy(&worker->lock);
}

static int worker_begin(struct worker *worker, struct fad_completions *completions)
{
    int r;
    STAILQ_INIT(&worker->ops);
    worker->completions = completions;
    if ((r = uv_mutex_init(&worker->lock)) < 0)
        return r;
    if ((r = uv_cond_init(&worker->wake)) < 0)
        goto fail_lock;
    if ((r = uv_thread_create(&worker->thread, worker_main, worker)) < 0)
        goto fail_cond;
    return 0;
fail_cond:
    uv_cond_destroy(&worker->wake);
fail_lock:
    uv_mutex_destroy(&worker->lock);
    return r;
}

/* --- Calls ----------------------------------------------------------------------------------- */

static bool fit_scratch(struct scratch *scratch, size_t needed)
{
    if (needed <= scratch->size)
        return true;
    free(scratch->memory);
    scratch->memory = needed > SIZE_MAX - 63 ? NULL : aligned_alloc(64, (needed + 63) / 64 * 64);
    scratch->size = scratch->memory ? needed : 0;
    return scratch->memory != NULL;
}

static void run_range(struct fad_op *op, void *where)
{
    struct fad_range_op *range = op->subject;
    struct scratch *scratch = where;

    if (!fit_scratch(scratch, range->kernel->scratch(range->launch.problem))) {
        op->status = FA_RESOURCE_EXHAUSTED;
        op->text = "the system gave no memory for the kernel's scratch";
        return;
    }
    range->launch.scratch = scratch->memory;
    range->launch.stream = NULL;
    op->status = range->kernel->launch(&range->launch);
    if (scratch->size > SCRATCH_KEPT) {
        free(scratch->memory);
        *scratch = (struct scratch){NULL, 0};
    }
}

static bool is_short(const struct fad_range_op *range)
{
    const struct fa_problem *problem = range->launch.problem;
    double part = (double)range->launch.range.count / (double)range->kernel->units(problem);

    return fa_kernel_seconds(range->kernel, problem) * part <= RANGE_AT_ONCE_S;
}

static int cpu_launch_range(struct fad_backend *backend, struct fad_range_op *range)
{
    struct cpu_backend *cpu = fad_container_of(backend, struct cpu_backend, base);

    assert(range->device == 0 && range->stream < cpu->streams);
    prepare(&range->op, run_range, range);
    if (!range->kernel->in_order && is_short(range))
        perform(&range->op, &cpu->scratch, backend->completions);
    else
        hand_over(&cpu->workers[range->stream], &range->op);
    return 0;
}

static void run_copy(struct fad_op *op, void *scratch)
{
    struct fad_copy *copy = op->subject;
    (void)scratch;
    memcpy(copy->to, copy->from, copy->size);
}

static int cpu_copy(struct fad_backend *backend, struct fad_copy *copy)
{
    prepare(&copy->op, run_copy, copy);
    hand_over(odd_jobs(backend), &copy->op);
    return 0;
}

/* A kernel before 6.7 maps nothing MAP_SHARED that is sealed against writing, not even to read.
 * Pages of a private mapping that nobody writes to are the file's own. */
static void *map_memfd(const struct fad_region_source *source)
{
    int protection = PROT_READ | (source->writable ? PROT_WRITE : 0), reason;
    void *base = mmap(NULL, source->size, protection, source->writable ? MAP_SHARED : MAP_PRIVATE,
                      source->fd, 0);

    reason = errno;
    close(source->fd);
    errno = reason;
    return base;
}

static int cpu_region_open(struct fad_backend *backend, struct fad_region *region,
                           struct fad_op *op)
{
    const struct fad_region_source *source = &region->source;

    assert(source->kind != FAD_REGION_IPC);
    region->base =
        source->kind == FAD_REGION_MEMFD
            ? map_memfd(source)
            : mmap(NULL, source->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region->base == MAP_FAILED) /* anything but memory: a seal added since it was checked */
        return errno == ENOMEM ? FA_RESOURCE_EXHAUSTED : FA_INVALID_ARGUMENT;
    region->size = source->size;
    prepare(op, NULL, NULL);
    fad_completions_push(backend->completions, op);
    return 0;
}

static void run_region_close(struct fad_op *op, void *scratch)
{
    struct fad_region *region = op->subject;
    (void)scratch;
    munmap(region->base, region->size);
}

/* Unmapping a large region takes milliseconds: not on the loop. A small one takes less than handing
 * it over. */
static int cpu_region_close(struct fad_backend *backend, struct fad_region *region,
                            struct fad_op *op)
{
    prepare(op, run_region_close, region);
    if (region->size <= UNMAP_AT_ONCE)
        perform(op, NULL, backend->completions);
    else
        hand_over(odd_jobs(backend), op);
    return 0;
}

static void *cpu_host_alloc(struct fad_backend *backend, size_t size)
{
    size_t align = size >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *memory;

    (void)backend;
    if (size > SIZE_MAX - align)
        return NULL;
    size = (size + align - 1) / align * align;
    memory = aligned_alloc(align, size ? size : align);
    if (memory && align == HUGE_PAGE)
        madvise(memory, size, MADV_HUGEPAGE); /* a hint: without it small pages serve */
    return memory;
}

static void cpu_host_free(struct fad_backend *backend, void *memory, size_t size)
{
    (void)backend;
    (void)size;
    free(memory);
}

/* --- Begin and end --------------------------------------------------------------------------- */

static void describe_device(struct fad_device *device, uint32_t workers)
{
    char line[256];
    FILE *info = fopen("/proc/cpuinfo", "r");

    snprintf(device->name, sizeof device->name, "CPU");
    while (info && fgets(line, sizeof line, info)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value && value[1]) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(device->name, sizeof device->name, "%.*s", (int)sizeof device->name - 1,
                     value + 2);
            break;
        }
    }
    if (info)
        fclose(info);
    device->target = (struct fa_target){FA_CPU, 0};
    device->memory_bytes = uv_get_total_memory();
    device->streams = workers;
}

static void cpu_deinit(struct fad_backend *backend)
{
    if (!backend)
        return;
    struct cpu_backend *cpu = fad_container_of(backend, struct cpu_backend, base);
    for (uint32_t i = 0; i < cpu->worker_count; i++)
        worker_end(&cpu->workers[i]);
    free(cpu->scratch.memory);
    free(cpu);
}

static int cpu_probe(const struct fad_backend_config *config, struct fad_completions *completions,
                     struct fad_backend **out, struct fa_error *error)
{
    uint32_t streams = config->workers ? config->workers : uv_available_parallelism(), count;
    struct cpu_backend *cpu;

    if (streams > FAD_STREAMS_MAX)
        streams = FAD_STREAMS_MAX;
    count = streams + 1;
    cpu = calloc(1, sizeof *cpu + count * sizeof cpu->workers[0]);
    if (!cpu) {
        fa_error_set(error, FA_INTERNAL, "backend", "no memory for %u workers", count);
        return -ENOMEM;
    }
    cpu->streams = streams;
    describe_device(&cpu->device, streams);
    cpu->base = (struct fad_backend){.ops = &fad_backend_cpu,
                                     .opens_ipc = false,
                                     .completions = completions,
                                     .devices = &cpu->device,
                                     .device_count = 1};
    while (cpu->worker_count < count) {
        int r = worker_begin(&cpu->workers[cpu->worker_count], completions);
        if (r < 0) {
            fa_error_set(error, FA_INTERNAL, "backend", "cannot start worker %u: %s",
                         cpu->worker_count, uv_strerror(r));
            cpu_deinit(&cpu->base);
            return r;
        }
        cpu->worker_count++;
    }
    *out = &cpu->base;
    return 0;
}

const struct fad_backend_ops fad_backend_cpu = {
    .name = "cpu",
    .probe = cpu_probe,
    .region_open = cpu_region_open,
    .region_close = cpu_region_close,
    .copy = cpu_copy,
    .launch_range = cpu_launch_range,
    .poll = NULL,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .deinit = cpu_deinit,
};
