/* The frame reader by itself: the same frames whatever the pieces, and every descriptor with its
 * own. */
#include "daemon/connection/reader.h"
#include "tests/helpers/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fad_reader reader;
static uint8_t stream[1 << 20];
static size_t stream_size;

/* What came out, as text: "m<id>" a message, "e<id>" its end, "!" broken. */
static char events[4096];
static uint8_t payload[1 << 20];
static int taken[16], taken_count;
static struct fa_error error;

static void discard(void *user, int fd)
{
    (void)user;
    close(fd);
}

static void setup(void)
{
    fad_reader_init(&reader, 1 << 20, discard, NULL);
    stream_size = 0;
    events[0] = '\0';
    taken_count = 0;
}

static void teardown(void)
{
    fad_reader_deinit(&reader);
    for (int i = 0; i < taken_count; i++)
        close(taken[i]);
}

static uint8_t pattern(uint64_t id, size_t i)
{
    return (uint8_t)(id * 31 + i * 7);
}

/* One assertion in all: each costs a system call. */
static void assert_pattern(const uint8_t *bytes, size_t size, uint64_t id, size_t from)
{
    size_t same = 0;
    while (same < size && bytes[same] == pattern(id, from + same))
        same++;
    ck_assert_uint_eq(same, size);
}

/* Appends a frame; odd ids' payloads are accepted, even ones' skipped. */
static void add_frame(uint64_t id, uint32_t message, uint64_t length, uint8_t nfds)
{
    struct fa_frame frame = {.type = FA_FRAME_PING,
                             .nfds = nfds,
                             .id = id,
                             .message_length = message,
                             .payload_length = length};

    ck_assert_uint_le(stream_size + FA_FRAME_HEADER_SIZE + message + length, sizeof stream);
    fa_frame_encode(&frame, stream + stream_size);
    stream_size += FA_FRAME_HEADER_SIZE;
    for (size_t i = 0; i < message + length; i++)
        stream[stream_size++] = pattern(id, i);
}

static void note(char what, uint64_t id)
{
    size_t used = strlen(events);
    snprintf(events + used, sizeof events - used, "%c%u ", what, (unsigned)id);
}

static void on_message(const struct fad_message *message)
{
    note('m', message->frame.id);
    assert_pattern(message->bytes, message->frame.message_length, message->frame.id, 0);
    if (message->fd >= 0)
        taken[taken_count++] = message->fd;
    if (message->frame.id % 2 == 1)
        fad_reader_accept(&reader, payload);
    else
        fad_reader_skip(&reader);
}

static void on_end(void)
{
    note('e', reader.frame.id);
    if (reader.frame.id % 2 == 1)
        assert_pattern(payload, reader.frame.payload_length, reader.frame.id,
                       reader.frame.message_length);
    memset(payload, 0, sizeof payload);
}

static bool take_all(void)
{
    struct fad_message message;

    for (;;) {
        switch (fad_reader_next(&reader, &message, &error)) {
        case FAD_READER_NOTHING:
            return true;
        case FAD_READER_MESSAGE:
            on_message(&message);
            break;
        case FAD_READER_END:
            on_end();
            break;
        case FAD_READER_BROKEN:
            note('!', reader.frame.id);
            return false;
        }
    }
}

/* Hands over stream bytes [from, to) in pieces of at most piece, fds with the first. */
static bool feed(size_t from, size_t to, size_t piece, const int *fds, int fd_count)
{
    while (from < to) {
        struct iovec iov[2];
        const int count = fad_reader_space(&reader, iov);
        size_t want = to - from < piece ? to - from : piece, given = 0;

        if (count <= 0)
            ck_abort_msg("no space to receive into");
        for (int i = 0; i < count && given < want; i++) {
            size_t here = want - given < iov[i].iov_len ? want - given : iov[i].iov_len;
            memcpy(iov[i].iov_base, stream + from + given, here);
            given += here;
        }
        if (!fad_reader_received(&reader, given, fds, fd_count, &error))
            return false;
        fd_count = 0;
        from += given;
        if (!take_all())
            return false;
    }
    return true;
}

static int a_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void add_mixed_frames(void)
{
    add_frame(1, 0, 0, 0);
    add_frame(2, 10, 0, 0);
    add_frame(3, 0, 100, 0);
    add_frame(4, 300, 5000, 0);
    add_frame(5, 65536, 70000, 0);
    add_frame(6, 1, 200000, 0);
    add_frame(7, 33, 200001, 0);
    add_frame(8, 0, 0, 0);
}

START_TEST(frames_come_out_the_same_whatever_the_pieces)
{
    static const size_t pieces[] = {1, 2, 31, 32, 33, 1000, 16384, 65537, 1 << 20};

    add_mixed_frames();
    ck_assert(feed(0, stream_size, pieces[_i], NULL, 0));
    ck_assert_str_eq(events, "m1 e1 m2 e2 m3 e3 m4 e4 m5 e5 m6 e6 m7 e7 m8 e8 ");
    ck_assert(!fad_reader_inside_frame(&reader));
}
END_TEST

START_TEST(random_pieces)
{
    size_t at = 0;

    srandom((unsigned)_i);
    add_mixed_frames();
    while (at < stream_size) {
        size_t to = at + 1 + (size_t)random() % (_i % 2 ? 50 : 40000);
        if (to > stream_size)
            to = stream_size;
        ck_assert(feed(at, to, stream_size, NULL, 0));
        at = to;
    }
    ck_assert_str_eq(events, "m1 e1 m2 e2 m3 e3 m4 e4 m5 e5 m6 e6 m7 e7 m8 e8 ");
}
END_TEST

START_TEST(inside_frame_is_known_at_every_byte)
{
    add_frame(1, 3, 4, 0);
    ck_assert(!fad_reader_inside_frame(&reader));
    for (size_t i = 0; i + 1 < stream_size; i++) {
        ck_assert(feed(i, i + 1, 1, NULL, 0));
        ck_assert(fad_reader_inside_frame(&reader));
    }
    ck_assert(feed(stream_size - 1, stream_size, 1, NULL, 0));
    ck_assert(!fad_reader_inside_frame(&reader));
}
END_TEST

START_TEST(a_descriptor_goes_to_the_frame_that_announces_it)
{
    int fd = a_descriptor();

    add_frame(1, 5, 5, 1);
    add_frame(3, 5, 5, 0);
    ck_assert(feed(0, stream_size, stream_size, &fd, 1));
    ck_assert_str_eq(events, "m1 e1 m3 e3 ");
    ck_assert_int_eq(taken_count, 1);
    ck_assert_int_eq(taken[0], fd);
}
END_TEST

/* The kernel joins the bytes of two sends, and hands the second's descriptor over with both. */
START_TEST(a_descriptor_may_come_with_the_frame_before)
{
    int fd = a_descriptor();
    size_t first;

    add_frame(1, 5, 50, 0);
    first = stream_size;
    add_frame(3, 5, 50000, 1);
    ck_assert(feed(0, first - 20, stream_size, NULL, 0));
    ck_assert(feed(first - 20, first + 40, stream_size, &fd, 1));
    ck_assert(feed(first + 40, stream_size, 999, NULL, 0));
    ck_assert_str_eq(events, "m1 e1 m3 e3 ");
    ck_assert_int_eq(taken_count, 1);
}
END_TEST

START_TEST(a_missing_descriptor_breaks_the_stream)
{
    add_frame(1, 5, 5, 1);
    ck_assert(!feed(0, stream_size, stream_size, NULL, 0));
    ck_assert_str_eq(events, "!1 ");
    ck_assert_int_eq(error.status, FA_PROTOCOL_ERROR);
    ck_assert_str_eq(error.field, "header.nfds");
}
END_TEST

START_TEST(a_descriptor_left_over_at_its_frames_end_breaks_the_stream)
{
    int fds[2] = {a_descriptor(), a_descriptor()};

    add_frame(1, 5, 5, 1);
    ck_assert(!feed(0, stream_size, stream_size, fds, 2));
    ck_assert_str_eq(events, "m1 !1 ");
    ck_assert_str_eq(error.field, "header.nfds");
}
END_TEST

START_TEST(a_descriptor_left_over_is_found_when_its_bytes_are_done)
{
    int fd = a_descriptor();
    size_t first;

    add_frame(1, 5, 5, 0);
    first = stream_size;
    add_frame(3, 5, 5, 0);
    ck_assert(feed(0, first + 3, stream_size, &fd, 1)); /* it could still be frame 3's */
    ck_assert(!feed(first + 3, stream_size, stream_size, NULL, 0));
    ck_assert_str_eq(events, "m1 e1 m3 !3 ");
}
END_TEST

START_TEST(too_many_waiting_descriptors_break_the_stream_and_leak_none)
{
    int fds[FAD_READER_FDS_MAX + 1];

    for (int i = 0; i <= FAD_READER_FDS_MAX; i++)
        fds[i] = a_descriptor();
    add_frame(1, 5, 5, 0);
    ck_assert(!feed(0, 4, stream_size, fds, FAD_READER_FDS_MAX + 1));
    ck_assert_int_eq(error.status, FA_PROTOCOL_ERROR);
    fad_reader_deinit(&reader);
    for (int i = 0; i <= FAD_READER_FDS_MAX; i++)
        ck_assert_int_eq(fcntl(fds[i], F_GETFD), -1);
}
END_TEST

START_TEST(a_bad_header_breaks_the_stream)
{
    add_frame(1, 5, 5, 0);
    stream[_i] ^= 0xff; /* magic, flags, reserved or a length */
    ck_assert(!feed(0, stream_size, 1, NULL, 0));
    ck_assert_int_eq(error.status, FA_PROTOCOL_ERROR);
    ck_assert(strncmp(error.field, "header.", 7) == 0);
}
END_TEST

Suite *test_suite(void)
{
    static const int bad[] = {0, 1, 2, 3, 6, 7, 19, 20, 23, 30, 31};
    Suite *suite = suite_create("reader");
    TCase *tests = tcase_create("reader");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, frames_come_out_the_same_whatever_the_pieces, 0, 9);
    tcase_add_loop_test(tests, random_pieces, 0, 20);
    tcase_add_test(tests, inside_frame_is_known_at_every_byte);
    tcase_add_test(tests, a_descriptor_goes_to_the_frame_that_announces_it);
    tcase_add_test(tests, a_descriptor_may_come_with_the_frame_before);
    tcase_add_test(tests, a_missing_descriptor_breaks_the_stream);
    tcase_add_test(tests, a_descriptor_left_over_at_its_frames_end_breaks_the_stream);
    tcase_add_test(tests, a_descriptor_left_over_is_found_when_its_bytes_are_done);
    tcase_add_test(tests, too_many_waiting_descriptors_break_the_stream_and_leak_none);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        tcase_add_loop_test(tests, a_bad_header_breaks_the_stream, bad[i], bad[i] + 1);
    suite_add_tcase(suite, tests);
    return suite;
}
