/* loss.h: fad-faulty (tests/faulty) as the daemon under test, and the loss of its device.
 *
 *     tcase_add_checked_fixture(tcase, loss_setup, loss_teardown);
 *     ...
 *     fd = wire_greet();
 *     loss_send(fd, 5, FAULTY_SCALE_LOSE);
 *     wire_expect(fd, 5, FA_DEVICE_LOST, "");
 *     wire_expect_end(fd);
 *     loss_await(1); */
#ifndef TEST_LOSS_H
#define TEST_LOSS_H

#include "tests/faulty/faulty.h"
#include "tests/helpers/manager.h"
#include "tests/helpers/wire_forward.h"
#include "tests/helpers/wire_region.h"

/* Starts it as wire_daemon(), on test_backend() and a socket in a fresh directory, with more
 * options (NULL: none). It may not be up yet: manager_connect waits. */
void loss_begin(const char *const extra[]);

/* The same on a socket that is handed over to it: its descriptor, and it is closed here. */
void loss_begin_inherited(void);

/* Fixtures: with the default options; ended by SIGTERM, with the exit code 0. */
void loss_setup(void);
void loss_teardown(void);

/* A small forward with that scale. */
void loss_append(struct wire_bytes *bytes, uint64_t id, double scale);
void loss_send(int fd, uint64_t id, double scale);

/* The device is lost by a client of its own, who is told so; the daemon has come back, for the
 * count-th time. */
void loss_happens(uint64_t count);

/* Waits until it has come back that often. */
void loss_await(uint64_t count);

/* Words of the reason, as it is logged. */
const char *loss_reason(void);

/* Waits until the log has the words; it is so, or not. */
void loss_await_log(const char *words);
bool loss_has_logged(const char *words);

/* How many forwards were answered DEVICE_LOST, or anything, by the daemon's statistics. */
uint64_t loss_counted_lost(int fd);
uint64_t loss_counted(int fd);

/* The process has ended, with the code; its directory is removed. */
void loss_expect_exit(int code);

#endif
