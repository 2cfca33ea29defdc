/* The wire's shared code: lists that must agree with fad.proto, the frame codec, the capped arena,
 * and the socket's place. */
#include "tests/helpers/test.h"

#include "fad.pb-c.h"
#include "proto/fa_arena.h"
#include "proto/fa_frame.h"
#include "proto/fa_socket.h"
#include "proto/fa_status.h"
#include "proto/fa_types.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- Lists ----------------------------------------------------------------------------------- */

struct entry {
    const char *name;
    int number;
};

static const struct entry statuses[] = {
#define ENTRY(name, number, text) {#name, number},
    FA_STATUS_LIST(ENTRY)
#undef ENTRY
};
static const struct entry masks[] = {
#define ENTRY(name, number, text) {#name, number},
    FA_MASK_LIST(ENTRY)
#undef ENTRY
};
static const struct entry dtypes[] = {
#define ENTRY(name, number, text, bytes) {#name, number},
    FA_DTYPE_LIST(ENTRY)
#undef ENTRY
};

/* Each of the list's entries below limit is in the enum, and each of the enum's in the list. */
static void check_list(const struct entry *list, size_t count, int limit,
                       const ProtobufCEnumDescriptor *wire)
{
    size_t below = 0;

    for (size_t i = 0; i < count; i++) {
        const ProtobufCEnumValue *value =
            protobuf_c_enum_descriptor_get_value(wire, list[i].number);
        if (list[i].number >= limit) {
            ck_assert_ptr_null(value);
            continue;
        }
        below++;
        ck_assert_msg(value != NULL, "%s is not in %s", list[i].name, wire->name);
        ck_assert_str_eq(value->name, list[i].name);
    }
    ck_assert_uint_eq(wire->n_values, below);
    for (unsigned i = 0; i < wire->n_values; i++) {
        size_t j = 0;
        while (j < count && strcmp(list[j].name, wire->values[i].name) != 0)
            j++;
        ck_assert_msg(j < count, "%s is only in %s", wire->values[i].name, wire->name);
        ck_assert_int_eq(list[j].number, wire->values[i].value);
    }
}
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

START_TEST(lists_agree)
{
    check_list(statuses, COUNT(statuses), 64, &fad__status__descriptor);
    check_list(masks, COUNT(masks), INT32_MAX, &fad__mask__descriptor);
    check_list(dtypes, COUNT(dtypes), INT32_MAX, &fad__dtype__descriptor);
    for (size_t i = 0; i < COUNT(statuses); i++)
        ck_assert_str_eq(fa_status_name((enum fa_status)statuses[i].number), statuses[i].name);
    ck_assert_str_eq(fa_status_name((enum fa_status)63), "UNKNOWN");
    ck_assert_str_eq(fa_status_text((enum fa_status) - 1), "unknown status");
}
END_TEST

START_TEST(names)
{
    enum fa_mask mask;

    for (size_t i = 0; i < COUNT(masks); i++) {
        ck_assert(fa_mask_parse(fa_mask_name((enum fa_mask)masks[i].number), &mask));
        ck_assert_int_eq(mask, masks[i].number);
    }
    ck_assert(!fa_mask_parse("causal", &mask));
    ck_assert_ptr_null(fa_mask_name((enum fa_mask)3));
    ck_assert_str_eq(fa_dtype_name(FA_DTYPE_FLOAT32), "float32");
    ck_assert_ptr_null(fa_dtype_name((enum fa_dtype)0));
}
END_TEST

START_TEST(errors)
{
    struct fa_error error;
    char line[400], field[100];

    ck_assert_int_eq(fa_error_set(&error, FA_NOT_FOUND, "q.memfd", "no %d", 7), FA_NOT_FOUND);
    fa_error_format(&error, line, sizeof line);
    ck_assert_str_eq(line, "NOT_FOUND: q.memfd: no 7");
    fa_error_set(&error, FA_INTERNAL, NULL, "none");
    fa_error_format(&error, line, sizeof line);
    ck_assert_str_eq(line, "INTERNAL: none");
    memset(field, 'f', sizeof field - 1); /* cut, and ended */
    field[sizeof field - 1] = '\0';
    fa_error_set(&error, FA_INTERNAL, field, "%0300d", 0);
    ck_assert_uint_eq(strlen(error.field), sizeof error.field - 1);
    ck_assert_uint_eq(strlen(error.text), sizeof error.text - 1);
}
END_TEST

/* --- Frame ----------------------------------------------------------------------------------- */

static const struct fa_frame sample = {.type = 0x8002,
                                       .nfds = 1,
                                       .id = 0x1122334455667788,
                                       .message_length = FA_FRAME_MESSAGE_MAX,
                                       .payload_length = 0xa1b2c3d4e5f6};
static const uint8_t sample_bytes[FA_FRAME_HEADER_SIZE] = {
    'F',  'A', 'D', '1', 0x02, 0x80, 1, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    0x00, 0,   1,   0,   0,    0,    0, 0, 0xf6, 0xe5, 0xd4, 0xc3, 0xb2, 0xa1, 0,    0};

START_TEST(frame_round_trip)
{
    uint8_t bytes[FA_FRAME_HEADER_SIZE];
    struct fa_frame frame;
    struct fa_error error;

    fa_frame_encode(&sample, bytes);
    ck_assert_mem_eq(bytes, sample_bytes, sizeof bytes);
    ck_assert_int_eq(fa_frame_decode(bytes, sample.payload_length, &frame, &error), FA_OK);
    ck_assert_uint_eq(frame.type, sample.type);
    ck_assert_uint_eq(frame.nfds, sample.nfds);
    ck_assert_uint_eq(frame.id, sample.id);
    ck_assert_uint_eq(frame.message_length, sample.message_length);
    ck_assert_uint_eq(frame.payload_length, sample.payload_length);
}
END_TEST

static const struct {
    int byte;
    uint8_t value;
    const char *field;
} bad_headers[] = {
    {0, 'f', "header.magic"},
    {3, '2', "header.magic"},
    {6, 2, "header.nfds"},
    {6, 255, "header.nfds"},
    {7, 1, "header.flags"},
    {7, 0x80, "header.flags"},
    {16, 1, "header.message_length"},
    {19, 0x80, "header.message_length"},
    {20, 1, "header.reserved"},
    {23, 1, "header.reserved"},
    {24, 0xf7, "header.payload_length"},
    {31, 0x80, "header.payload_length"},
};

START_TEST(frame_refusals)
{
    uint8_t bytes[FA_FRAME_HEADER_SIZE];
    struct fa_frame frame;
    struct fa_error error;

    memcpy(bytes, sample_bytes, sizeof bytes);
    bytes[bad_headers[_i].byte] = bad_headers[_i].value;
    ck_assert_int_eq(fa_frame_decode(bytes, sample.payload_length, &frame, &error),
                     FA_PROTOCOL_ERROR);
    ck_assert_int_eq(error.status, FA_PROTOCOL_ERROR);
    ck_assert_str_eq(error.field, bad_headers[_i].field);
    ck_assert_uint_eq(frame.id, bad_headers[_i].byte < 4 ? 0 : sample.id);
}
END_TEST

START_TEST(output_layout)
{
    uint64_t lse;

    ck_assert_uint_eq(fa_output_layout(0, 0, &lse), 0);
    ck_assert_uint_eq(fa_output_layout(12, 0, &lse), 12);
    ck_assert_uint_eq(fa_output_layout(0, 12, &lse), 12);
    ck_assert_uint_eq(lse, 0);
    ck_assert_uint_eq(fa_output_layout(64, 4, &lse), 68);
    ck_assert_uint_eq(lse, 64);
    ck_assert_uint_eq(fa_output_layout(65, 4, &lse), 132);
    ck_assert_uint_eq(lse, 128);
    ck_assert_uint_eq(fa_output_layout(UINT64_MAX - 63, 0, &lse), UINT64_MAX - 63);
    ck_assert_uint_eq(fa_output_layout(UINT64_MAX - 62, 4, &lse), UINT64_MAX);
    ck_assert_uint_eq(fa_output_layout(128, UINT64_MAX - 127, &lse), UINT64_MAX);
    ck_assert_uint_eq(fa_output_layout(UINT64_MAX, UINT64_MAX, &lse), UINT64_MAX);
}
END_TEST

/* --- Arena ----------------------------------------------------------------------------------- */

static struct fa_arena arena;

/* Fills *arena with what the bytes unpack to as a Reply; the allocator never hands out a byte more
 * than it has. */
static bool unpacks(const uint8_t *bytes, size_t size)
{
    ProtobufCAllocator *allocator = fa_arena_reset(&arena);
    bool done = fad__reply__unpack(allocator, size, bytes) != NULL;

    ck_assert_uint_le(arena.used, FA_ARENA_SIZE);
    return done;
}

START_TEST(arena_is_capped)
{
    static uint8_t bytes[FA_FRAME_MESSAGE_MAX];
    const uint8_t ok[] = {0x08, 0x00, 0x1a, 0x02, 'h', 'i'}; /* status: OK, text: "hi" */
    size_t at = 0;

    fa_arena_init(&arena);
    for (at = 0; at < sizeof bytes; at += 2) { /* unknown field 15, varint */
        bytes[at] = 0x78;
        bytes[at + 1] = 1;
    }
    ck_assert(!unpacks(bytes, sizeof bytes));

    /* hello with thousands of empty devices */
    bytes[0] = 0x22;
    bytes[1] = 0xfc, bytes[2] = 0xff, bytes[3] = 0x03; /* length 65532 */
    for (at = 4; at < sizeof bytes; at += 2) {
        bytes[at] = 0x2a;
        bytes[at + 1] = 0;
    }
    ck_assert(!unpacks(bytes, sizeof bytes));

    /* a field twice, as often as fits: each is merged into what came before */
    for (at = 0; at + 4 <= sizeof bytes; at += 4)
        memcpy(bytes + at, "\x22\x02\x08\x01", 4);
    unpacks(bytes, sizeof bytes);

    /* the arena serves again */
    for (int i = 0; i < 1000; i++)
        ck_assert(unpacks(ok, sizeof ok));
    ck_assert_uint_le(arena.used, 1024);
}
END_TEST

START_TEST(arena_alignment)
{
    ProtobufCAllocator *allocator;
    char *last = NULL;

    fa_arena_init(&arena);
    allocator = fa_arena_reset(&arena);
    ck_assert_ptr_null(allocator->alloc(allocator->allocator_data, FA_ARENA_SIZE + 1));
    ck_assert_ptr_null(allocator->alloc(allocator->allocator_data, SIZE_MAX));
    for (size_t size = 1;; size++) {
        char *next = allocator->alloc(allocator->allocator_data, size);
        if (!next)
            break;
        memset(next, 0xff, size);
        ck_assert_uint_eq((uintptr_t)next % _Alignof(max_align_t), 0);
        ck_assert(!last || next >= last + size - 1);
        last = next;
    }
    allocator = fa_arena_reset(&arena);
    ck_assert_ptr_nonnull(allocator->alloc(allocator->allocator_data, FA_ARENA_SIZE));
    ck_assert_ptr_null(allocator->alloc(allocator->allocator_data, 1));
}
END_TEST

/* --- Socket ---------------------------------------------------------------------------------- */

START_TEST(socket_precedence)
{
    char longest[sizeof((struct sockaddr_un *)0)->sun_path + 1];
    struct sockaddr_un address;
    struct fa_error error;

    setenv("FAD_SOCKET", "/from/environment", 1);
    setenv("XDG_RUNTIME_DIR", "/runtime", 1);
    ck_assert_int_eq(fa_socket_address("/given", &address, &error), FA_OK);
    ck_assert_int_eq(address.sun_family, AF_UNIX);
    ck_assert_str_eq(address.sun_path, "/given");
    ck_assert_int_eq(fa_socket_address(NULL, &address, &error), FA_OK);
    ck_assert_str_eq(address.sun_path, "/from/environment");
    setenv("FAD_SOCKET", "", 1);
    ck_assert_int_eq(fa_socket_address(NULL, &address, &error), FA_OK);
    if (geteuid() == 0 || access(FA_SOCKET_SYSTEM, F_OK) == 0)
        ck_assert_str_eq(address.sun_path, FA_SOCKET_SYSTEM);
    else
        ck_assert_str_eq(address.sun_path, "/runtime/fad/fad.sock");
    unsetenv("FAD_SOCKET");
    unsetenv("XDG_RUNTIME_DIR");
    ck_assert_int_eq(fa_socket_address(NULL, &address, &error), FA_OK);
    ck_assert_str_eq(address.sun_path, FA_SOCKET_SYSTEM);

    ck_assert_int_eq(fa_socket_address("", &address, &error), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(error.field, "socket");
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 2] = '\0'; /* 107 bytes: fits with its end */
    ck_assert_int_eq(fa_socket_address(longest, &address, &error), FA_OK);
    ck_assert_str_eq(address.sun_path, longest);
    longest[sizeof longest - 2] = 'x';
    longest[sizeof longest - 1] = '\0';
    ck_assert_int_eq(fa_socket_address(longest, &address, &error), FA_INVALID_ARGUMENT);
}
END_TEST

/* As another user than root the runtime directory comes before the system's place. */
START_TEST(socket_of_a_user)
{
    struct sockaddr_un address;
    struct fa_error error;

    ck_assert_int_eq(seteuid(65534), 0);
    unsetenv("FAD_SOCKET");
    setenv("XDG_RUNTIME_DIR", "/runtime", 1);
    ck_assert_int_eq(fa_socket_address(NULL, &address, &error), FA_OK);
    ck_assert_str_eq(address.sun_path, "/runtime/fad/fad.sock");
    setenv("XDG_RUNTIME_DIR", "", 1);
    ck_assert_int_eq(fa_socket_address(NULL, &address, &error), FA_OK);
    ck_assert_str_eq(address.sun_path, FA_SOCKET_SYSTEM);
    ck_assert_int_eq(seteuid(0), 0);
    prctl(PR_SET_DUMPABLE, 1); /* for LeakSanitizer */
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("proto");
    TCase *tcase = tcase_create("proto");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, lists_agree);
    tcase_add_test(tcase, names);
    tcase_add_test(tcase, errors);
    tcase_add_test(tcase, frame_round_trip);
    tcase_add_loop_test(tcase, frame_refusals, 0, (int)COUNT(bad_headers));
    tcase_add_test(tcase, output_layout);
    tcase_add_test(tcase, arena_is_capped);
    tcase_add_test(tcase, arena_alignment);
    tcase_add_test(tcase, socket_precedence);
    if (geteuid() != 0)
        test_skip("socket_of_a_user", "needs root, to become another user");
    else if (access(FA_SOCKET_SYSTEM, F_OK) == 0)
        test_skip("socket_of_a_user", FA_SOCKET_SYSTEM " exists");
    else
        tcase_add_test(tcase, socket_of_a_user);
    suite_add_tcase(suite, tcase);
    return suite;
}
