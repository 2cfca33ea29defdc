/* The completion list and the engine on a loop: what finishes during a turn is seen in the same
 * turn, within a bound, and deadlines come without anybody's help. */
#include "daemon/connection/engine.h"
#include "tests/helpers/scripted.h"
#include "tests/helpers/test.h"

/* --- Completions ----------------------------------------------------------------------------- */

static struct fad_completions completions;
static uv_loop_t loop;
static struct fad_op again;
static unsigned done, drained, links; /* of a chain: each op's end lets the next one finish */

static void on_done(struct fad_op *op)
{
    (void)op;
    done++;
}

static void on_drained(void *user)
{
    (void)user;
    drained++;
    if (links == 0)
        return;
    links--;
    fad_completions_push(&completions, &again);
}

static void begin(void)
{
    done = drained = links = 0;
    again.done = on_done;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(fad_completions_init(&completions, &loop, on_drained, NULL), 0);
}

static void end(void)
{
    fad_completions_deinit(&completions);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

START_TEST(what_finishes_meanwhile_is_done_in_the_same_turn)
{
    begin();
    links = 2;
    fad_completions_push(&completions, &again);
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_eq(done, 3);
    ck_assert_uint_eq(drained, 3);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_NOWAIT), 1); /* the wake-up's handle lives */
    ck_assert_uint_eq(drained, 3);
    fad_completions_push(&completions, &again); /* wakes again */
    uv_run(&loop, UV_RUN_ONCE);
    ck_assert_uint_eq(done, 4);
    end();
}
END_TEST

START_TEST(an_endless_chain_does_not_hold_the_loop)
{
    unsigned before = 0, turns = 0;

    begin();
    links = 100;
    fad_completions_push(&completions, &again);
    while (done < 101) {
        uv_run(&loop, UV_RUN_ONCE);
        ck_assert_uint_le(done - before, 4);
        ck_assert_uint_gt(done, before); /* none is forgotten */
        before = done;
        turns++;
    }
    ck_assert_uint_ge(turns, 101 / 4);
    end();
}
END_TEST

/* --- Deadlines ------------------------------------------------------------------------------- */

static struct fad_engine engine;
static struct fad_group group;
static struct fad_flow flow;
static unsigned ended;

static uint64_t one_unit(const struct fa_problem *problem)
{
    (void)problem;
    return 1;
}

static size_t no_scratch(const struct fa_problem *problem, uint64_t units)
{
    (void)problem, (void)units;
    return 0;
}

static enum fa_status nothing(const struct fa_launch *launch)
{
    (void)launch;
    return FA_OK;
}

static const struct fa_kernel kernel = {
    .units = one_unit, .scratch = no_scratch, .launch = nothing, .rate = 1e9};
static const struct fa_problem problem = {
    .batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 1, .head_dim = 1, .scale = 1};

static void on_finished(struct fad_work *work)
{
    ck_assert_int_eq(work->status, FA_DEADLINE_EXCEEDED);
    ck_assert_uint_ge(uv_hrtime(), work->deadline_ns);
    ended++;
}

static void on_fatal(void *user, int error)
{
    (void)user;
    ck_abort_msg("fatal: %d", error);
}

START_TEST(deadlines_come_by_themselves)
{
    const struct fad_backend_config config = {0};
    struct fad_work works[20];
    struct fa_error error;

    scripted_reset();
    scripted.hold[SCRIPTED_LAUNCH] = true;
    scripted.poll_no_more = true; /* else the loop turns without end */
    ended = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(
        fad_engine_init(&engine, &loop, &scripted_ops, &config, on_fatal, NULL, &error), 0);
    fad_group_init(&group);
    fad_flow_init(&flow, &group);
    for (unsigned w = 0; w < 20; w++) { /* the first four take all places of the device */
        works[w] = (struct fad_work){.flow = &flow,
                                     .priority = FA_PRIORITY_NORMAL,
                                     .deadline_ns = uv_hrtime() + 1000000 + w * 7 % 20 * 700000,
                                     .kernel = &kernel,
                                     .problem = &problem,
                                     .finished = on_finished};
        fad_scheduler_submit(&engine.scheduler, &works[w]);
    }
    fad_engine_dispatch(&engine);
    while (ended < 20 - 4)
        uv_run(&loop, UV_RUN_ONCE);
    while (fad_scheduler_next_deadline(&engine.scheduler) != 0)
        uv_run(&loop, UV_RUN_ONCE);
    while (scripted.held_count > 0)
        scripted_finish(0);
    while (ended < 20)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert(!uv_is_active((uv_handle_t *)&engine.deadline));
    fad_engine_deinit(&engine);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("engine");
    TCase *tests = tcase_create("engine");

    tcase_add_test(tests, what_finishes_meanwhile_is_done_in_the_same_turn);
    tcase_add_test(tests, an_endless_chain_does_not_hold_the_loop);
    tcase_add_test(tests, deadlines_come_by_themselves);
    suite_add_tcase(suite, tests);
    return suite;
}
