/* doctor.h: running fa-cli doctor in a test, on machines that a fake libcuda plays. */
#ifndef TEST_DOCTOR_H
#define TEST_DOCTOR_H

#include "tests/helpers/cli.h"

/* For tcase_add_checked_fixture, with cli_teardown: cli_setup, and a machine without CUDA, whatever
 * this one has. */
void doctor_setup(void);

/* From here on the machine that tests/fakes/libcuda.c plays by that text. */
void doctor_play(const char *machine);

/* The path of a socket that nobody made. Static. */
const char *doctor_no_socket(void);

/* Runs it with --json on that socket, or a program with its arguments that runs it so. Asserts the
 * exit code, that stdout is one object, and that both say the same of success. */
cJSON *doctor_examine(const char *socket, int code);
cJSON *doctor_examine_by(const char *const argv[], int code);

/* Asserts that the first finding of that area and state has the words in its text and, unless NULL,
 * in its advice. */
void doctor_expect(const cJSON *object, const char *area, const char *state, const char *text,
                   const char *advice);

/* Asserts that no finding of that area is a lack. */
void doctor_expect_sound(const cJSON *object, const char *area);

/* What became of the transport. */
const char *doctor_outcome(const cJSON *object, const char *name);

#endif
