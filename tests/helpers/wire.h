/* wire.h: a raw client of the daemon, for tests that speak to it byte by byte.
 *
 *     tcase_add_checked_fixture(tcase, wire_setup, wire_teardown);
 *     ...
 *     int fd = wire_greet();
 *     wire_send(fd, bytes.data, bytes.size);
 *     wire_expect(fd, 7, FA_INVALID_ARGUMENT, "heads");
 *     wire_serves(fd);
 *
 * A connection is a plain socket. Everything fails the calling test when the daemon does not answer
 * within WIRE_SECONDS, so that a fault never hangs a test; no verdict depends on how fast it is. */
#ifndef TEST_WIRE_H
#define TEST_WIRE_H

#include "fad.pb-c.h"
#include "proto/fa_frame.h"
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_SECONDS 60

/* --- The daemon under test: one a process ---------------------------------------------------- */

/* Fixtures. setup starts a daemon and notes how many descriptors it holds at rest; teardown asserts
 * that it holds no more and nothing for any client, that it still serves, and that it stops
 * cleanly. */
void wire_setup(void);
void wire_teardown(void);

/* wire_setup with more options for the daemon; extra ends with NULL. */
void wire_setup_with(const char *const extra[]);

/* A suite of one case with these fixtures, for the tests of a whole file. On CUDA the tests share a
 * daemon, which none of them may stop. */
Suite *wire_suite(const char *name, const TTest *const tests[], size_t count);

struct test_daemon *wire_daemon(void);

/* Descriptors that the daemon has open now, but for those of the CUDA driver, and its resident
 * memory in KiB. */
int wire_daemon_fds(void);
long wire_daemon_resident(void);

/* The RLIMIT_NOFILE with which it can open so many more. */
int wire_daemon_fd_limit(int more);

/* How many mappings of clients' shared memory (wire_memfd) it has now. */
int wire_daemon_mappings(void);

/* Waits until the daemon holds no more descriptors than at rest and no shared memory. All
 * connections must be closed. */
void wire_expect_rest(void);

/* --- Bytes ----------------------------------------------------------------------------------- */

struct wire_bytes {
    uint8_t *data;
    size_t size;
};

void wire_append(struct wire_bytes *bytes, const void *data, size_t size);
void wire_free(struct wire_bytes *bytes);

/* A frame as it goes out. Any field may be changed before it is appended: the header says what the
 * fields say, and message_size and payload_size bytes follow, whatever the header announces. */
struct wire_frame {
    uint32_t magic;
    uint16_t type;
    uint8_t nfds;
    uint8_t flags;
    uint64_t id;
    uint32_t message_length;
    uint32_t reserved;
    uint64_t payload_length;
    const void *message;
    size_t message_size;
    const void *payload;
    size_t payload_size;
};

/* A sound frame: with a Ping's (empty) message, or with the given message and payload. */
struct wire_frame wire_ping_frame(uint64_t id);
struct wire_frame wire_make(uint16_t type, uint64_t id, const void *message, size_t message_size,
                            const void *payload, size_t payload_size);

void wire_append_frame(struct wire_bytes *bytes, const struct wire_frame *frame);

/* A small generator of reproducible numbers (xorshift); *state must not be 0. */
uint64_t wire_random(uint64_t *state);

/* --- Sending and receiving ------------------------------------------------------------------- */

/* A connection that has sent nothing; one that has exchanged Hello. */
int wire_connect(void);
int wire_greet(void);

/* Exchanges Hello on a connection made before. */
void wire_hello(int fd);

void wire_send(int fd, const void *data, size_t size);

/* False when the daemon has closed the connection. */
bool wire_try_send(int fd, const void *data, size_t size);

/* With descriptors on the first byte. The bytes up to first_size go in one sendmsg, or the test
 * fails; the rest follows. */
bool wire_try_send_fds(int fd, const void *data, size_t size, size_t first_size, const int *fds,
                       int count);

/* In pieces of 1 to most bytes, each a send of its own. */
void wire_send_pieces(int fd, const void *data, size_t size, size_t most, uint64_t seed);

void wire_send_frame(int fd, const struct wire_frame *frame);

struct wire_reply {
    struct fa_frame frame;
    Fad__Reply *message;
    uint8_t *payload;
};

/* The next reply. Release it with wire_release. */
void wire_receive(int fd, struct wire_reply *reply);
void wire_release(struct wire_reply *reply);

/* The next reply must be this one. field: "" when none is at fault. */
void wire_expect(int fd, uint64_t id, enum fa_status status, const char *field);

/* And its text must contain the words. */
void wire_expect_text(int fd, uint64_t id, enum fa_status status, const char *field,
                      const char *words);

/* The next reply must be the daemon's last word (type FA_FRAME_REPLY), and then comes the end. */
void wire_expect_last(int fd, uint64_t id, enum fa_status status, const char *field);

/* No more replies: the daemon has closed. Closes fd too. */
void wire_expect_end(int fd);

/* Sends a ping and awaits its reply. */
void wire_ping(int fd, uint64_t id);

/* True when the daemon has sent something, or closed, that was not read yet. */
bool wire_has_news(int fd);

#endif
