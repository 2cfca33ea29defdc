#include "client/cli/parallel.h"
#include "client/cli/request.h"

#include <math.h>
#include <stdlib.h>

#define ALL_ROWS_FLOPS UINT64_C(2000000000000) /* up to here every row is compared */
#define TASK_ROWS      64u                     /* consecutive rows a task takes at least ... */
#define TASKS_MAX      65536u                  /* ... and more when there would be more tasks */
#define SAMPLES        64u                     /* rows of a head when not all are compared */
#define EDGE           64u                     /* tiles of every kernel end at its multiples */

struct checking {
    const struct request_tensors *tensors;
    const struct request_output *outputs;
    size_t output_count;
    uint64_t head_rows; /* q_len */
    uint64_t task_rows; /* all rows: how many a task takes */
    uint64_t total;     /* rows of the problem */
    bool sampled;
    uint32_t samples[SAMPLES]; /* ascending, when sampled: a task is one head */
    unsigned sample_count;
    uint64_t tasks;
    /* Of each task one for each output, so that their sums have one order. */
    struct fa_deviation *deviations;
    uint64_t *rows; /* compared by each task */
    atomic_bool out_of_memory;
    struct cli_progress progress;
};

static int ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* The first and last row, and the rows around as many multiples of EDGE, evenly spread, as fit. */
static void choose_samples(struct checking *checking, uint32_t rows)
{
    uint32_t candidates[SAMPLES];
    unsigned count = 0, unique = 0;
    uint32_t edges = (rows - 1) / EDGE;
    uint32_t taken = (SAMPLES - 2) / 3 < edges ? (SAMPLES - 2) / 3 : edges;

    candidates[count++] = 0;
    candidates[count++] = rows - 1;
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t edge = (uint32_t)((uint64_t)edges * (i + 1) / taken) * EDGE;

        candidates[count++] = edge - 1;
        candidates[count++] = edge;
        if (edge + 1 < rows)
            candidates[count++] = edge + 1;
    }
    qsort(candidates, count, sizeof candidates[0], ascending);
    for (unsigned i = 0; i < count; i++)
        if (i == 0 || candidates[i] != candidates[i - 1])
            checking->samples[unique++] = candidates[i];
    checking->sample_count = unique;
}

/* One output's rows against the reference's, which has only these. */
static void compare_output(const struct request_output *output, const struct fa_problem *problem,
                           struct fa_range rows, const double *o_reference,
                           const double *lse_reference, struct fa_deviation *deviation)
{
    const float *lse = output->lse;

    fa_deviation_add(deviation, output->o + rows.first * problem->head_dim, problem->head_dim,
                     lse ? lse + rows.first : NULL, 1, o_reference, lse ? lse_reference : NULL,
                     rows.count, problem->head_dim);
}

/* Compares consecutive rows of the problem. */
static void compare(struct checking *checking, uint64_t task, struct fa_range rows)
{
    const struct request_tensors *tensors = checking->tensors;
    const struct fa_problem *problem = &tensors->problem;
    const struct fa_tensors given = {tensors->data[REQUEST_Q], tensors->data[REQUEST_K],
                                     tensors->data[REQUEST_V], NULL, NULL};
    double *o_reference = calloc(rows.count, problem->head_dim * sizeof *o_reference);
    double *lse_reference = calloc(rows.count, sizeof *lse_reference);

    if (o_reference && lse_reference &&
        fa_reference(problem, &given, rows, o_reference, lse_reference))
        for (size_t i = 0; i < checking->output_count; i++)
            compare_output(&checking->outputs[i], problem, rows, o_reference, lse_reference,
                           &checking->deviations[task * checking->output_count + i]);
    else
        atomic_store(&checking->out_of_memory, true);
    checking->rows[task] += rows.count;
    free(o_reference);
    free(lse_reference);
}

static void check_task(void *context, uint64_t task)
{
    struct checking *checking = context;

    if (!checking->sampled) {
        uint64_t first = task * checking->task_rows;
        uint64_t left = checking->total - first;

        compare(checking, task,
                (struct fa_range){first, left < checking->task_rows ? left : checking->task_rows});
    } else {
        for (unsigned i = 0; i < checking->sample_count; i++)
            compare(checking, task,
                    (struct fa_range){task * checking->head_rows + checking->samples[i], 1});
    }
    atomic_fetch_add(&checking->progress.done, 1);
}

/* The larger, and NaN when either is. */
static double worse(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

static void sum_up(const struct checking *checking, size_t output, struct request_check *out)
{
    struct fa_deviation sum = {0};

    *out = (struct request_check){.total = checking->total};
    for (uint64_t i = 0; i < checking->tasks; i++) {
        const struct fa_deviation *part =
            &checking->deviations[i * checking->output_count + output];

        sum.difference_square += part->difference_square;
        sum.reference_square += part->reference_square;
        sum.max_row = worse(sum.max_row, part->max_row);
        sum.max_lse = worse(sum.max_lse, part->max_lse);
        out->rows += checking->rows[i];
    }
    out->rel_l2 = fa_deviation_l2(&sum);
    out->max_row = sum.max_row;
    out->max_lse = sum.max_lse;
    /* Written so that NaN fails. */
    out->passed = sum.max_row <= REQUEST_ROW_TOLERANCE && sum.max_lse <= REQUEST_LSE_TOLERANCE;
}

bool request_may_be_rounding(const struct request_check *check)
{
    return !check->passed && isfinite(check->max_row) && isfinite(check->max_lse);
}

enum cli_exit request_check_outputs(const struct request_tensors *tensors,
                                    const struct request_output *outputs, size_t count,
                                    struct request_check *out, struct cli_error *error)
{
    const struct fa_problem *problem = &tensors->problem;
    const uint64_t heads = (uint64_t)problem->batch * problem->heads;
    struct checking checking = {.tensors = tensors,
                                .outputs = outputs,
                                .output_count = count,
                                .head_rows = problem->q_len,
                                .total = heads * problem->q_len,
                                .sampled = fa_problem_flops(problem) > ALL_ROWS_FLOPS &&
                                           problem->q_len > SAMPLES};
    bool complete;

    if (checking.sampled) {
        choose_samples(&checking, problem->q_len);
        checking.tasks = heads;
    } else {
        checking.task_rows = checking.total / TASKS_MAX + 1;
        if (checking.task_rows < TASK_ROWS)
            checking.task_rows = TASK_ROWS;
        checking.tasks = (checking.total + checking.task_rows - 1) / checking.task_rows;
    }
    checking.deviations = calloc((checking.tasks + 1) * count, sizeof *checking.deviations);
    checking.rows = calloc(checking.tasks + 1, sizeof *checking.rows);
    complete = checking.deviations && checking.rows;
    if (complete) {
        cli_progress_begin(&checking.progress, "checking against float64", checking.tasks);
        cli_parallel(check_task, &checking, checking.tasks);
        cli_progress_end(&checking.progress);
        complete = !atomic_load(&checking.out_of_memory);
        for (size_t i = 0; i < count; i++)
            sum_up(&checking, i, &out[i]);
    }
    free(checking.deviations);
    free(checking.rows);
    if (!complete)
        return cli_fail(error, CLI_FAILED, "no memory for the float64 reference");
    return CLI_OK;
}

enum cli_exit request_check(const struct request_tensors *tensors, struct request_check *out,
                            struct cli_error *error)
{
    const struct request_output output = {tensors->data[REQUEST_O], tensors->data[REQUEST_LSE]};

    return request_check_outputs(tensors, &output, 1, out, error);
}
