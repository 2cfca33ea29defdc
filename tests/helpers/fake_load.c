#include "tests/helpers/fake_load.h"
#include "tests/helpers/fake_cuda.h"
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether a SIGINT for fa-cli waits to be handled. */
static bool is_pending(pid_t pid)
{
    char path[64], *status, *line;
    unsigned long long pending;

    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    status = test_read_file(path, NULL);
    line = strstr(status, "\nShdPnd:");
    ck_assert_ptr_nonnull(line);
    pending = strtoull(line + strlen("\nShdPnd:"), NULL, 16);
    free(status);
    return pending & 1ull << (SIGINT - 1);
}

/* Presses Ctrl-C, and once more when fa-cli has taken notice. */
static void interrupt(struct script *script, bool twice)
{
    pid_t pid;

    while ((pid = atomic_load(&script->pid)) == 0)
        test_sleep_ms(1);
    ck_assert_int_eq(kill(pid, SIGINT), 0);
    while (is_pending(pid))
        test_sleep_ms(1);
    if (twice)
        ck_assert_int_eq(kill(pid, SIGINT), 0);
}

/* Plays the fault. False when the connection is to be closed. */
static bool play(struct script *script, int fd, const struct fake_frame *frame)
{
    float o[8] = {0};

    script->faults++;
    switch (script->fault) {
    case REFUSES:
        fake_refuse(fd, frame, FA_RESOURCE_EXHAUSTED, "staged", "too much to do");
        return true;
    case CLOSES:
        return false;
    case SHUTS_DOWN:
        fake_refuse(fd, frame, FA_SHUTTING_DOWN, "", "good night");
        return true;
    case IS_SILENT:
        return true;
    case INTERRUPTS_TWICE:
        interrupt(script, true);
        return true;
    case INTERRUPTS:
        interrupt(script, false);
        break;
    case LIES:
        o[3] = -0.0f;
        break;
    case ERRS:
        o[3] = 1;
        break;
    case STALLS:
        test_sleep_ms(script->stall_ms);
        break;
    }
    fake_answer(fd, frame, o, sizeof o);
    return true;
}

static void serve(struct fake_daemon *fake, int fd, int round)
{
    static const float zeroes[8];
    struct script *script = fake->data;
    struct fake_frame frame;
    bool goes_on = true;

    ck_assert_int_eq(round, 0);
    if (script->cuda)
        fake_cuda_hello(fd);
    else
        fake_hello(fd);
    while (goes_on && fake_read(fd, &frame)) {
        int past = script->forwards++ - script->first;

        ck_assert_int_eq(frame.frame.type, FA_FRAME_FORWARD);
        if (past == 0 || (past > 0 && script->every > 0 && past % script->every == 0))
            goes_on = play(script, fd, &frame);
        else {
            if (past + script->first == script->slow && script->slow > 0)
                test_sleep_ms(script->stall_ms);
            fake_answer(fd, &frame, zeroes, sizeof zeroes);
        }
        fake_frame_release(&frame);
    }
}

struct test_output load_on(struct script *script, const char *const argv[], size_t count)
{
    struct fake_daemon fake;
    const char *whole[24] = {0};
    struct test_process process;
    struct test_output output;

    ck_assert_uint_lt(count + 2, sizeof whole / sizeof whole[0]);
    memcpy(whole, argv, count * sizeof *argv);
    fake_start(&fake, serve, script, 1);
    whole[count] = "--socket";
    whole[count + 1] = fake.path;
    test_begin(&process, whole);
    atomic_store(&script->pid, process.pid);
    output = test_finish(&process);
    fake_stop(&fake);
    return output;
}
