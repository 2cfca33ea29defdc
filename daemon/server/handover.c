#include "daemon/server/handover.h"

#include "daemon/util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define VARIABLE "FAD_HANDOVER"

/* --- Losses ---------------------------------------------------------------------------------- */

bool fad_losses_note(struct fad_losses *losses, uint64_t now_ns)
{
    const uint64_t oldest_ns = losses->recent[FAD_LOSSES_MAX - 1];

    memmove(&losses->recent[1], &losses->recent[0],
            (FAD_LOSSES_MAX - 1) * sizeof losses->recent[0]);
    losses->recent[0] = now_ns;
    losses->count++;
    return oldest_ns == 0 || now_ns - oldest_ns > FAD_LOSSES_WITHIN_NS;
}

/* --- The variable: numbers, each with a space behind it, and the backend's name --------------- */

enum number {
    PID,
    LISTENER, /* descriptors are one more than they are: 0 is none */
    LOCK,
    COUNTERS,
    INHERITED,
    DEVICE,
    INODE,
    NEXT_CONNECTION,
    LOSSES,
    RECENT,
    NUMBERS = RECENT + FAD_LOSSES_MAX
};

#define TEXT_MAX 512

static void write_text(const struct fad_handover *handover, char text[TEXT_MAX])
{
    const uint64_t numbers[RECENT] = {
        [PID] = (uint64_t)getpid(),
        [LISTENER] = (uint64_t)(handover->listener.fd + 1),
        [LOCK] = (uint64_t)(handover->listener.lock_fd + 1),
        [COUNTERS] = (uint64_t)(handover->counters + 1),
        [INHERITED] = handover->listener.inherited,
        [DEVICE] = handover->listener.device,
        [INODE] = handover->listener.inode,
        [NEXT_CONNECTION] = handover->next_connection,
        [LOSSES] = handover->losses.count,
    };
    int length = 0;

    for (int i = 0; i < NUMBERS; i++)
        length += snprintf(text + length, TEXT_MAX - (size_t)length, "%" PRIu64 " ",
                           i < RECENT ? numbers[i] : handover->losses.recent[i - RECENT]);
    snprintf(text + length, TEXT_MAX - (size_t)length, "%s", handover->backend);
}

/* A number as it was written, and the space behind it; NULL: it is none. */
static const char *read_number(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == ' ' && errno == 0 ? end + 1 : NULL;
}

static bool is_descriptor(uint64_t number)
{
    return number == 0 || (number <= INT32_MAX && fcntl((int)number - 1, F_GETFD) >= 0);
}

static bool read_text(const char *text, struct fad_handover *handover)
{
    uint64_t numbers[NUMBERS];

    for (int i = 0; i < NUMBERS; i++)
        if (!(text = read_number(text, &numbers[i])))
            return false;
    if (numbers[PID] != (uint64_t)getpid() || numbers[LISTENER] == 0 ||
        !is_descriptor(numbers[LISTENER]) || !is_descriptor(numbers[LOCK]) ||
        !is_descriptor(numbers[COUNTERS]) || strlen(text) >= sizeof handover->backend)
        return false;
    handover->listener = (struct fad_listener_handle){
        .fd = (int)numbers[LISTENER] - 1,
        .lock_fd = (int)numbers[LOCK] - 1,
        .inherited = numbers[INHERITED] != 0,
        .device = (dev_t)numbers[DEVICE],
        .inode = (ino_t)numbers[INODE],
    };
    handover->counters = (int)numbers[COUNTERS] - 1;
    handover->next_connection = numbers[NEXT_CONNECTION];
    handover->losses.count = numbers[LOSSES];
    memcpy(handover->losses.recent, &numbers[RECENT], sizeof handover->losses.recent);
    memcpy(handover->backend, text, strlen(text) + 1);
    return true;
}

/* --- Taking and giving ------------------------------------------------------------------------ */

static void set_cloexec(int fd, bool on)
{
    if (fd >= 0)
        (void)fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
}

static void set_all_cloexec(const struct fad_handover *handover, bool on)
{
    set_cloexec(handover->listener.fd, on);
    set_cloexec(handover->listener.lock_fd, on);
    set_cloexec(handover->counters, on);
}

void fad_handover_take(struct fad_handover *handover)
{
    const char *text = getenv(VARIABLE);

    *handover = (struct fad_handover){.counters = -1, .listener = {.fd = -1, .lock_fd = -1}};
    if (!text)
        return;
    handover->taken = read_text(text, handover);
    if (handover->taken) {
        set_all_cloexec(handover, true);
        /* The kernel has named the process "exe". */
        (void)prctl(PR_SET_NAME, program_invocation_short_name);
    } else {
        fad_log(FAD_LOG_ERROR, VARIABLE "='%.80s' is not for this process: ignored", text);
    }
    unsetenv(VARIABLE);
}

int fad_handover_exec(const struct fad_handover *handover, char *const argv[])
{
    char text[TEXT_MAX];
    int r;

    write_text(handover, text);
    if (setenv(VARIABLE, text, 1) != 0)
        return -errno;
    /* All of ours are close-on-exec already; a driver's might not be. Before Linux 5.11 there is no
     * such call. */
    (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
    set_all_cloexec(handover, false);
    execv("/proc/self/exe", argv);
    r = -errno;
    set_all_cloexec(handover, true);
    unsetenv(VARIABLE);
    return r;
}
