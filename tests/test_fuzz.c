/* test_fuzz.c: sound streams of frames, mutated by a seeded generator, against the reader and the
 * decoder in this process, and against a real daemon. The same on every run. */
#include "tests/helpers/wire_forward.h"

#include "daemon/connection/reader.h"
#include "daemon/connection/region.h"
#include "proto/fa_arena.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rounds, for about two seconds each; FA_FUZZ_FACTOR makes it longer. */
#define ROUNDS_IN_PROCESS  400000
#define ROUNDS_OVER_SOCKET 10000
#define BATCH              250
#define PAYLOAD_MAX        ((uint64_t)1 << 16)

/* An assertion that costs nothing while it holds: Check's own write to a pipe every time. */
#define MUST(condition)                     \
    do {                                    \
        if (!(condition))                   \
            ck_abort_msg("%s", #condition); \
    } while (0)

static uint64_t rounds(uint64_t usual)
{
    const char *factor = getenv("FA_FUZZ_FACTOR");
    return usual * (factor ? strtoull(factor, NULL, 10) : 1);
}

/* --- What is mutated ------------------------------------------------------------------------- */

enum { CORPUS = 8 };

struct corpus {
    struct wire_bytes frames[CORPUS];
};

static void corpus_make(struct corpus *corpus)
{
    static const unsigned shared[] = {0, 0x1f, 1u << FAD_K, 0x18, 0, 0x1f};
    struct wire_frame hello = wire_make(FA_FRAME_HELLO, 1, "\x08\x01\x10\x00", 4, NULL, 0);
    struct wire_frame ping = wire_ping_frame(2);

    memset(corpus, 0, sizeof *corpus);
    wire_append_frame(&corpus->frames[0], &hello);
    wire_append_frame(&corpus->frames[1], &ping);
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        struct wire_forward f;
        uint8_t version[2] = {'v', '2'};

        wire_forward_make(&f, WIRE_SMALL, shared[i]);
        if (i % 2 == 1) {
            f.message.has_mask = f.message.has_scale = f.message.has_version = true;
            f.message.mask = FAD__MASK__CAUSAL_TOP_LEFT;
            f.message.scale = 0.25;
            f.message.version = (ProtobufCBinaryData){sizeof version, version};
            wire_forward_set_strides(&f, FAD_Q, 96, 24, 8);
            wire_forward_set_strides(&f, FAD_LSE, 12, 3, 1);
        }
        if (i >= 4) /* numbers at the end of their range, in a field each */
            f.inlined[i % 3].offset = f.shared[i % 3].offset = UINT64_MAX - 3;
        if (i == 2)
            wire_forward_use_ipc(&f, FAD_V);
        wire_forward_append(&f, 10 + i, &corpus->frames[2 + i]);
        wire_forward_free(&f);
    }
}

static void corpus_free(struct corpus *corpus)
{
    for (int i = 0; i < CORPUS; i++)
        wire_free(&corpus->frames[i]);
}

static uint64_t below(uint64_t *seed, uint64_t limit)
{
    return limit ? wire_random(seed) % limit : 0;
}

/* One change of size bytes in place, the last bytes perhaps cut off; returns the new size. */
static size_t change(uint8_t *bytes, size_t size, uint64_t *seed)
{
    static const uint8_t special[] = {0, 1, 0x7f, 0x80, 0xff, 0x08, 0x0a, 0x12, 0x1a};
    size_t at, count, from;

    if (size == 0)
        return 0;
    at = below(seed, size);
    switch (below(seed, 6)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << below(seed, 8));
        return size;
    case 1:
        bytes[at] = special[below(seed, sizeof special)];
        return size;
    case 2:
        bytes[at] = (uint8_t)wire_random(seed);
        return size;
    case 3: /* a piece over another place */
        from = below(seed, size);
        count = below(seed, 16);
        if (from + count <= size && at + count <= size)
            memmove(bytes + at, bytes + from, count);
        return size;
    case 4: /* a run of one value: long varints, huge lengths */
        count = below(seed, 11);
        if (at + count <= size)
            memset(bytes + at, special[below(seed, sizeof special)], count);
        return size;
    default: /* a piece taken out */
        count = below(seed, 8);
        if (at + count > size)
            return at;
        memmove(bytes + at, bytes + at + count, size - at - count);
        return size - count;
    }
}

/* A few mutated frames in a row. Most keep a header that fits, so that the message is reached. */
static void mutate(const struct corpus *corpus, struct wire_bytes *out, uint64_t *seed)
{
    int frames = 1 + (int)below(seed, 3);

    while (frames-- > 0) {
        const struct wire_bytes *base = &corpus->frames[below(seed, CORPUS)];
        uint32_t message;
        uint8_t bytes[8192];
        size_t size = base->size, changed;

        MUST(size < sizeof bytes);
        memcpy(bytes, base->data, size);
        memcpy(&message, bytes + 16, sizeof message);
        switch (below(seed, 8)) {
        case 0: /* anything, anywhere */
            for (uint64_t n = below(seed, 4); n > 0; n--)
                size = change(bytes, size, seed);
            break;
        case 1: /* as it is */
            break;
        case 2: /* the header's fields */
            for (uint64_t n = 1 + below(seed, 2); n > 0; n--)
                change(bytes + 4, FA_FRAME_HEADER_SIZE - 4, seed);
            break;
        default: /* the message, with its length set right */
            changed = message;
            for (uint64_t n = 1 + below(seed, 5); n > 0; n--)
                changed = change(bytes + FA_FRAME_HEADER_SIZE, changed, seed);
            memmove(bytes + FA_FRAME_HEADER_SIZE + changed, bytes + FA_FRAME_HEADER_SIZE + message,
                    size - FA_FRAME_HEADER_SIZE - message);
            size -= message - changed;
            message = (uint32_t)changed;
            memcpy(bytes + 16, &message, sizeof message);
        }
        wire_append(out, bytes, size);
    }
    if (below(seed, 8) == 0)
        out->size = below(seed, out->size + 1);
}

/* Whether a descriptor goes with the piece at a stream's byte: mostly as the first frame says, so
 * that requests get through, else at random. */
static bool gives_descriptor(const struct wire_bytes *stream, size_t at, uint64_t mode,
                             uint64_t *seed)
{
    if (mode == 0)
        return below(seed, 4) == 0;
    return at == 0 && stream->size > 6 && stream->data[6] == 1;
}

/* --- In this process ------------------------------------------------------------------------- */

/* The last byte that strides and extents reach, computed anew, in numbers that cannot overflow. */
static void assert_inside(struct fad_request *request, int tensor, uint64_t offset, uint64_t size)
{
    const struct fa_problem *p = &request->problem;
    const struct fa_strides *s = fad_tensor_strides(&request->problem, (enum fad_tensor)tensor);
    bool kv = tensor == FAD_K || tensor == FAD_V;
    __int128 heads = kv ? p->kv_heads : p->heads, rows = kv ? p->kv_len : p->q_len;
    __int128 width = tensor == FAD_LSE ? 1 : p->head_dim, last;

    if (p->batch == 0 || heads == 0 || rows == 0)
        return;
    MUST(s->batch >= 0 && s->head >= 0 && s->row >= 0);
    last =
        (p->batch - (__int128)1) * s->batch + (heads - 1) * s->head + (rows - 1) * s->row + width;
    MUST(offset + last * 4 <= size); /* else a tensor past its memory was let through */
}

static uint64_t passed, refused; /* so that the fuzzer is seen to reach both */

/* Every region that a request names. */
static struct fad_client_region any_region = {.writable = true, .region = {.size = 4096}};

static bool accepts(const struct fad_message *message, int64_t memfd_size,
                    struct fad_request *request, struct fa_error *error)
{
    static struct fa_arena arena;

    fa_arena_init(&arena);
    if (fad_request_decode(message->bytes, message->frame.message_length, fa_arena_reset(&arena),
                           request, error) != FA_OK)
        return false;
    for (int t = 0; t < FAD_TENSORS; t++)
        request->at[t].region = &any_region;
    return fad_request_check(request, message->frame.payload_length, memfd_size, error) == FA_OK;
}

static void check_request(const struct fad_message *message, int64_t memfd_size)
{
    struct fad_request request;
    struct fa_error error = {.status = FA_OK};
    uint64_t payload = message->frame.payload_length;

    if (!accepts(message, memfd_size, &request, &error)) {
        MUST(error.status != FA_OK);
        MUST(error.status < FA_UNAVAILABLE);
        MUST(error.field[0] && error.text[0]);
        refused++;
        return;
    }
    passed++;
    MUST(request.problem.head_dim >= 1 && request.problem.head_dim <= FA_HEAD_DIM_MAX);
    MUST(request.problem.kv_heads >= 1 || request.problem.heads == 0);
    for (int t = 0; t < FAD_TENSORS; t++) {
        const struct fad_location *at = &request.at[t];
        if (at->place == FAD_MEMFD)
            assert_inside(&request, t, at->offset, (uint64_t)memfd_size);
        else if (at->place == FAD_REGION)
            assert_inside(&request, t, at->offset, any_region.region.size);
        else if (at->place == FAD_INLINE && t <= FAD_V)
            assert_inside(&request, t, at->offset, payload);
        else if (at->place == FAD_INLINE)
            assert_inside(&request, t, at->offset, request.output_size);
    }
}

/* Takes all events; false when the stream is broken. */
static bool take_events(struct fad_reader *reader, uint8_t *payload, uint64_t *seed)
{
    struct fad_message message;
    struct fa_error error;

    for (;;) {
        switch (fad_reader_next(reader, &message, &error)) {
        case FAD_READER_NOTHING:
            return true;
        case FAD_READER_BROKEN:
            MUST(error.status == FA_PROTOCOL_ERROR);
            MUST(strncmp(error.field, "header.", 7) == 0 && error.text[0]);
            return false;
        case FAD_READER_MESSAGE:
            MUST(message.frame.payload_length <= PAYLOAD_MAX);
            if (message.frame.type == FA_FRAME_FORWARD)
                check_request(&message, message.fd < 0 ? -1 : (int64_t)below(seed, 8192));
            if (message.fd >= 0)
                close(message.fd);
            if (below(seed, 2))
                fad_reader_accept(reader, payload);
            else
                fad_reader_skip(reader);
            break;
        case FAD_READER_END:
            break;
        }
    }
}

static void discard(void *user, int fd)
{
    (void)user;
    close(fd);
}

static void feed(const struct wire_bytes *stream, uint8_t *payload, uint64_t *seed)
{
    struct fad_reader reader;
    size_t at = 0, most = 1 + below(seed, below(seed, 2) ? 40 : 20000);
    uint64_t mode = below(seed, 5);
    bool whole = true;

    fad_reader_init(&reader, PAYLOAD_MAX, discard, NULL);
    while (whole && at < stream->size) {
        size_t piece = 1 + below(seed, most), taken = 0;
        struct iovec iov[2];
        int count = fad_reader_space(&reader, iov), fds[1], fd_count = 0;
        struct fa_error error;

        MUST(count == 1 || count == 2);
        for (int i = 0; i < count && piece > taken && at + taken < stream->size; i++) {
            size_t here = piece - taken;
            here = here < iov[i].iov_len ? here : iov[i].iov_len;
            here = here < stream->size - at - taken ? here : stream->size - at - taken;
            memcpy(iov[i].iov_base, stream->data + at + taken, here);
            taken += here;
        }
        if (gives_descriptor(stream, at, mode, seed))
            fds[fd_count++] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        at += taken;
        whole = fad_reader_received(&reader, taken, fds, fd_count, &error) &&
                take_events(&reader, payload, seed);
    }
    fad_reader_deinit(&reader);
}

START_TEST(mutated_streams_in_process)
{
    struct corpus corpus;
    uint64_t seed = 0x5eed0001;
    uint8_t *payload = malloc(PAYLOAD_MAX);
    int first, last;

    ck_assert_ptr_nonnull(payload);
    corpus_make(&corpus);
    first = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (uint64_t i = rounds(ROUNDS_IN_PROCESS); i > 0; i--) {
        struct wire_bytes stream = {0};

        mutate(&corpus, &stream, &seed);
        feed(&stream, payload, &seed);
        wire_free(&stream);
    }
    last = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert(passed > rounds(ROUNDS_IN_PROCESS) / 20 && refused > rounds(ROUNDS_IN_PROCESS) / 20);
    ck_assert_int_eq(last, first + 1); /* no descriptor is left */
    close(first);
    close(last);
    corpus_free(&corpus);
    free(payload);
}
END_TEST

/* --- Against the daemon ---------------------------------------------------------------------- */

static void send_stream(int fd, const struct wire_bytes *stream, int memfd, uint64_t *seed)
{
    size_t most = 1 + below(seed, below(seed, 4) ? 20000 : 60);
    uint64_t mode = below(seed, 5);

    for (size_t at = 0; at < stream->size;) {
        size_t piece = 1 + below(seed, most);
        bool open;

        if (piece > stream->size - at)
            piece = stream->size - at;
        if (gives_descriptor(stream, at, mode, seed))
            open = wire_try_send_fds(fd, stream->data + at, piece, piece, &memfd, 1);
        else
            open = wire_try_send(fd, stream->data + at, piece);
        if (!open)
            return;
        at += piece;
    }
}

START_TEST(mutated_streams_over_a_socket)
{
    struct corpus corpus;
    uint64_t seed = 0x5eed0002;
    int memfd = wire_memfd(8192, F_SEAL_SHRINK);
    uint64_t last = rounds(ROUNDS_OVER_SOCKET);

    corpus_make(&corpus);
    for (uint64_t i = 1; i <= last; i++) {
        struct wire_bytes stream = {0};
        int fd = below(&seed, 4) ? wire_greet() : wire_connect();

        mutate(&corpus, &stream, &seed);
        send_stream(fd, &stream, memfd, &seed);
        wire_free(&stream);
        close(fd);
        if (i % BATCH == 0 || i == last) {
            fd = wire_greet();
            wire_serves(fd);
            close(fd);
            wire_expect_rest();
        }
    }
    corpus_free(&corpus);
    close(memfd);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("fuzz");
    TCase *inside = tcase_create("in process"), *outside = tcase_create("over a socket");

    tcase_set_timeout(inside, TEST_CASE_SECONDS);
    tcase_set_timeout(outside, TEST_CASE_SECONDS);
    tcase_add_test(inside, mutated_streams_in_process);
    tcase_add_checked_fixture(outside, wire_setup, wire_teardown);
    tcase_add_test(outside, mutated_streams_over_a_socket);
    suite_add_tcase(suite, inside);
    suite_add_tcase(suite, outside);
    return suite;
}
