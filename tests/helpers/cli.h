/* cli.h: running fa-cli in a test. */
#ifndef TEST_CLI_H
#define TEST_CLI_H

#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/proc.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Runs fa-cli with these arguments. */
#define CLI(...) test_run(test_program("fa-cli"), __VA_ARGS__)

/* Runs the count words of argv, and --socket, on a daemon that is this script. */
struct test_output cli_run_on(fake_script *script, void *data, const char *const argv[],
                              size_t count);

/* $TMPDIR of the test and of every program it starts, between setup and teardown. */
extern char cli_directory[64];

/* For tcase_add_checked_fixture. The setup also clears what fa-cli looks at in the environment, but
 * lets --spawn start test_program("fad"). The teardown asserts that no process has the directory in
 * its command line (as a daemon that fa-cli spawned has), and removes the directory, which must
 * hold nothing but plain files. */
void cli_setup(void);
void cli_teardown(void);

/* Whether such a process runs. */
bool cli_daemon_runs(void);

/* Asserts the exit code and that stderr is one line which begins "fa-cli: " and has the words.
 * Releases the output. */
void cli_expect_error(struct test_output *output, int code, const char *words);

/* Asserts exit code 0 and that stdout has the words. Releases the output. */
void cli_expect_output(struct test_output *output, const char *words);

/* Splits text, which is of lines, into them; their number, which is at most room. */
size_t cli_lines(char *text, char *lines[], size_t room);

/* Assert that the object has that field and that it is a number or a string, and return it. */
double cli_number(const cJSON *object, const char *name);
const char *cli_text(const cJSON *object, const char *name);

#endif
