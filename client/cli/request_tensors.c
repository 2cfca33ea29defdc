#include "client/cli/npy.h"
#include "client/cli/parallel.h"
#include "client/cli/random.h"
#include "client/cli/request.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- The shape ------------------------------------------------------------------------------- */

static bool same_shape(const uint64_t *a, const uint64_t *b)
{
    return memcmp(a, b, CLI_NPY_DIMS * sizeof *a) == 0;
}

/* The files' shapes become the problem's, if they agree with each other and with the options. */
static enum cli_exit shape_of_files(struct fa_problem *problem,
                                    const struct request_options *options,
                                    const struct cli_npy files[3], struct cli_error *error)
{
    const uint64_t *q = files[REQUEST_Q].shape, *k = files[REQUEST_K].shape,
                   *v = files[REQUEST_V].shape;
    const struct request_shape *shape = &options->shape;
    const uint64_t asked[CLI_NPY_DIMS] = {shape->batch, shape->heads, shape->length, shape->dim};

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < CLI_NPY_DIMS; j++)
            if (files[i].shape[j] > INT32_MAX)
                return cli_fail(error, CLI_USAGE,
                                "%s: a dimension of %" PRIu64 " is over 2147483647", files[i].path,
                                files[i].shape[j]);
    if (q[0] != k[0] || q[3] != k[3])
        return cli_fail(error, CLI_USAGE,
                        "%s: shapes disagree: [B,G,N,D] is (%" PRIu64 ", .., .., %" PRIu64
                        "), but q's [B,H,S,D] is (%" PRIu64 ", .., .., %" PRIu64 ")",
                        files[REQUEST_K].path, k[0], k[3], q[0], q[3]);
    if (!same_shape(k, v))
        return cli_fail(error, CLI_USAGE,
                        "%s: shapes disagree: v is (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                        "), but k is (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ")",
                        files[REQUEST_V].path, v[0], v[1], v[2], v[3], k[0], k[1], k[2], k[3]);
    if (options->shape_given && !same_shape(q, asked))
        return cli_fail(error, CLI_USAGE,
                        "--shape disagrees with %s, which is %" PRIu64 ",%" PRIu64 ",%" PRIu64
                        ",%" PRIu64 "; leave it out",
                        files[REQUEST_Q].path, q[0], q[1], q[2], q[3]);
    if (options->kv_heads_given && options->kv_heads != k[1])
        return cli_fail(error, CLI_USAGE, "--kv-heads disagrees with %s, which has %" PRIu64,
                        files[REQUEST_K].path, k[1]);
    if (options->kv_len_given && options->kv_len != k[2])
        return cli_fail(error, CLI_USAGE, "--kv-len disagrees with %s, which has %" PRIu64,
                        files[REQUEST_K].path, k[2]);
    problem->batch = (uint32_t)q[0];
    problem->heads = (uint32_t)q[1];
    problem->q_len = (uint32_t)q[2];
    problem->head_dim = (uint32_t)q[3];
    problem->kv_heads = (uint32_t)k[1];
    problem->kv_len = (uint32_t)k[2];
    return CLI_OK;
}

static void shape_of_options(struct fa_problem *problem, const struct request_options *options)
{
    problem->batch = options->shape.batch;
    problem->heads = options->shape.heads;
    problem->q_len = options->shape.length;
    problem->head_dim = options->shape.dim;
    problem->kv_heads = options->kv_heads_given ? options->kv_heads : problem->heads;
    problem->kv_len = options->kv_len_given ? options->kv_len : problem->q_len;
}

/* Says which option or file is to blame. */
static enum cli_exit refuse_problem(const struct request_options *options,
                                    const struct fa_error *wrong, struct cli_error *error)
{
    static const char *const option_of[][2] = {{"kv_heads", "--kv-heads"},
                                               {"kv_len", "--kv-len"},
                                               {"scale", "--scale"},
                                               {"mask", "--mask"}};
    const bool of_k = !strncmp(wrong->field, "kv_", 3), files = options->inputs[REQUEST_Q] != NULL;
    const char *from = options->shape_from ? options->shape_from : "--shape";

    for (size_t i = 0; i < sizeof option_of / sizeof option_of[0] && !(files && of_k); i++)
        if (!strcmp(wrong->field, option_of[i][0]))
            return cli_fail(error, CLI_USAGE, "%s: %s", option_of[i][1], wrong->text);
    if (files)
        from = options->inputs[of_k ? REQUEST_K : REQUEST_Q];
    return cli_fail(error, CLI_USAGE, "%s: %s%s%s", from, wrong->field, *wrong->field ? ": " : "",
                    wrong->text);
}

/* Completes the problem and checks it as the daemon will. */
static enum cli_exit complete_problem(struct fa_problem *problem,
                                      const struct request_options *options,
                                      struct cli_error *error)
{
    struct fa_error wrong = {0};

    problem->dtype = FA_DTYPE_FLOAT32;
    problem->mask = options->mask;
    problem->scale = options->scale_given
                         ? options->scale
                         : fa_default_scale(problem->head_dim ? problem->head_dim : 1);
    fa_set_packed(problem);
    if (fa_problem_check(problem, &wrong) == FA_OK)
        return CLI_OK;
    return refuse_problem(options, &wrong, error);
}

enum cli_exit request_check_shape(const struct request_options *options, struct cli_error *error)
{
    struct fa_problem problem = {0};

    shape_of_options(&problem, options);
    return complete_problem(&problem, options, error);
}

/* --- Inputs ---------------------------------------------------------------------------------- */

#define CHUNK ((uint64_t)1 << 18) /* elements a task: some milliseconds; even, as streams need */

struct generation {
    struct request_tensors *tensors;
    uint64_t seed;
    uint64_t chunks[3];
    struct cli_progress progress;
};

static uint64_t chunks_of(uint64_t count)
{
    return count / CHUNK + (count % CHUNK != 0);
}

static void generate_chunk(void *context, uint64_t index)
{
    struct generation *generation = context;
    struct request_tensors *tensors = generation->tensors;
    uint64_t left, tensor = 0;

    while (index >= generation->chunks[tensor])
        index -= generation->chunks[tensor++];
    left = tensors->count[tensor] - index * CHUNK;
    cli_random_normal(generation->seed, tensor, index * CHUNK,
                      tensors->data[tensor] + index * CHUNK, left < CHUNK ? left : CHUNK);
    atomic_fetch_add(&generation->progress.done, 1);
}

static void generate(struct request_tensors *tensors, uint64_t seed)
{
    struct generation generation = {.tensors = tensors, .seed = seed};
    uint64_t total = 0;

    for (size_t i = 0; i < 3; i++)
        total += generation.chunks[i] = chunks_of(tensors->count[i]);
    cli_progress_begin(&generation.progress, "making random input", total);
    cli_parallel(generate_chunk, &generation, total);
    cli_progress_end(&generation.progress);
}

static enum cli_exit init_from_files(struct request_tensors *out,
                                     const struct request_options *options, struct cli_npy files[3],
                                     struct cli_error *error)
{
    struct cli_progress progress;
    enum cli_exit code = CLI_OK;

    for (size_t i = 0; i < 3; i++)
        if (cli_npy_open(&files[i], options->inputs[i], CLI_NPY_DIMS, error) != CLI_OK)
            return error->code;
    if (shape_of_files(&out->problem, options, files, error) != CLI_OK ||
        complete_problem(&out->problem, options, error) != CLI_OK ||
        request_make_room(out, options, error) != CLI_OK)
        return error->code;
    cli_progress_begin(&progress, "reading", 0);
    for (size_t i = 0; i < 3 && code == CLI_OK; i++)
        code = cli_npy_read(&files[i], out->data[i], error);
    cli_progress_end(&progress);
    return code;
}

enum cli_exit request_tensors_init(struct request_tensors *out,
                                   const struct request_options *options, struct cli_error *error)
{
    struct cli_npy files[3] = {0};

    *out = (struct request_tensors){0};
    if (options->inputs[REQUEST_Q]) {
        enum cli_exit code = init_from_files(out, options, files, error);

        for (size_t i = 0; i < 3; i++)
            cli_npy_close(&files[i]);
        return code;
    }
    shape_of_options(&out->problem, options);
    if (complete_problem(&out->problem, options, error) != CLI_OK ||
        request_make_room(out, options, error) != CLI_OK)
        return error->code;
    generate(out, options->seed);
    return CLI_OK;
}
