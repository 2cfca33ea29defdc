/* proc.h: running the built programs from a test.
 *
 * Everything here fails the test itself (ck_assert) when the system does not play along or a
 * program does not end within TEST_PROGRAM_SECONDS, so callers check only what the program did. A
 * test that starts a program needs more than Check's 4 s: tcase_set_timeout(tcase,
 * TEST_CASE_SECONDS). Programs started here are killed when the process that started them dies, so
 * a failed test leaves none. They inherit no descriptor but the standard three; stdin is /dev/null.
 */
#ifndef TEST_PROC_H
#define TEST_PROC_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#define TEST_PROGRAM_SECONDS 120
#define TEST_CASE_SECONDS    300

/* --- A program that ends by itself ----------------------------------------------------------- */

/* What a program left. Release with test_output_release. */
struct test_output {
    int code;  /* exit code, or 128 + the signal that ended it */
    char *out; /* all of its stdout, NUL-terminated */
    char *err; /* all of its stderr */
};

/* Runs a program to its end: test_run("/path/to/fa-cli", "ping", "--count", "3"). The first
 * argument is an absolute path or a name in PATH, and argv[0]. The environment is the test's: use
 * setenv. */
#define test_run(...) test_run_vector((const char *const[]){__VA_ARGS__, NULL})
struct test_output test_run_vector(const char *const argv[]);

/* The same in two steps, for sending signals in between. The program may block in writing before
 * test_finish reads what it wrote. */
struct test_process {
    pid_t pid;
    int out; /* our ends of its pipes */
    int err;
};
void test_begin(struct test_process *process, const char *const argv[]);
struct test_output test_finish(struct test_process *process);

void test_output_release(struct test_output *output);

/* Path of a built program, "fa-cli" or "fad". Static, one at a time a name. "fad" runs on
 * test_backend() unless it is told otherwise. */
const char *test_program(const char *name);

/* The backend of the daemons that tests start: $FA_TEST_BACKEND, "cuda" or "cpu" (the default). */
const char *test_backend(void);
bool test_on_cuda(void);

/* --- The daemon ------------------------------------------------------------------------------ */

/* A daemon of our own on a socket in a fresh directory; its stderr goes to a file there. */
struct test_daemon {
    pid_t pid;
    char directory[64];
    char socket[96];
    char log[96];
};

/* Whether a daemon serves at the socket: it then closes a connection on which nothing will come.
 * The socket alone may be there long before, while a GPU is made ready. */
bool test_daemon_serves(const char *path);

/* Starts `fad --socket <socket> extra...` and waits until it serves. extra is NULL or ends with
 * NULL. */
void test_daemon_start(struct test_daemon *daemon, const char *const extra[]);

/* Sends SIGTERM, asserts exit code 0 and that the socket is gone, and removes the directory. On an
 * unclean end what the daemon logged goes to stderr first. */
void test_daemon_stop(struct test_daemon *daemon);

/* Kills it with SIGKILL, reaps it, and removes the directory with what it left there. */
void test_daemon_kill(struct test_daemon *daemon);

/* All that the daemon has logged so far. The caller frees it. */
char *test_daemon_log(const struct test_daemon *daemon);

/* --- Odds and ends --------------------------------------------------------------------------- */

/* The whole file, NUL-terminated; *length (may be NULL) without the NUL. The caller frees it. */
char *test_read_file(const char *path, size_t *length);

/* A fresh directory under $TMPDIR (else /tmp), into out; test_remove_directory removes it with the
 * plain files in it and asserts that it held nothing else. */
void test_make_directory(char out[64]);
void test_remove_directory(const char *path);

/* Reaps pid and returns its wait status, or asserts after the given seconds. */
int test_wait(pid_t pid, int seconds);

/* Sleeps for that long, whatever signals come. For polling only: never a verdict. */
void test_sleep_ms(int milliseconds);

/* The monotonic clock, in milliseconds. */
long long test_now_ms(void);

#endif
