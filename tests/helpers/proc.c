#include "tests/helpers/proc.h"

#include "tests/helpers/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

long long test_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void test_sleep_ms(int milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

const char *test_program(const char *name)
{
    static char path[PATH_MAX];
    const char *part = strcmp(name, "fad") == 0 ? "tests/" : ""; /* tests/fad-on-backend */

    ck_assert_int_lt(snprintf(path, sizeof path, "%s/%s%s", test_build_dir(), part, name),
                     sizeof path);
    ck_assert_msg(access(path, X_OK) == 0, "%s: %s", path, strerror(errno));
    return path;
}

const char *test_backend(void)
{
    const char *given = getenv("FA_TEST_BACKEND");
    return given && *given ? given : "cpu";
}

bool test_on_cuda(void)
{
    return strcmp(test_backend(), "cuda") == 0;
}

/* --- Starting and waiting -------------------------------------------------------------------- */

/* Between fork and exec only async-signal-safe calls: the test may have threads. */
static void become(const char *const argv[], int out, int err, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        _exit(126);
    close_range(3, ~0u, 0);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static pid_t start(const char *const argv[], int out, int err)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    ck_assert_msg(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0)
        become(argv, out, err, parent);
    return pid;
}

int test_wait(pid_t pid, int seconds)
{
    long long deadline = test_now_ms() + seconds * 1000LL;
    int status;
    pid_t got;

    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (test_now_ms() > deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            ck_abort_msg("process %d did not end within %d s", (int)pid, seconds);
        }
        test_sleep_ms(2);
    }
    ck_assert_msg(got == pid, "waitpid: %s", strerror(errno));
    return status;
}

static int code_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void test_begin(struct test_process *process, const char *const argv[])
{
    int out[2], err[2];

    ck_assert(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
    process->pid = start(argv, out[1], err[1]);
    process->out = out[0];
    process->err = err[0];
    close(out[1]);
    close(err[1]);
}

/* Reads what is there. True at the end of the stream. */
static bool drain(int fd, char **text, size_t *length)
{
    char chunk[16384];
    ssize_t got = read(fd, chunk, sizeof chunk);
    char *grown;

    if (got < 0 && errno == EINTR)
        return false;
    ck_assert_msg(got >= 0, "read: %s", strerror(errno));
    grown = realloc(*text, *length + (size_t)got + 1);
    ck_assert_ptr_nonnull(grown);
    memcpy(grown + *length, chunk, (size_t)got);
    *length += (size_t)got;
    grown[*length] = '\0';
    *text = grown;
    return got == 0;
}

/* The first line of /proc/PID/task/TASK/NAME, or nothing. */
static void read_line(pid_t pid, const char *task, const char *name, char *out, int size)
{
    char path[PATH_MAX];
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", (int)pid, task, name);
    file = fopen(path, "re");
    out[0] = '\0';
    if (file && fgets(out, size, file))
        out[strcspn(out, "\n")] = '\0';
    if (file)
        fclose(file);
}

/* Where a process hangs: each thread's name, and its system call as in proc(5). Static. */
static const char *threads_of(pid_t pid)
{
    static char text[2048];
    char path[PATH_MAX], comm[64], syscall[256];
    const struct dirent *entry;
    size_t length = 0;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    text[0] = '\0';
    while (tasks && (entry = readdir(tasks)) && length < sizeof text) {
        if (entry->d_name[0] == '.')
            continue;
        read_line(pid, entry->d_name, "comm", comm, sizeof comm);
        read_line(pid, entry->d_name, "syscall", syscall, sizeof syscall);
        length += (size_t)snprintf(text + length, sizeof text - length, "[%s: %s] ", comm, syscall);
    }
    if (tasks)
        closedir(tasks);
    return text;
}

struct test_output test_finish(struct test_process *process)
{
    struct test_output output = {0};
    long long deadline = test_now_ms() + TEST_PROGRAM_SECONDS * 1000LL;
    struct pollfd polled[2] = {{process->out, POLLIN, 0}, {process->err, POLLIN, 0}};
    char **texts[2] = {&output.out, &output.err};
    size_t lengths[2] = {0, 0};

    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
        long long left = deadline - test_now_ms();
        int ready = left > 0 ? poll(polled, 2, (int)left) : 0;

        if (ready == 0) {
            const char *threads = threads_of(process->pid);
            kill(process->pid, SIGKILL);
            waitpid(process->pid, NULL, 0);
            ck_abort_msg("process %d still runs after %d s, %s; it wrote: %s%s", (int)process->pid,
                         TEST_PROGRAM_SECONDS, threads, output.out ? output.out : "",
                         output.err ? output.err : "");
        }
        for (int i = 0; ready > 0 && i < 2; i++) {
            if (polled[i].fd >= 0 && polled[i].revents &&
                drain(polled[i].fd, texts[i], &lengths[i])) {
                close(polled[i].fd);
                polled[i].fd = -1;
            }
        }
    }
    output.code = code_of(test_wait(process->pid, TEST_PROGRAM_SECONDS));
    return output;
}

struct test_output test_run_vector(const char *const argv[])
{
    struct test_process process;

    test_begin(&process, argv);
    return test_finish(&process);
}

void test_output_release(struct test_output *output)
{
    free(output->out);
    free(output->err);
    *output = (struct test_output){0};
}

/* --- Files ----------------------------------------------------------------------------------- */

char *test_read_file(const char *path, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    size_t size = 0;

    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    while (!drain(fd, &text, &size))
        ;
    close(fd);
    if (length)
        *length = size;
    return text;
}

void test_make_directory(char out[64])
{
    const char *base = getenv("TMPDIR");

    ck_assert_int_lt(snprintf(out, 64, "%s/fad-test-XXXXXX", base && *base ? base : "/tmp"), 64);
    ck_assert_msg(mkdtemp(out) != NULL, "mkdtemp %s: %s", out, strerror(errno));
}

void test_remove_directory(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;

    ck_assert_msg(directory != NULL, "%s: %s", path, strerror(errno));
    while ((entry = readdir(directory))) {
        struct stat info;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        ck_assert(fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0);
        ck_assert_msg(S_ISREG(info.st_mode), "%s/%s was left behind", path, entry->d_name);
        ck_assert(unlinkat(dirfd(directory), entry->d_name, 0) == 0);
    }
    closedir(directory);
    ck_assert_msg(rmdir(path) == 0, "rmdir %s: %s", path, strerror(errno));
}

/* --- The daemon ------------------------------------------------------------------------------ */

#define DAEMON_EXTRA_MAX 32

char *test_daemon_log(const struct test_daemon *daemon)
{
    return test_read_file(daemon->log, NULL);
}

static void show_log(const struct test_daemon *daemon)
{
    char *log = test_daemon_log(daemon);

    fprintf(stderr, "--- the daemon logged:\n%s---\n", log);
    free(log);
}

bool test_daemon_serves(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = 1};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool closed;
    char byte;

    ck_assert_int_ge(fd, 0);
    ck_assert_uint_lt(strlen(path), sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    closed = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
             shutdown(fd, SHUT_WR) == 0 && recv(fd, &byte, 1, 0) == 0;
    close(fd);
    return closed;
}

static void await_daemon(struct test_daemon *daemon)
{
    long long deadline = test_now_ms() + TEST_PROGRAM_SECONDS * 1000LL;

    while (!test_daemon_serves(daemon->socket)) {
        int status;

        if (waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
            show_log(daemon);
            ck_abort_msg("the daemon ended with %d before it served", code_of(status));
        }
        if (test_now_ms() > deadline) {
            show_log(daemon);
            ck_abort_msg("the daemon does not serve after %d s", TEST_PROGRAM_SECONDS);
        }
        test_sleep_ms(2);
    }
}

void test_daemon_start(struct test_daemon *daemon, const char *const extra[])
{
    const char *argv[3 + DAEMON_EXTRA_MAX + 1] = {test_program("fad"), "--socket", daemon->socket};
    size_t count = 3;
    int log;

    while (extra && *extra) {
        ck_assert_uint_lt(count, 3 + DAEMON_EXTRA_MAX);
        argv[count++] = *extra++;
    }
    test_make_directory(daemon->directory);
    snprintf(daemon->socket, sizeof daemon->socket, "%s/fad.sock", daemon->directory);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", daemon->directory);
    log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ck_assert_int_ge(log, 0);
    daemon->pid = start(argv, log, log);
    close(log);
    await_daemon(daemon);
}

void test_daemon_stop(struct test_daemon *daemon)
{
    int code;

    ck_assert_msg(kill(daemon->pid, SIGTERM) == 0, "the daemon is gone: %s", strerror(errno));
    code = code_of(test_wait(daemon->pid, TEST_PROGRAM_SECONDS));
    if (code != 0)
        show_log(daemon);
    ck_assert_msg(code == 0, "the daemon ended with %d after SIGTERM", code);
    ck_assert_msg(access(daemon->socket, F_OK) != 0, "the daemon left its socket behind");
    test_remove_directory(daemon->directory);
    *daemon = (struct test_daemon){0};
}

void test_daemon_kill(struct test_daemon *daemon)
{
    ck_assert_int_eq(kill(daemon->pid, SIGKILL), 0);
    test_wait(daemon->pid, TEST_PROGRAM_SECONDS);
    unlink(daemon->socket);
    test_remove_directory(daemon->directory);
    *daemon = (struct test_daemon){0};
}
