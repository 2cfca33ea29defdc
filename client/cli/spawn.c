#include "client/cli/spawn.h"

#include "client/cli/times.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_S        60    /* until it must answer; devices may take seconds to come up */
#define STOP_MS        10000 /* until SIGKILL follows SIGTERM */
#define POLL_MS        2
#define DIRECTORY_SIZE 128

/* The spawned daemon. Static because a signal handler cleans it up; changed only while the signals
 * that lead there are blocked. pid 0: none. */
static struct {
    pid_t pid;
    char directory[DIRECTORY_SIZE];
    char socket[DIRECTORY_SIZE + 16];
    char lock[DIRECTORY_SIZE + 16];
    bool handling; /* the signals below lead to on_ending; before is what they did */
    struct sigaction before[NSIG];
} spawned;

static const int ending[] = {CLI_ENDING_SIGNALS};
#define ENDING_COUNT (sizeof ending / sizeof ending[0])

static void ending_set(sigset_t *out)
{
    sigemptyset(out);
    for (size_t i = 0; i < ENDING_COUNT; i++)
        sigaddset(out, ending[i]);
}

/* Async-signal-safe, as are the next two. */
static void nap(void)
{
    struct timespec left = {0, POLL_MS * 1000000L};

    nanosleep(&left, NULL);
}

/* Waits for the daemon, and kills it when it takes too long. Its wait status, or -1. */
static int reap(void)
{
    int status;

    for (int waited = 0; waited < STOP_MS; waited += POLL_MS) {
        pid_t got = waitpid(spawned.pid, &status, WNOHANG);

        if (got == spawned.pid)
            return status;
        if (got < 0 && errno != EINTR)
            return -1;
        nap();
    }
    kill(spawned.pid, SIGKILL);
    while (waitpid(spawned.pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

static void remove_files(void)
{
    unlink(spawned.socket);
    unlink(spawned.lock);
    rmdir(spawned.directory);
}

/* Stops the daemon, then lets the signal do what it does. */
static void on_ending(int signal_number)
{
    sigset_t set;

    if (spawned.pid > 0) {
        kill(spawned.pid, SIGTERM);
        reap();
    }
    remove_files();
    signal(signal_number, SIG_DFL);
    ending_set(&set);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(signal_number);
}

/* --- Starting -------------------------------------------------------------------------------- */

/* $FAD_DAEMON, else the fad beside this program, else "fad" for PATH to find. */
static void find_daemon(char out[PATH_MAX])
{
    const char *given = getenv("FAD_DAEMON");
    ssize_t length;
    char *slash;

    if (given && *given) {
        snprintf(out, PATH_MAX, "%s", given); /* one that is cut cannot be started either */
        return;
    }
    length = readlink("/proc/self/exe", out, PATH_MAX - sizeof "/fad");
    if (length > 0) {
        out[length] = '\0';
        slash = strrchr(out, '/');
        memcpy(slash, "/fad", sizeof "/fad");
        if (access(out, X_OK) == 0)
            return;
    }
    memcpy(out, "fad", sizeof "fad");
}

/* Sends the signals to on_ending, but for those that are ignored. They are blocked. */
static void handle_signals(void)
{
    struct sigaction action = {.sa_handler = on_ending};

    ending_set(&action.sa_mask);
    for (size_t i = 0; i < ENDING_COUNT; i++) {
        struct sigaction *before = &spawned.before[ending[i]];

        sigaction(ending[i], &action, before);
        if (before->sa_handler == SIG_IGN)
            sigaction(ending[i], before, NULL);
    }
    spawned.handling = true;
}

static void unhandle_signals(void)
{
    for (size_t i = 0; spawned.handling && i < ENDING_COUNT; i++)
        sigaction(ending[i], &spawned.before[ending[i]], NULL);
    spawned.handling = false;
}

/* The child: becomes the daemon, or tells errno through the pipe. stdout is ours alone; its log
 * goes to our stderr, or nowhere when that shall stay clean for JSON's sake. */
static void become(const char *program, pid_t parent, int failure, bool quiet, const sigset_t *mask)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int saved;

    setpgid(0, 0); /* a Ctrl-C on the terminal is for fa-cli alone */
    unhandle_signals();
    sigprocmask(SIG_SETMASK, mask, NULL);
    if (null >= 0 && dup2(null, 0) >= 0 && (!quiet || dup2(null, 2) >= 0) && dup2(2, 1) >= 0 &&
        prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent)
        execlp(program, program, "--socket", spawned.socket, "--quiet", "--drain-seconds", "0",
               (char *)NULL);
    saved = errno;
    if (write(failure, &saved, sizeof saved) < 0)
        _exit(126);
    _exit(127);
}

/* Makes the directory and its names. The signals are blocked. */
static enum cli_exit make_directory(struct cli_error *error)
{
    const char *base = getenv("TMPDIR");

    if (!base || !*base || strlen(base) + sizeof "/fa-cli-XXXXXX/fad.sock" > 100)
        base = "/tmp"; /* a socket's path holds 107 bytes */
    snprintf(spawned.directory, sizeof spawned.directory, "%s/fa-cli-XXXXXX", base);
    if (!mkdtemp(spawned.directory)) {
        int saved = errno;

        spawned.directory[0] = '\0';
        return cli_fail(error, CLI_NO_DAEMON, "--spawn: no directory could be made in %s: %s", base,
                        strerror(saved));
    }
    snprintf(spawned.socket, sizeof spawned.socket, "%s/fad.sock", spawned.directory);
    snprintf(spawned.lock, sizeof spawned.lock, "%s/fad.sock.lock", spawned.directory);
    return CLI_OK;
}

/* Forks, and waits until the child has become the daemon or could not. The signals are blocked. */
static enum cli_exit fork_daemon(const char *program, bool quiet, const sigset_t *mask,
                                 struct cli_error *error)
{
    pid_t parent = getpid();
    int failure[2], why = 0;

    if (pipe2(failure, O_CLOEXEC) != 0)
        return cli_fail(error, CLI_NO_DAEMON, "--spawn: %s", strerror(errno));
    spawned.pid = fork();
    if (spawned.pid == 0)
        become(program, parent, failure[1], quiet, mask);
    if (spawned.pid < 0)
        why = errno;
    close(failure[1]);
    if (spawned.pid > 0 && read(failure[0], &why, sizeof why) != sizeof why)
        why = 0; /* closed by the exec */
    if (why)
        cli_fail(error, CLI_NO_DAEMON,
                 "--spawn: %s cannot be started: %s; set FAD_DAEMON to its path", program,
                 strerror(why));
    close(failure[0]);
    return error->code;
}

/* Tries to connect until it succeeds, the daemon ends, or the time is up. One that listens and does
 * not answer yet (FA_TIMEOUT) is still starting. */
static enum cli_exit await(struct fa_client **out, const char *program, struct cli_error *error)
{
    const double until_us = cli_now_us() + START_S * 1e6;

    while (cli_now_us() < until_us) {
        enum fa_status got = fa_client_open(out, spawned.socket);
        const bool starts = got == FA_UNAVAILABLE || got == FA_TIMEOUT;
        siginfo_t ended = {0};

        if (got == FA_OK)
            return CLI_OK;
        if (!starts)
            cli_fail(error, CLI_NO_DAEMON, "--spawn: %s: %s", program, fa_last_error(*out));
        fa_client_close(*out);
        *out = NULL;
        if (!starts)
            return error->code;
        /* Left for stop() to reap, so that the pid stays its own. */
        if (waitid(P_PID, (id_t)spawned.pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            ended.si_pid == spawned.pid)
            return cli_fail(error, CLI_NO_DAEMON, "--spawn: %s ended with %s %d before it answered",
                            program, ended.si_code == CLD_EXITED ? "exit code" : "signal",
                            ended.si_status);
        nap();
    }
    return cli_fail(error, CLI_NO_DAEMON, "--spawn: %s does not answer after %d s", program,
                    START_S);
}

/* Stops what runs, removes what is there, and gives the signals back. Its wait status, or 0. */
static int stop(void)
{
    sigset_t set, mask;
    int status = 0;

    ending_set(&set);
    sigprocmask(SIG_BLOCK, &set, &mask);
    if (spawned.pid > 0) {
        kill(spawned.pid, SIGTERM);
        status = reap();
    }
    unhandle_signals();
    remove_files();
    spawned.pid = 0;
    spawned.directory[0] = '\0';
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return status;
}

static enum cli_exit spawn(struct fa_client **out, bool quiet, struct cli_error *error)
{
    char program[PATH_MAX];
    sigset_t set, mask;
    enum cli_exit code;

    find_daemon(program);
    ending_set(&set);
    sigprocmask(SIG_BLOCK, &set, &mask);
    code = make_directory(error);
    if (code == CLI_OK) {
        handle_signals();
        code = fork_daemon(program, quiet, &mask, error);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (code == CLI_OK)
        code = await(out, program, error);
    if (code != CLI_OK)
        stop();
    return code;
}

/* --- Connecting ------------------------------------------------------------------------------ */

enum cli_exit cli_connect_again(struct fa_client **out, const struct cli_target *target,
                                struct cli_error *error)
{
    const char *socket = target->spawn ? spawned.socket : target->socket;
    enum fa_status got = fa_client_open(out, socket);
    enum cli_exit code;

    if (got == FA_OK)
        return CLI_OK;
    code = got == FA_UNAVAILABLE || got == FA_TIMEOUT ? CLI_NO_DAEMON
           : got == FA_INVALID_ARGUMENT               ? CLI_USAGE
                                                      : CLI_FAILED;
    if (got == FA_UNAVAILABLE)
        cli_fail(error, code, "%s with --socket, or use --spawn", fa_last_error_record(*out)->text);
    else
        cli_fail(error, code, "%s", fa_last_error(*out));
    fa_client_close(*out);
    *out = NULL;
    return code;
}

enum cli_exit cli_connect(struct fa_client **out, const struct cli_target *target,
                          struct cli_error *error)
{
    *out = NULL;
    if (target->spawn && target->socket)
        return cli_fail(error, CLI_USAGE, "--socket and --spawn exclude each other: give one");
    return target->spawn ? spawn(out, target->json, error) : cli_connect_again(out, target, error);
}

enum cli_exit cli_disconnect(struct fa_client *client, enum cli_exit code, struct cli_error *error)
{
    int status;

    fa_client_close(client);
    if (!spawned.directory[0])
        return code;
    status = stop();
    if (status == 0 || code != CLI_OK)
        return code;
    return cli_fail(error, CLI_FAILED, "--spawn: the daemon ended with %s %d",
                    WIFEXITED(status) ? "exit code" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}
