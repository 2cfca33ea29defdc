#include "client/cuda_ffma.h"

#include "client/cuda_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The loop -------------------------------------------------------------------------------- */

/* Eight warps on each quarter of an SM with eight chains each: far more than hide the latency. */
enum { THREADS = 512, BLOCKS = 2, CHAINS = 8, UNROLL = 16, STEPS = 2048 };

#define FLOPS_OF_THREAD (2.0 * STEPS * CHAINS * UNROLL)

static const char before[] = ".version 7.0\n"
                             ".target sm_80\n"
                             ".address_size 64\n"
                             ".visible .entry ffma(.param .u64 never)\n"
                             ".maxntid %d, 1, 1\n"
                             ".minnctapersm %d\n"
                             "{\n"
                             ".reg .pred %%p;\n"
                             ".reg .b32 %%thread, %%block, %%step;\n"
                             ".reg .b64 %%address;\n"
                             ".reg .f32 %%a, %%b, %%sum, %%x<%d>;\n"
                             "mov.u32 %%thread, %%tid.x;\n"
                             "mov.u32 %%block, %%ctaid.x;\n"
                             "cvt.rn.f32.u32 %%a, %%thread;\n"
                             "cvt.rn.f32.u32 %%b, %%block;\n"
                             "fma.rn.f32 %%a, %%a, 0fB3D6BF95, 0f3F800000;\n" /* 1 - 1e-7 a */
                             "mul.rn.f32 %%b, %%b, 0f33D6BF95;\n"             /* 1e-7 b */
                             "mov.f32 %%sum, 0f00000000;\n"
                             "mov.u32 %%step, %d;\n";

/* The sum is never -1, which the compiler does not know: it has to compute it. */
static const char after[] = "setp.neu.f32 %p, %sum, 0fBF800000;\n"
                            "@%p bra done;\n"
                            "ld.param.u64 %address, [never];\n"
                            "st.global.f32 [%address], %sum;\n"
                            "done:\n"
                            "ret;\n"
                            "}\n";

/* Writes the loop in PTX: each chain's x = x a + b, in turn. */
static bool write_loop(char *out, size_t size)
{
    FILE *text = fmemopen(out, size, "w");

    if (!text)
        return false;
    fprintf(text, before, THREADS, BLOCKS, CHAINS, STEPS);
    for (int i = 0; i < CHAINS; i++)
        fprintf(text, "add.rn.f32 %%x%d, %%a, 0f3F80000%d;\n", i, i);
    fputs("again:\n", text);
    for (int i = 0; i < UNROLL * CHAINS; i++)
        fprintf(text, "fma.rn.f32 %%x%d, %%x%d, %%a, %%b;\n", i % CHAINS, i % CHAINS);
    fputs("sub.u32 %step, %step, 1;\n"
          "setp.ne.u32 %p, %step, 0;\n"
          "@%p bra again;\n",
          text);
    for (int i = 0; i < CHAINS; i++)
        fprintf(text, "add.rn.f32 %%sum, %%sum, %%x%d;\n", i);
    fputs(after, text);
    return fclose(text) == 0;
}

/* --- The driver ------------------------------------------------------------------------------ */

enum { SUCCESS = 0, ATTRIBUTE_PROCESSORS = 16 }; /* CUresult, CUdevice_attribute */

struct driver {
    int (*init)(unsigned flags);
    int (*error_name)(int result, const char **out);
    int (*count)(int *out);
    int (*device)(int *out, int ordinal);
    int (*uuid)(void *out, int device);
    int (*attribute)(int *out, int attribute, int device);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*load)(void **module, const void *image);
    int (*unload)(void *module);
    int (*function)(void **out, void *module, const char *name);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **parameters, void **extra);
    int (*event_create)(void **out, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed)(float *milliseconds, void *start, void *end);
};

#define AT(member) offsetof(struct driver, member)
static const struct fa_cuda_symbol functions[] = {
    {"cuInit", AT(init)},
    {"cuGetErrorName", AT(error_name)},
    {"cuDeviceGetCount", AT(count)},
    {"cuDeviceGet", AT(device)},
    {"cuDeviceGetUuid_v2", AT(uuid)},
    {"cuDeviceGetAttribute", AT(attribute)},
    {"cuDevicePrimaryCtxRetain", AT(retain)},
    {"cuDevicePrimaryCtxRelease_v2", AT(release)},
    {"cuCtxPushCurrent_v2", AT(push)},
    {"cuCtxPopCurrent_v2", AT(pop)},
    {"cuModuleLoadData", AT(load)},
    {"cuModuleUnload", AT(unload)},
    {"cuModuleGetFunction", AT(function)},
    {"cuLaunchKernel", AT(launch)},
    {"cuEventCreate", AT(event_create)},
    {"cuEventDestroy_v2", AT(event_destroy)},
    {"cuEventRecord", AT(event_record)},
    {"cuEventSynchronize", AT(event_wait)},
    {"cuEventElapsedTime", AT(event_elapsed)},
};

struct ffma {
    struct driver driver;
    int device, processors;
    bool retained;
    void *context, *module, *function, *start, *end;
};

/* Whether the call succeeded, else *error says what of the driver's failed. */
static bool succeeded(const struct ffma *ffma, int result, const char *what, struct fa_error *error)
{
    const char *name = NULL;

    if (result == SUCCESS)
        return true;
    if (ffma->driver.error_name(result, &name) != SUCCESS || !name)
        name = "an unknown error";
    fa_error_set(error, FA_UNAVAILABLE, NULL, "the CUDA driver cannot %s: %s", what, name);
    return false;
}

static bool find_device(struct ffma *ffma, const uint8_t uuid[16], struct fa_error *error)
{
    const struct driver *driver = &ffma->driver;
    uint8_t found[16];
    int count;

    if (!succeeded(ffma, driver->init(0), "start", error) ||
        !succeeded(ffma, driver->count(&count), "count its devices", error))
        return false;
    for (int i = 0; i < count; i++)
        if (driver->device(&ffma->device, i) == SUCCESS &&
            driver->uuid(found, ffma->device) == SUCCESS && memcmp(found, uuid, sizeof found) == 0)
            return succeeded(
                ffma, driver->attribute(&ffma->processors, ATTRIBUTE_PROCESSORS, ffma->device),
                "tell a device's size", error);
    fa_error_set(error, FA_NOT_FOUND, "uuid", "this process does not see the daemon's device");
    return false;
}

/* With the context current. */
static bool ready(struct ffma *ffma, struct fa_error *error)
{
    const struct driver *driver = &ffma->driver;
    char loop[8192];

    if (!write_loop(loop, sizeof loop)) {
        fa_error_set(error, FA_INTERNAL, NULL, "the FFMA loop could not be written");
        return false;
    }
    return succeeded(ffma, driver->load(&ffma->module, loop), "compile the FFMA loop", error) &&
           succeeded(ffma, driver->function(&ffma->function, ffma->module, "ffma"),
                     "find the FFMA loop", error) &&
           succeeded(ffma, driver->event_create(&ffma->start, 0), "make an event", error) &&
           succeeded(ffma, driver->event_create(&ffma->end, 0), "make an event", error);
}

static bool enter(struct ffma *ffma, struct fa_error *error)
{
    return succeeded(ffma, ffma->driver.push(ffma->context), "use a context", error);
}

static void leave(const struct ffma *ffma)
{
    void *context;

    ffma->driver.pop(&context);
}

struct ffma *ffma_begin(const uint8_t uuid[16], struct fa_error *error)
{
    struct ffma *ffma = calloc(1, sizeof *ffma);
    struct fa_cuda_lack lack;
    bool is_ready;

    if (!ffma) {
        fa_error_set(error, FA_RESOURCE_EXHAUSTED, NULL, "no memory");
        return NULL;
    }
    if (!fa_cuda_load(&ffma->driver, functions, sizeof functions / sizeof functions[0], &lack)) {
        fa_error_set(error, FA_UNAVAILABLE, NULL, "%s: %s",
                     lack.function ? "the CUDA driver here is too old" : "no CUDA driver here",
                     lack.why);
        free(ffma);
        return NULL;
    }
    ffma->retained =
        find_device(ffma, uuid, error) &&
        succeeded(ffma, ffma->driver.retain(&ffma->context, ffma->device), "make a context", error);
    is_ready = ffma->retained && enter(ffma, error);
    if (is_ready) {
        is_ready = ready(ffma, error);
        leave(ffma);
    }
    if (is_ready)
        return ffma;
    ffma_end(ffma);
    return NULL;
}

void ffma_end(struct ffma *ffma)
{
    struct fa_error unwanted;

    if (!ffma)
        return;
    if (ffma->retained && enter(ffma, &unwanted)) {
        if (ffma->start)
            ffma->driver.event_destroy(ffma->start);
        if (ffma->end)
            ffma->driver.event_destroy(ffma->end);
        if (ffma->module)
            ffma->driver.unload(ffma->module);
        leave(ffma);
    }
    if (ffma->retained)
        ffma->driver.release(ffma->device);
    free(ffma);
}

double ffma_tflops(struct ffma *ffma, struct fa_error *error)
{
    const struct driver *driver = &ffma->driver;
    const unsigned blocks = BLOCKS * (unsigned)ffma->processors;
    uint64_t never = 0;
    void *parameters[] = {&never};
    float milliseconds = 0;
    bool ran;

    if (!enter(ffma, error))
        return NAN;
    ran = succeeded(ffma, driver->event_record(ffma->start, NULL), "record an event", error) &&
          succeeded(ffma,
                    driver->launch(ffma->function, blocks, 1, 1, THREADS, 1, 1, 0, NULL, parameters,
                                   NULL),
                    "launch the FFMA loop", error) &&
          succeeded(ffma, driver->event_record(ffma->end, NULL), "record an event", error) &&
          succeeded(ffma, driver->event_wait(ffma->end), "run the FFMA loop", error) &&
          succeeded(ffma, driver->event_elapsed(&milliseconds, ffma->start, ffma->end),
                    "time the FFMA loop", error);
    leave(ffma);
    return ran ? FLOPS_OF_THREAD * THREADS * blocks / (milliseconds * 1e9) : NAN;
}
