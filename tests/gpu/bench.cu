/* bench: how long the CUDA kernels take on the device here, by themselves. Each is checked before
 * it is timed. The versions take turns in one run, with the FFMA loop, so that the device's clock
 * is the same for all. */
#include "kernels/cuda/cuda.h"
#include "tests/gpu/bench_data.h"
#include "tests/gpu/ffma.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VERSIONS = CUDA_VERSIONS, GRAPH = 20, WARM_UP = 3, REPEAT_MAX = 10000 };
#define LIMIT       1e-5 /* of relative L2 and LSE errors */
#define TIMED_US    4000 /* so many launches are timed at a time, up to GRAPH, as take so long */
#define LONG_US     1e5  /* launches above this are repeated for LONG_TOTAL us only */
#define LONG_TOTAL  5e6  /* or three times */
#define FLUSH_BYTES ((size_t)256 << 20)
#define READ_BYTES  ((size_t)1 << 30)

/* Times of one thing, us. */
struct times {
    double us[REPEAT_MAX];
    int count, wanted;
};

struct contender {
    const struct fa_version *version;
    const struct fa_kernel *kernel;
    size_t state_bytes;
    char *state; /* one for each launch of a graph */
    void *scratch;
    int launches; /* in one timing */
    cudaGraphExec_t graph;
    double error;
    struct times times;
};

static struct fa_problem problem;
static struct fa_tensors tensors;
static struct contender contenders[VERSIONS];
static int repeat = 50;
static bool cold, unaligned;
static char *flush;
static cudaStream_t stream;
static cudaEvent_t start, stop;

/* --- Runs ------------------------------------------------------------------------------------ */

/* Work ahead of the first event, so that the host has enqueued all when the device comes to it. */
static __global__ void wait_kernel(long long cycles)
{
    const long long from = clock64();
    while (clock64() - from < cycles)
        ;
}

static void launch(const struct contender *contender, int index)
{
    const struct fa_launch call = {
        .problem = &problem,
        .tensors = &tensors,
        .problem_count = 1,
        .range = {0, contender->kernel->units(&problem)},
        .state = contender->state + index * contender->state_bytes,
        .scratch = contender->scratch,
        .stream = stream,
    };

    if (contender->kernel->launch(&call) != FA_OK)
        bench_die(contender->kernel->name, "launch failed");
}

/* Runs once into poisoned outputs. False, said, when the result is wrong. */
static bool correct(struct contender *contender)
{
    struct fa_deviation deviation;
    uint64_t nans;

    bench_data_poison();
    if (contender->state)
        CUDA(cudaMemsetAsync(contender->state, 0, contender->state_bytes, stream));
    launch(contender, 0);
    CUDA(cudaStreamSynchronize(stream));
    deviation = bench_data_deviation(&nans);
    contender->error = fa_deviation_l2(&deviation);
    if (nans == 0 && contender->error <= LIMIT && deviation.max_lse <= LIMIT)
        return true;
    printf("%s WRONG: %llu elements NaN, relative L2 %.3g, LSE error %.3g; not timed\n",
           contender->version->name, (unsigned long long)nans, contender->error, deviation.max_lse);
    return false;
}

/* us of whatever run() enqueues. */
template <typename Run> static double timed(Run run)
{
    float ms;

    if (cold)
        CUDA(cudaMemsetAsync(flush, 0, FLUSH_BYTES, stream));
    wait_kernel<<<1, 1, 0, stream>>>(50000);
    CUDA(cudaEventRecord(start, stream));
    run();
    CUDA(cudaEventRecord(stop, stream));
    CUDA(cudaEventSynchronize(stop));
    CUDA(cudaEventElapsedTime(&ms, start, stop));
    return 1e3 * ms;
}

static double time_contender(const struct contender *contender)
{
    if (contender->state)
        CUDA(cudaMemsetAsync(contender->state, 0, contender->launches * contender->state_bytes,
                             stream));
    return timed([&] {
               if (contender->graph)
                   CUDA(cudaGraphLaunch(contender->graph, stream));
               else
                   launch(contender, 0);
           }) /
           contender->launches;
}

/* Warms up, and decides by the time it takes how it is timed. */
static void plan(struct contender *contender)
{
    cudaGraph_t graph;
    double us = 0;

    for (int i = 0; i < WARM_UP; i++)
        us = time_contender(contender);
    contender->times.wanted = repeat;
    if (us > LONG_US && repeat * us > LONG_TOTAL)
        contender->times.wanted = us > LONG_TOTAL / 3 ? 3 : (int)(LONG_TOTAL / us);
    if (us > TIMED_US / 2 || cold)
        return;
    contender->launches = us * (double)GRAPH < TIMED_US ? GRAPH : (int)(TIMED_US / us);
    if (contender->state) {
        CUDA(cudaFree(contender->state));
        contender->state = (char *)bench_allocate(contender->launches * contender->state_bytes);
    }
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < contender->launches; i++)
        launch(contender, i);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&contender->graph, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    time_contender(contender);
}

/* Takes a version in. False when its result is wrong. */
static bool enter(struct contender *contender, const struct fa_version *version,
                  const struct fa_target *target)
{
    const struct fa_kernel *kernel = fa_version_kernel(version, target);
    const char *refusal = kernel ? kernel->refuses(&problem) : "no kernel for this device";

    contender->kernel = NULL;
    if (refusal) {
        printf("%s left out: %s\n", version->name, refusal);
        return true;
    }
    contender->version = version;
    contender->kernel = kernel;
    contender->launches = 1;
    contender->state_bytes = kernel->state(&problem);
    contender->state = (char *)bench_allocate(contender->state_bytes);
    contender->scratch = bench_allocate(kernel->scratch(&problem, kernel->units(&problem)));
    if (!correct(contender)) {
        contender->kernel = NULL;
        return false;
    }
    plan(contender);
    return true;
}

/* --- Reporting ------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(struct times *times, int percent)
{
    qsort(times->us, times->count, sizeof times->us[0], compare);
    return times->us[(times->count - 1) * percent / 100];
}

/* Of q, k, v and o, each once. */
static double tensor_bytes(void)
{
    const double rows = 2.0 * problem.heads * problem.q_len;
    const double keys = 2.0 * problem.kv_heads * problem.kv_len;
    return (rows + keys) * problem.batch * problem.head_dim * sizeof(float);
}

/* All that take part in turns, until each has as many times as it wants. */
static void race(void)
{
    static struct times ffma, clocks, reads;
    void *const memory = bench_allocate(READ_BYTES);
    struct ffma_clock *clock = (struct ffma_clock *)bench_allocate(sizeof *clock), seen;
    double flops = 0, rate, read;

    CUDA(cudaMemset(memory, 0, READ_BYTES));
    for (int round = 0; round < repeat; round++) {
        for (struct contender &contender : contenders)
            if (contender.kernel && contender.times.count < contender.times.wanted)
                contender.times.us[contender.times.count++] = time_contender(&contender);
        ffma.us[ffma.count++] = timed([&] { flops = ffma_launch(clock, stream); });
        CUDA(cudaMemcpy(&seen, clock, sizeof seen, cudaMemcpyDefault));
        clocks.us[clocks.count++] = 1e3 * seen.cycles / seen.nanoseconds;
    }
    for (int round = 0; round < repeat; round++) /* not between the others: L2 is to stay warm */
        reads.us[reads.count++] = timed([&] {
            if (!read_launch(memory, READ_BYTES, stream))
                bench_die("reading memory", "it cannot be launched");
        });
    rate = flops / percentile(&ffma, 50) / 1e6;
    read = READ_BYTES / percentile(&reads, 50) / 1e6;
    printf(
        "FFMA loop %.1f TFLOP/s, reading memory %.2f TB/s, SM clock %.0f MHz (medians of %d in the "
        "same run)\n\n",
        rate, read, percentile(&clocks, 50), ffma.count);
    printf("version  kernel               us       p20       p80  TFLOP/s  %%FFMA   TB/s  %%read  "
           "relative L2\n");
    for (struct contender &contender : contenders) {
        struct times *times = &contender.times;
        if (!contender.kernel)
            continue;
        const double us = percentile(times, 50);
        const double speed = fa_problem_flops(&problem) / us / 1e6;
        const double bytes = tensor_bytes() / us / 1e6;
        printf("%-8s %-14s %9.1f %9.1f %9.1f %8.2f %6.1f %6.2f %6.1f  %.2e  (%d times",
               contender.version->name, contender.kernel->name, us, percentile(times, 20),
               percentile(times, 80), speed, 100 * speed / rate, bytes, 100 * bytes / read,
               contender.error, times->count);
        printf(contender.graph ? ", graphs of %d launches)\n" : ")\n", contender.launches);
    }
}

static void print_functions(void)
{
    printf(
        "\nfunction                     threads  registers  shared (static + dynamic)  blocks\n");
    for (int i = 0; i < CUDA_LISTS; i++) {
        size_t count;
        const struct cuda_function *functions = cuda_functions(i, &count);
        const struct contender *user = &contenders[i == CUDA_DECODE ? VERSIONS - 1 : i];
        for (size_t j = 0; user->kernel && j < count; j++) {
            const struct cuda_function *function = &functions[j];
            cudaFuncAttributes taken;
            int blocks = 0;
            CUDA(cudaFuncGetAttributes(&taken, function->entry));
            if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                    &blocks, function->entry, function->threads, function->shared) != cudaSuccess)
                (void)cudaGetLastError(); /* needs more than the device has: 0 */
            printf("%-28s %7d %10d %11zu + %-11zu %8d\n", function->name, function->threads,
                   taken.numRegs, taken.sharedSizeBytes, function->shared, blocks);
        }
    }
}

static void print_header(int arch)
{
    const time_t now = time(NULL);
    const char *commit = getenv("FA_COMMIT");
    char date[32];
    cudaDeviceProp properties;
    int driver, runtime, ordinal;

    CUDA(cudaGetDevice(&ordinal));
    CUDA(cudaGetDeviceProperties(&properties, ordinal));
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    strftime(date, sizeof date, "%Y-%m-%d", localtime(&now));
    printf("device    %s, compute capability %d.%d, %d SMs\n", properties.name, arch / 10,
           arch % 10, properties.multiProcessorCount);
    printf("software  driver for CUDA %d.%d, runtime %d.%d; %s%s%s\n", driver / 1000,
           driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, date,
           commit && *commit ? ", commit " : "", commit ? commit : "");
    printf("shape     B=%u H=%u M=%u D=%u, N=%u in %u kv heads, mask %s: %.2f GFLOP; L2 %s\n",
           problem.batch, problem.heads, problem.q_len, problem.head_dim, problem.kv_len,
           problem.kv_heads, fa_mask_name(problem.mask), fa_problem_flops(&problem) / 1e9,
           cold ? "cold" : "warm");
    if (unaligned)
        printf("tensors   one element beyond 16 bytes\n");
}

/* --- The command line ------------------------------------------------------------------------ */

static const char usage[] = "usage: bench [--shape B,H,S,D] [--kv-len N] [--kv-heads G] [--mask M]"
                            " [--repeat 50] [--cold] [--unaligned] [VERSION...]";

/* Returns the bits of the versions to run. */
static unsigned parse(int count, char **words)
{
    unsigned chosen = 0, kv_len = 0, kv_heads = 0;

    problem = {.batch = 4,
               .heads = 12,
               .q_len = 2048,
               .head_dim = 64,
               .dtype = FA_DTYPE_FLOAT32,
               .mask = FA_MASK_NONE};
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = i + 1 < count ? words[i + 1] : "";
        char end;
        if (word[0] == 'v' && word[1] >= '0' && word[1] < '0' + VERSIONS && !word[2])
            chosen |= 1u << (word[1] - '0');
        else if (strcmp(word, "--cold") == 0)
            cold = true;
        else if (strcmp(word, "--unaligned") == 0)
            unaligned = true;
        else if ((strcmp(word, "--shape") == 0 &&
                  sscanf(value, "%u,%u,%u,%u%c", &problem.batch, &problem.heads, &problem.q_len,
                         &problem.head_dim, &end) == 4) ||
                 (strcmp(word, "--kv-len") == 0 && sscanf(value, "%u%c", &kv_len, &end) == 1) ||
                 (strcmp(word, "--kv-heads") == 0 && sscanf(value, "%u%c", &kv_heads, &end) == 1) ||
                 (strcmp(word, "--repeat") == 0 && sscanf(value, "%d%c", &repeat, &end) == 1) ||
                 (strcmp(word, "--mask") == 0 && fa_mask_parse(value, &problem.mask)))
            i++;
        else
            bench_die(word, usage);
    }
    problem.kv_len = kv_len ? kv_len : problem.q_len;
    problem.kv_heads = kv_heads ? kv_heads : problem.heads;
    problem.scale = fa_default_scale(problem.head_dim);
    if (repeat < 1 || repeat > REPEAT_MAX)
        bench_die("--repeat", "1 to 10000");
    return chosen ? chosen : (1u << VERSIONS) - 1;
}

int main(int argc, char **argv)
{
    const unsigned chosen = parse(argc, argv);
    struct fa_target target = {FA_CUDA, 0};
    struct fa_error error;
    char text[400];
    size_t count;
    const struct fa_version *versions = fa_versions(&count);
    bool right = true;

    if (fa_problem_check(&problem, &error) != FA_OK ||
        fa_cuda_prepare(&target.arch, &error) != FA_OK) {
        fa_error_format(&error, text, sizeof text);
        bench_die(text, "");
    }
    if (fa_problem_flops(&problem) == 0)
        bench_die("the shape", "has no work in it");
    print_header(target.arch);
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    fa_set_packed(&problem);
    tensors = bench_data_make(&problem, unaligned);
    if (cold)
        flush = (char *)bench_allocate(FLUSH_BYTES);
    for (size_t i = 0; i < count && i < VERSIONS; i++)
        if (chosen >> i & 1)
            right = enter(&contenders[i], &versions[i], &target) && right;
    race();
    print_functions();
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
