/* fa_status.h: the one list of status codes, with names and texts, and the error record.
 *
 * Everything in fad speaks these codes: the wire (fad.proto enum Status has the same numbers, a
 * test holds the two together), the kernels, the daemon, and libfa's return values. Codes never
 * change their number; new ones are added at the end of their block. */
#ifndef FA_STATUS_H
#define FA_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, number, text). 0-63 travel on the wire; from 64 on only libfa gives them. */
#define FA_STATUS_LIST(X)                                                                    \
    X(OK, 0, "success")                                                                      \
    X(INVALID_ARGUMENT, 1, "the request is wrong; the field says where")                     \
    X(UNIMPLEMENTED, 2, "this daemon or this backend does not offer that")                   \
    X(RESOURCE_EXHAUSTED, 3, "a limit is reached; the text names it")                        \
    X(NOT_FOUND, 4, "no such object on this connection")                                     \
    X(IPC_REFUSED, 5, "the driver refused the CUDA IPC handle")                              \
    X(EVENT_TIMEOUT, 6, "the event to wait for did not fire in time")                        \
    X(DEADLINE_EXCEEDED, 7, "the request's deadline passed before it was done")              \
    X(CANCELLED, 8, "the request was cancelled; its output is undefined")                    \
    X(DEVICE_LOST, 9, "the device failed while the request was pending; it was not retried") \
    X(REGION_LOST, 10, "the region went away with a lost device")                            \
    X(PROTOCOL_ERROR, 11, "the bytes do not follow the protocol; the connection is closed")  \
    X(PROTOCOL_MISMATCH, 12, "client and daemon speak different protocol versions")          \
    X(SHUTTING_DOWN, 13, "the daemon is stopping and takes no new work")                     \
    X(INTERNAL, 14, "a fault of the daemon's own; its log says more")                        \
    X(UNAVAILABLE, 64, "no daemon answers at that socket")                                   \
    X(TIMEOUT, 65, "the daemon did not answer in the time given")                            \
    X(DISCONNECTED, 66, "the connection to the daemon is gone")

enum fa_status {
#define FA_STATUS_ENUM(name, number, text) FA_##name = (number),
    FA_STATUS_LIST(FA_STATUS_ENUM)
#undef FA_STATUS_ENUM
};

/* "INVALID_ARGUMENT" for FA_INVALID_ARGUMENT; "UNKNOWN" for a number not in the list. Static. */
const char *fa_status_name(enum fa_status status);

/* The list's sentence for a code; "unknown status" for a number not in the list. Static. */
const char *fa_status_text(enum fa_status status);

/* What went wrong, for a person: the field at fault ("q.stride_row", empty when none is) and a
 * sentence that says what to do. Both are NUL-terminated and cut to fit. */
struct fa_error {
    enum fa_status status;
    char field[48];
    char text[256];
};

/* Fills *error and returns status, so that a check can `return fa_error_set(...)`. */
enum fa_status fa_error_set(struct fa_error *error, enum fa_status status, const char *field,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

/* "STATUS: field: text", without the field where there is none. Returns what snprintf does. */
int fa_error_format(const struct fa_error *error, char *out, size_t size);

#ifdef __cplusplus
}
#endif

#endif
