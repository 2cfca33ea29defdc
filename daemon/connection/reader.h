/* reader.h: from received bytes and descriptors to frames. Pure: it makes no system call.
 *
 * The owner asks where bytes may go (fad_reader_space), receives, says what came
 * (fad_reader_received), and then takes events (fad_reader_next) until there are none. Small frames
 * are parsed several at a time out of one buffer; a large payload goes straight to its
 * destination. */
#ifndef FAD_READER_H
#define FAD_READER_H

#include "proto/fa_frame.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Descriptors that may wait for their frames. */
#define FAD_READER_FDS_MAX 8

enum fad_reader_event {
    FAD_READER_NOTHING, /* more bytes are needed */
    FAD_READER_MESSAGE, /* header and message are there: answer with accept or skip, then go on */
    FAD_READER_END,     /* the frame's payload is complete (accepted) or dropped (skipped) */
    FAD_READER_BROKEN   /* the stream cannot be followed; the error says why */
};

struct fad_reader {
    uint64_t payload_max;
    void (*discard)(void *user, int fd);
    void *user;
    uint8_t *buffer; /* [start, end) is received and not parsed */
    size_t capacity, start, end;
    uint64_t position; /* of buffer[start] in the stream */
    enum { FAD_READER_HEADER, FAD_READER_AT_MESSAGE, FAD_READER_DECIDE, FAD_READER_PAYLOAD } state;
    struct fa_frame frame; /* the one being read */
    uint8_t *payload;      /* where the rest goes; NULL: dropped */
    uint64_t payload_left;
    struct {
        int fd;
        uint64_t limit; /* the byte it came with lies before this stream position */
    } fds[FAD_READER_FDS_MAX];
    int fd_count;
};

/* What FAD_READER_MESSAGE brings. */
struct fad_message {
    struct fa_frame frame;
    const uint8_t *bytes; /* frame.message_length of them, until the next call on the reader */
    int fd;               /* the caller's from now on; -1: none */
};

/* discard closes a descriptor that no frame gets. */
void fad_reader_init(struct fad_reader *reader, uint64_t payload_max,
                     void (*discard)(void *user, int fd), void *user);

/* Frees the buffer and discards what descriptors wait. */
void fad_reader_deinit(struct fad_reader *reader);

/* Fills iov with where the next bytes may go, in order. Returns how many entries (1 or 2); 0 when
 * memory ran out. */
int fad_reader_space(struct fad_reader *reader, struct iovec iov[2]);

/* Says that size bytes were received into the space, and fd_count descriptors with them. The
 * descriptors are taken. False when too many wait; *error says so. */
bool fad_reader_received(struct fad_reader *reader, size_t size, const int *fds, int fd_count,
                         struct fa_error *error);

/* The next event. message is filled with FAD_READER_MESSAGE, error with FAD_READER_BROKEN. */
enum fad_reader_event fad_reader_next(struct fad_reader *reader, struct fad_message *message,
                                      struct fa_error *error);

/* After FAD_READER_MESSAGE: where the payload goes (may be NULL when it has no bytes), or that it
 * is to be dropped. */
void fad_reader_accept(struct fad_reader *reader, void *payload);
void fad_reader_skip(struct fad_reader *reader);

/* What is left of an accepted payload is dropped: nobody has a place for it any more. */
void fad_reader_drop(struct fad_reader *reader);

/* Bytes of the payload being read that are where they go. */
uint64_t fad_reader_payload_there(const struct fad_reader *reader);

/* Is a frame begun and not complete? */
bool fad_reader_inside_frame(const struct fad_reader *reader);

#endif
