/* fake_small.h: many small forwards for the tests of requests in flight. Each carries a number of
 * its own, and the answer depends on it. */
#ifndef FAKE_SMALL_H
#define FAKE_SMALL_H

#include "tests/helpers/fake_daemon.h"

/* q, k, v, o [1,1,1,4], all inline: q has the number four times, o is then 1000 more. */
#define FAKE_SMALL_WIDTH 4
struct fake_small {
    float q[FAKE_SMALL_WIDTH], k[FAKE_SMALL_WIDTH], v[FAKE_SMALL_WIDTH], o[FAKE_SMALL_WIDTH];
    struct fa_forward_args args;
    struct fa_request *request;
};

/* *small must stay where it is. */
void fake_small_init(struct fake_small *small, int number);

/* Initialises and submits that many, numbered from 0. */
void fake_small_submit(struct fa_client *client, struct fake_small *small, int count);

/* Takes it, and checks that it came to status: FA_OK with the answer that its number has. */
void fake_small_wait(struct fa_client *client, struct fake_small *small, enum fa_status status);

/* Reads that many forwards; false when the client closed before the first. */
bool fake_small_read(int fd, struct fake_frame *frames, int count);

/* The number that a forward carries. */
int fake_small_number(const struct fake_frame *frame);

/* Answers it; its total_us is the number too. */
void fake_small_answer(int fd, const struct fake_frame *frame);

/* The answer's bytes, malloc'ed. */
uint8_t *fake_small_reply(const struct fake_frame *frame, size_t *size);

/* A last word. */
void fake_last_word(int fd, uint64_t id, int status, const char *text);

/* 0, 1, ... count - 1 in an order that follows from the seed. */
void fake_shuffle(int *order, int count, unsigned seed);

/* The next of a series of numbers that follows from *state. */
unsigned fake_random(unsigned *state);

#endif
