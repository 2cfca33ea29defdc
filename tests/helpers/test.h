/* test.h: what every test binary shares. A test file defines test_suite(); helpers/test.c has main.
 * Each binary prints Check's own lines and leaves its counts for tests/run-tests. */
#ifndef TEST_H
#define TEST_H

#include <check.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The binary's suite, defined by its test file. */
Suite *test_suite(void);

/* Says that a test is not run and why, and counts it. Call it from test_suite() instead of
 * registering the test: Check itself knows no skip. */
void test_skip(const char *name, const char *reason);

/* Directory of the built programs ($FA_BUILD, else the one of this binary's parent). Static. */
const char *test_build_dir(void);

/* Directory of the PyTorch reference cases ($FA_DATA), or NULL when there is none. Static. */
const char *test_data_dir(void);

/* The binary's argument, for the few that take one, or NULL. */
const char *test_argument(void);

#ifdef __cplusplus
}
#endif

#endif
