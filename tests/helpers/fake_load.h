/* fake_load.h: fa-cli load, and bench, on a fake daemon that refuses, stalls, answers wrongly or
 * goes away. */
#ifndef TEST_FAKE_LOAD_H
#define TEST_FAKE_LOAD_H

#include "tests/helpers/proc.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* A row without keys: o = 0 is right, whatever q is. One connection, one request at a time. */
#define SHAPE "--shape", "1,1,1,8", "--kv-len", "0"

enum fault {
    REFUSES,
    CLOSES,
    SHUTS_DOWN,
    IS_SILENT,
    INTERRUPTS,
    INTERRUPTS_TWICE,
    LIES,
    ERRS,
    STALLS
};

struct script {
    enum fault fault;
    int first; /* forward that meets with the fault, counted from 0: the one before the load */
    int every; /* more of them, so far apart; 0: none */
    bool cuda; /* its backend, as fake_cuda_hello says */
    int stall_ms;
    int slow;          /* a forward whose answer takes stall_ms too, as it is no fault; 0: none */
    _Atomic pid_t pid; /* fa-cli's */
    /* What was seen: */
    int forwards, faults;
};

/* LIES: with other bits; ERRS: with another value. Runs the count words of argv, and --socket, on
 * such a daemon. */
struct test_output load_on(struct script *script, const char *const argv[], size_t count);

#define LOAD_ON(script, ...)                                                                   \
    load_on(script, (const char *const[]){test_program("fa-cli"), "load", SHAPE, __VA_ARGS__}, \
            sizeof((const char *[]){"", "", SHAPE, __VA_ARGS__}) / sizeof(const char *))

#endif
