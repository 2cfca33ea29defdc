#include "daemon/connection/reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Enough for the largest header and message; smaller at first, since most connections need
 * little. */
#define CAPACITY_FIRST ((size_t)16 * 1024)
#define CAPACITY_MAX   ((size_t)FA_FRAME_HEADER_SIZE + FA_FRAME_MESSAGE_MAX)

/* No single receive of a payload is longer, so that connections take turns. */
#define RECEIVE_MAX ((uint64_t)1 << 20)

void fad_reader_init(struct fad_reader *reader, uint64_t payload_max,
                     void (*discard)(void *user, int fd), void *user)
{
    memset(reader, 0, sizeof *reader);
    reader->payload_max = payload_max;
    reader->discard = discard;
    reader->user = user;
}

void fad_reader_deinit(struct fad_reader *reader)
{
    for (int i = 0; i < reader->fd_count; i++)
        reader->discard(reader->user, reader->fds[i].fd);
    reader->fd_count = 0;
    free(reader->buffer);
    reader->buffer = NULL;
}

static size_t available(const struct fad_reader *reader)
{
    return reader->end - reader->start;
}

/* Bytes the buffer must hold before the next event can come. */
static size_t wanted(const struct fad_reader *reader)
{
    if (reader->state == FAD_READER_AT_MESSAGE)
        return reader->frame.message_length;
    return FA_FRAME_HEADER_SIZE;
}

static bool make_room(struct fad_reader *reader)
{
    size_t need = wanted(reader);

    if (reader->start > 0) {
        memmove(reader->buffer, reader->buffer + reader->start, available(reader));
        reader->end -= reader->start;
        reader->start = 0;
    }
    if (!reader->buffer || reader->capacity < need) {
        size_t capacity = reader->buffer ? CAPACITY_MAX : CAPACITY_FIRST;
        uint8_t *grown = realloc(reader->buffer, capacity);
        if (!grown)
            return false;
        reader->buffer = grown;
        reader->capacity = capacity;
    }
    return true;
}

int fad_reader_space(struct fad_reader *reader, struct iovec iov[2])
{
    int count = 0;

    if (!make_room(reader))
        return 0;
    if (reader->state == FAD_READER_PAYLOAD && reader->payload && reader->payload_left > 0) {
        assert(available(reader) == 0);
        iov[count].iov_base = reader->payload;
        iov[count++].iov_len =
            reader->payload_left < RECEIVE_MAX ? reader->payload_left : RECEIVE_MAX;
        if (reader->payload_left > RECEIVE_MAX)
            return count;
    }
    assert(reader->end < reader->capacity);
    iov[count].iov_base = reader->buffer + reader->end;
    iov[count++].iov_len = reader->capacity - reader->end;
    return count;
}

static void consume(struct fad_reader *reader, size_t size)
{
    reader->start += size;
    reader->position += size;
}

bool fad_reader_received(struct fad_reader *reader, size_t size, const int *fds, int fd_count,
                         struct fa_error *error)
{
    uint64_t limit = reader->position + available(reader) + size;
    bool fits = true;

    for (int i = 0; i < fd_count; i++) {
        if (reader->fd_count < FAD_READER_FDS_MAX) {
            reader->fds[reader->fd_count].fd = fds[i];
            reader->fds[reader->fd_count++].limit = limit;
        } else {
            reader->discard(reader->user, fds[i]);
            fits = false;
        }
    }
    if (reader->state == FAD_READER_PAYLOAD && reader->payload && available(reader) == 0) {
        size_t direct = size < reader->payload_left ? size : (size_t)reader->payload_left;
        reader->payload += direct;
        reader->payload_left -= direct;
        reader->position += direct;
        size -= direct;
    }
    reader->end += size;
    if (!fits)
        fa_error_set(error, FA_PROTOCOL_ERROR, "header.nfds",
                     "more than %d descriptors came without their frames", FAD_READER_FDS_MAX);
    return fits;
}

static enum fad_reader_event broken(struct fa_error *error, const char *text)
{
    fa_error_set(error, FA_PROTOCOL_ERROR, "header.nfds", "%s", text);
    return FAD_READER_BROKEN;
}

static enum fad_reader_event at_message(struct fad_reader *reader, struct fad_message *message,
                                        struct fa_error *error)
{
    message->frame = reader->frame;
    message->bytes = reader->buffer + reader->start;
    message->fd = -1;
    if (reader->frame.nfds > 0) {
        if (reader->fd_count == 0)
            return broken(error, "a descriptor is announced but did not come with the frame");
        message->fd = reader->fds[0].fd;
        memmove(&reader->fds[0], &reader->fds[1],
                (size_t)--reader->fd_count * sizeof reader->fds[0]);
    }
    consume(reader, reader->frame.message_length);
    reader->state = FAD_READER_DECIDE;
    return FAD_READER_MESSAGE;
}

static enum fad_reader_event at_payload(struct fad_reader *reader, struct fa_error *error)
{
    size_t here = available(reader);

    if (here > reader->payload_left)
        here = (size_t)reader->payload_left;
    if (reader->payload && here > 0) {
        memcpy(reader->payload, reader->buffer + reader->start, here);
        reader->payload += here;
    }
    consume(reader, here);
    reader->payload_left -= here;
    if (reader->payload_left > 0)
        return FAD_READER_NOTHING;
    /* What came with bytes up to here belonged to this frame or one before. */
    if (reader->fd_count > 0 && reader->fds[0].limit <= reader->position)
        return broken(error, "a descriptor came that no frame announced");
    reader->state = FAD_READER_HEADER;
    return FAD_READER_END;
}

enum fad_reader_event fad_reader_next(struct fad_reader *reader, struct fad_message *message,
                                      struct fa_error *error)
{
    assert(reader->state != FAD_READER_DECIDE);
    if (reader->state == FAD_READER_HEADER) {
        if (available(reader) < FA_FRAME_HEADER_SIZE)
            return FAD_READER_NOTHING;
        if (fa_frame_decode(reader->buffer + reader->start, reader->payload_max, &reader->frame,
                            error) != FA_OK)
            return FAD_READER_BROKEN;
        consume(reader, FA_FRAME_HEADER_SIZE);
        reader->state = FAD_READER_AT_MESSAGE;
    }
    if (reader->state == FAD_READER_AT_MESSAGE) {
        if (available(reader) < reader->frame.message_length)
            return FAD_READER_NOTHING;
        return at_message(reader, message, error);
    }
    return at_payload(reader, error);
}

void fad_reader_accept(struct fad_reader *reader, void *payload)
{
    assert(reader->state == FAD_READER_DECIDE);
    assert(payload || reader->frame.payload_length == 0);
    reader->payload = payload;
    reader->payload_left = reader->frame.payload_length;
    reader->state = FAD_READER_PAYLOAD;
}

void fad_reader_skip(struct fad_reader *reader)
{
    assert(reader->state == FAD_READER_DECIDE);
    reader->payload = NULL;
    reader->payload_left = reader->frame.payload_length;
    reader->state = FAD_READER_PAYLOAD;
}

void fad_reader_drop(struct fad_reader *reader)
{
    assert(reader->state == FAD_READER_PAYLOAD);
    reader->payload = NULL;
}

uint64_t fad_reader_payload_there(const struct fad_reader *reader)
{
    assert(reader->state == FAD_READER_PAYLOAD);
    return reader->frame.payload_length - reader->payload_left;
}

bool fad_reader_inside_frame(const struct fad_reader *reader)
{
    return reader->state != FAD_READER_HEADER || available(reader) > 0;
}
