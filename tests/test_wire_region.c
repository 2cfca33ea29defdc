/* test_wire_region.c: regions by themselves: making, writing, reading and releasing them, with
 * every bound. */
#include "tests/helpers/wire_region.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fill(uint8_t *bytes, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)wire_random(&seed);
}

static bool all_bytes(const struct wire_region *region, uint8_t value)
{
    for (size_t i = 0; i < region->size; i++)
        if (region->memory[i] != value)
            return false;
    return true;
}

/* --- Making ---------------------------------------------------------------------------------- */

/* Also where memory was used before, for another region or another client. */
START_TEST(allocated_region_is_zero)
{
    static const size_t sizes[] = {1, 63, 4096, 4097, 100000, 3 << 20};

    for (int round = 0; round < 3; round++) {
        int fd = wire_greet();

        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct wire_region region;

            wire_region_alloc(&region, fd, sizes[s]);
            wire_region_pull(&region, fd);
            ck_assert(all_bytes(&region, 0));
            memset(region.memory, 0xa5, region.size);
            wire_region_push(&region, fd);
            if (s % 2)
                wire_region_release(&region, fd);
            else
                wire_region_free(&region);
        }
        close(fd);
    }
}
END_TEST

static void alloc_refused(int fd, const Fad__AllocRegion *message, enum fa_status status,
                          const char *field)
{
    struct wire_bytes bytes = {0};

    wire_append_message(&bytes, FA_FRAME_ALLOC_REGION, 5, &message->base, NULL, 0);
    wire_bytes_refused(fd, &bytes, status, field, "");
}

START_TEST(alloc_that_cannot_be_is_refused)
{
    static uint8_t uuid[17] = {9, 9};
    Fad__AllocRegion message = FAD__ALLOC_REGION__INIT;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    alloc_refused(fd, &message, FA_INVALID_ARGUMENT, "size");
    message.has_size = true;
    alloc_refused(fd, &message, FA_INVALID_ARGUMENT, "size");
    message.size = UINT64_MAX;
    alloc_refused(fd, &message, FA_RESOURCE_EXHAUSTED, "");
    message.size = (uint64_t)1 << 63;
    alloc_refused(fd, &message, FA_RESOURCE_EXHAUSTED, "");
    message.size = 64;
    message.has_device_uuid = true;
    message.device_uuid = (ProtobufCBinaryData){15, uuid};
    alloc_refused(fd, &message, FA_INVALID_ARGUMENT, "device_uuid");
    message.device_uuid.len = 17;
    alloc_refused(fd, &message, FA_INVALID_ARGUMENT, "device_uuid");
    message.device_uuid.len = 16;
    alloc_refused(fd, &message, FA_NOT_FOUND, "device_uuid");
    message.has_device_uuid = false;
    wire_append_message(&bytes, FA_FRAME_ALLOC_REGION, 5, &message.base, "data", 4);
    wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, "header.payload_length", "");
    close(fd);
}
END_TEST

/* Every type but RegisterRegion refuses a descriptor, and closes it. */
START_TEST(region_types_take_no_descriptor)
{
    struct wire_region region;
    struct wire_bytes frames[4] = {{0}};
    int fd = wire_greet(), memfd = wire_memfd(4096, F_SEAL_SHRINK);

    wire_region_alloc(&region, fd, 64);
    wire_append_alloc(&frames[0], 5, 64);
    wire_append_write(&frames[1], 5, region.id, 0, "data", 4);
    wire_append_read(&frames[2], 5, region.id, 0, 4);
    wire_append_release(&frames[3], 5, region.id);
    for (int i = 0; i < 4; i++) {
        frames[i].data[6] = 1; /* the header's nfds */
        wire_send_bytes_fds(fd, &frames[i], &memfd, 1);
        wire_expect(fd, 5, FA_INVALID_ARGUMENT, "header.nfds");
    }
    wire_region_pull(&region, fd); /* it was not released */
    wire_region_release(&region, fd);
    close(memfd);
    close(fd);
}
END_TEST

/* --- Writing and reading --------------------------------------------------------------------- */

START_TEST(bytes_written_are_read_back)
{
    enum { SIZE = 300001 };
    static uint8_t expected[SIZE], part[SIZE];
    uint64_t seed = 77;
    struct wire_region region;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, SIZE);
    wire_region_pull(&region, fd);
    for (int i = 0; i < 200; i++) {
        uint64_t offset = i == 0 ? 0 : i == 1 ? SIZE - 1 : wire_random(&seed) % SIZE;
        size_t most = SIZE - offset, size = 1 + wire_random(&seed) % (i % 3 ? most : 40);

        if (i == 0 || size > most)
            size = most; /* all of it, or up to the end */
        fill(part, size, seed);
        memcpy(expected + offset, part, size);
        wire_write(fd, region.id, offset, part, size);
        offset = wire_random(&seed) % SIZE;
        size = 1 + wire_random(&seed) % (SIZE - offset);
        wire_read(fd, region.id, offset, part, size);
        ck_assert(memcmp(part, expected + offset, size) == 0);
    }
    wire_region_pull(&region, fd);
    ck_assert(memcmp(region.memory, expected, SIZE) == 0);
    wire_read(fd, region.id, SIZE - 1, part, 1);
    ck_assert_uint_eq(part[0], expected[SIZE - 1]);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

static void write_refused(int fd, uint64_t region, uint64_t offset, size_t size,
                          enum fa_status status, const char *field)
{
    static const uint8_t data[8192];
    struct wire_bytes bytes = {0};

    ck_assert_uint_le(size, sizeof data);
    wire_append_write(&bytes, 5, region, offset, data, size);
    wire_bytes_refused(fd, &bytes, status, field, "");
}

static void read_refused(int fd, uint64_t region, uint64_t offset, uint64_t length,
                         enum fa_status status, const char *field)
{
    struct wire_bytes bytes = {0};

    wire_append_read(&bytes, 5, region, offset, length);
    wire_bytes_refused(fd, &bytes, status, field, "");
}

START_TEST(bytes_past_the_end_are_refused)
{
    static const struct {
        uint64_t offset;
        uint64_t length;
    } past[] = {{100, 1},
                {99, 2},
                {0, 101},
                {101, 1},
                {4096, 1},
                {UINT64_MAX, 1},
                {UINT64_MAX, 2},
                {UINT64_MAX - 3, 4},
                {UINT64_MAX - 99, 100},
                {(uint64_t)1 << 63, 64}};
    struct wire_region region;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 100);
    memset(region.memory, 7, region.size);
    wire_region_push(&region, fd);
    for (size_t i = 0; i < sizeof past / sizeof past[0]; i++) {
        write_refused(fd, region.id, past[i].offset, past[i].length, FA_INVALID_ARGUMENT, "offset");
        read_refused(fd, region.id, past[i].offset, past[i].length, FA_INVALID_ARGUMENT, "offset");
    }
    wire_region_pull(&region, fd);
    ck_assert(all_bytes(&region, 7));
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

START_TEST(lengths_that_cannot_be_are_refused)
{
    struct wire_region region;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 100);
    write_refused(fd, region.id, 0, 0, FA_INVALID_ARGUMENT, "header.payload_length");
    read_refused(fd, region.id, 0, 0, FA_INVALID_ARGUMENT, "length");
    read_refused(fd, region.id, 0, ((uint64_t)512 << 20) + 1, FA_INVALID_ARGUMENT, "length");
    read_refused(fd, region.id, 0, UINT64_MAX, FA_INVALID_ARGUMENT, "length");
    read_refused(fd, region.id, 0, (uint64_t)512 << 20, FA_INVALID_ARGUMENT, "offset");
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

#define MISSING(Type, INIT, type, field, ...)                           \
    do {                                                                \
        Type message = INIT;                                            \
        struct wire_bytes bytes = {0};                                  \
        __VA_ARGS__;                                                    \
        wire_append_message(&bytes, type, 5, &message.base, "data",     \
                            (type) == FA_FRAME_WRITE_REGION ? 4 : 0);   \
        wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, field, ""); \
    } while (0)

START_TEST(fields_left_out_are_named)
{
    struct wire_region region;
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 100);
    MISSING(Fad__WriteRegion, FAD__WRITE_REGION__INIT, FA_FRAME_WRITE_REGION, "region",
            message.has_offset = true);
    MISSING(Fad__WriteRegion, FAD__WRITE_REGION__INIT, FA_FRAME_WRITE_REGION, "offset",
            message.has_region = true;
            message.region = region.id);
    MISSING(Fad__ReadRegion, FAD__READ_REGION__INIT, FA_FRAME_READ_REGION, "region",
            message.has_offset = message.has_length = true);
    MISSING(Fad__ReadRegion, FAD__READ_REGION__INIT, FA_FRAME_READ_REGION, "offset",
            message.has_region = message.has_length = true;
            message.region = region.id);
    MISSING(Fad__ReadRegion, FAD__READ_REGION__INIT, FA_FRAME_READ_REGION, "length",
            message.has_region = message.has_offset = true;
            message.region = region.id);
    MISSING(Fad__ReleaseRegion, FAD__RELEASE_REGION__INIT, FA_FRAME_RELEASE_REGION, "region",
            (void)0);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

/* --- Whose ----------------------------------------------------------------------------------- */

static void unknown_everywhere(int fd, uint64_t region)
{
    struct wire_bytes bytes = {0};
    struct wire_forward f;

    write_refused(fd, region, 0, 4, FA_NOT_FOUND, "region");
    read_refused(fd, region, 0, 4, FA_NOT_FOUND, "region");
    wire_append_release(&bytes, 5, region);
    wire_bytes_refused(fd, &bytes, FA_NOT_FOUND, "region", "");
    for (int t = 0; t < FAD_TENSORS; t++) {
        static const char *const fields[FAD_TENSORS] = {"q.region.region", "k.region.region",
                                                        "v.region.region", "o.region.region",
                                                        "lse.region.region"};
        wire_forward_make(&f, WIRE_SMALL, 0);
        f.tensors[t].inline_bytes = NULL;
        f.tensors[t].region = &f.lodged[t];
        f.lodged[t].has_region = f.lodged[t].has_offset = true;
        f.lodged[t].region = region;
        wire_refused(fd, &f, FA_NOT_FOUND, fields[t]);
        wire_forward_free(&f);
    }
}

START_TEST(ids_of_nothing_are_not_found)
{
    struct wire_region region;
    uint64_t released;
    int fd = wire_greet();

    unknown_everywhere(fd, 0);
    unknown_everywhere(fd, 1);
    unknown_everywhere(fd, UINT64_MAX);
    wire_region_alloc(&region, fd, 8192);
    released = region.id;
    unknown_everywhere(fd, released + 1);
    wire_region_release(&region, fd);
    unknown_everywhere(fd, released);
    wire_region_alloc(&region, fd, 8192);
    ck_assert_uint_ne(region.id, released);
    unknown_everywhere(fd, released);
    wire_region_release(&region, fd);
    close(fd);
}
END_TEST

/* Ids mean something only on the connection that got them. */
START_TEST(region_of_another_connection_cannot_be_named)
{
    static uint8_t bytes[8192];
    struct wire_region region, own;
    int owner = wire_greet(), other = wire_greet();

    wire_region_alloc(&region, owner, sizeof bytes);
    wire_region_push(&region, owner);
    unknown_everywhere(other, region.id);
    wire_region_alloc(&own, other, sizeof bytes); /* perhaps of the same id */
    wire_region_pull(&own, other);
    ck_assert(all_bytes(&own, 0));
    memset(own.memory, 1, own.size);
    wire_region_push(&own, other);
    wire_region_release(&own, other);
    wire_region_pull(&region, owner);
    ck_assert(all_bytes(&region, 0xff));
    wire_region_release(&region, owner);
    close(owner);
    close(other);
}
END_TEST

START_TEST(second_release_finds_nothing)
{
    struct wire_region region;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_region_alloc(&region, fd, 4 << 20); /* large: it is not gone at once */
    wire_region_push(&region, fd);
    wire_append_release(&bytes, 5, region.id);
    wire_append_release(&bytes, 6, region.id);
    wire_send_bytes(fd, &bytes);
    for (int i = 0; i < 2; i++) {
        struct wire_reply reply;
        wire_receive(fd, &reply);
        ck_assert(reply.frame.id == 5 || reply.frame.id == 6);
        ck_assert_int_eq(reply.message->status,
                         reply.frame.id == 5 ? FAD__STATUS__OK : FAD__STATUS__NOT_FOUND);
        wire_release(&reply);
    }
    wire_region_free(&region);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        allocated_region_is_zero,
        alloc_that_cannot_be_is_refused,
        region_types_take_no_descriptor,
        bytes_written_are_read_back,
        bytes_past_the_end_are_refused,
        lengths_that_cannot_be_are_refused,
        fields_left_out_are_named,
        ids_of_nothing_are_not_found,
        region_of_another_connection_cannot_be_named,
        second_release_finds_nothing,
    };
    return wire_suite("wire_region", tests, sizeof tests / sizeof tests[0]);
}
