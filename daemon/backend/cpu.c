#include "daemon/backend/cpu.h"

#include "daemon/backend/host.h"
#include "daemon/backend/layout.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Scratch larger than this is given back after the range that needed it. */
#define SCRATCH_KEPT ((size_t)16 << 20)

/* Copies up to this size are made on the loop thread. */
#define COPY_AT_ONCE ((size_t)64 << 10)

/* Larger ones are made in pieces, each a fraction of a millisecond, so that one client's long copy
 * lets the short ones of others pass. */
#define PIECE ((size_t)1 << 20)

/* Ranges estimated to take no longer, over tensors that span no more, run on the loop thread:
 * handing one over and being woken by its end costs twice as much. Tensors that span more could
 * make it wait for page faults. */
#define RANGE_AT_ONCE_S 10e-6
#define SPAN_AT_ONCE    ((uint64_t)128 << 10)

/* And they may take a third of the loop's time, over about a millisecond, lest estimates that are
 * wrong hold it up. */
#define AT_ONCE_PART      3u
#define AT_ONCE_WINDOW_NS 1000000u

struct cpu_backend {
    struct fad_backend base;
    struct fad_device device;
    uint32_t streams;
    struct fad_scratch scratch; /* of ranges that run on the loop thread */
    uint64_t at_once_paid_ns;   /* until when they have used up their part of the loop's time */
    uint32_t worker_count;
    struct fad_worker workers[]; /* one a stream, then one for copies and one for closing regions */
};

/* For what must not wait behind ranges. */
#define ODD_WORKERS 2u

static struct fad_worker *copier(struct fad_backend *backend)
{
    struct cpu_backend *cpu = fad_container_of(backend, struct cpu_backend, base);
    return &cpu->workers[cpu->streams];
}

static struct fad_worker *closer(struct fad_backend *backend)
{
    return copier(backend) + 1;
}

/* --- Calls ----------------------------------------------------------------------------------- */

static bool fit_scratch(struct fad_scratch *scratch, size_t needed)
{
    if (needed <= scratch->size)
        return true;
    free(scratch->memory);
    scratch->memory = needed > SIZE_MAX - 63 ? NULL : aligned_alloc(64, (needed + 63) / 64 * 64);
    scratch->size = scratch->memory ? needed : 0;
    return scratch->memory != NULL;
}

static bool run_range(struct fad_op *op, void *where)
{
    struct fad_range_op *range = op->subject;
    struct fad_scratch *scratch = where;

    if (!fit_scratch(scratch,
                     range->kernel->scratch(range->launch.problem, range->launch.range.count))) {
        op->status = FA_RESOURCE_EXHAUSTED;
        op->text = "the system gave no memory for the kernel's scratch";
        return false;
    }
    range->launch.scratch = scratch->memory;
    range->launch.stream = NULL;
    op->status = range->kernel->launch(&range->launch);
    if (scratch->size > SCRATCH_KEPT) {
        free(scratch->memory);
        *scratch = (struct fad_scratch){NULL, 0};
    }
    return false;
}

/* Bytes that the tensors reach over, gaps included. */
static uint64_t spans(const struct fa_problem *problem)
{
    const struct fa_extents q = fa_q_extents(problem), kv = fa_kv_extents(problem);
    const struct fa_extents lse = fa_lse_extents(problem);
    uint64_t elements[5] = {0};

    (void)fa_span(q, problem->q, &elements[0]);
    (void)fa_span(kv, problem->k, &elements[1]);
    (void)fa_span(kv, problem->v, &elements[2]);
    (void)fa_span(q, problem->o, &elements[3]);
    (void)fa_span(lse, problem->lse, &elements[4]);
    for (int i = 1; i < 5; i++) /* none fills memory, so that no sum overflows */
        elements[0] += elements[i];
    return elements[0] * fa_dtype_bytes(problem->dtype);
}

static bool is_short(const struct fad_range_op *range)
{
    const struct fa_problem *problem = range->launch.problem;
    double part = (double)range->launch.range.count / (double)range->kernel->units(problem);

    return fa_kernel_seconds(range->kernel, problem) * part <= RANGE_AT_ONCE_S &&
           spans(problem) <= SPAN_AT_ONCE;
}

static int cpu_launch_range(struct fad_backend *backend, struct fad_range_op *range)
{
    struct cpu_backend *cpu = fad_container_of(backend, struct cpu_backend, base);

    assert(range->device == 0 && range->stream < cpu->streams);
    fad_op_prepare(&range->op, run_range, range);
    if (range->kernel->in_order || !is_short(range) ||
        cpu->at_once_paid_ns > uv_hrtime() + AT_ONCE_WINDOW_NS) {
        fad_worker_give(&cpu->workers[range->stream], &range->op);
        return 0;
    }
    fad_op_perform(&range->op, &cpu->scratch, backend->completions);
    if (cpu->at_once_paid_ns < range->op.started_ns)
        cpu->at_once_paid_ns = range->op.started_ns;
    cpu->at_once_paid_ns += AT_ONCE_PART * (range->op.finished_ns - range->op.started_ns);
    return 0;
}

static bool run_copy(struct fad_op *op, void *scratch)
{
    struct fad_copy *copy = op->subject;

    (void)scratch;
    fad_copy_step(copy, copy->size < PIECE ? copy->size : PIECE);
    return copy->size > 0;
}

static int cpu_copy(struct fad_backend *backend, struct fad_copy *copy)
{
    fad_op_prepare(&copy->op, run_copy, copy);
    if (copy->size <= COPY_AT_ONCE)
        fad_op_perform(&copy->op, NULL, backend->completions);
    else
        fad_worker_give(copier(backend), &copy->op);
    return 0;
}

static int cpu_region_open(struct fad_backend *backend, struct fad_region *region,
                           struct fad_op *op)
{
    int status;

    assert(region->source.kind != FAD_REGION_IPC);
    if ((status = fad_host_open(region)) != 0)
        return status;
    fad_op_prepare(op, NULL, NULL);
    fad_completions_push(backend->completions, op);
    return 0;
}

static int cpu_region_close(struct fad_backend *backend, struct fad_region *region,
                            struct fad_op *op)
{
    fad_host_close(region, op, closer(backend));
    return 0;
}

static void *cpu_host_alloc(struct fad_backend *backend, size_t size)
{
    (void)backend;
    return fad_host_alloc(size);
}

static void cpu_host_free(struct fad_backend *backend, void *memory, size_t size)
{
    fad_host_free(memory, size, closer(backend));
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
        fad_worker_end(&cpu->workers[i]);
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
    count = streams + ODD_WORKERS;
    cpu = calloc(1, sizeof *cpu + count * sizeof cpu->workers[0]);
    if (!cpu) {
        fa_error_set(error, FA_INTERNAL, "backend", "no memory for %u workers", count);
        return -ENOMEM;
    }
    cpu->streams = streams;
    describe_device(&cpu->device, streams);
    cpu->base = (struct fad_backend){.ops = &fad_backend_cpu,
                                     .opens_ipc = false,
                                     .separate = false,
                                     .completions = completions,
                                     .devices = &cpu->device,
                                     .device_count = 1};
    while (cpu->worker_count < count) {
        int r = fad_worker_begin(&cpu->workers[cpu->worker_count], completions);
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
