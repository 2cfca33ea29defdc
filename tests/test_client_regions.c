/* libfa's regions against a scripted daemon: how they are made, copied in parts, and given back.
 * test_client_places.c has tensors in them, test_client_region_faults.c a daemon that refuses. */
#include "tests/helpers/fake_region.h"
#include "tests/helpers/test.h"

#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#define SIZE (5 * FAKE_CHUNK + 40)

/* --- Copying --------------------------------------------------------------------------------- */

static void one_small_job(Fad__HelloReply *hello, const void *data)
{
    (void)data;
    hello->limits->jobs = 1;
    hello->limits->payload_bytes = FAKE_CHUNK / 2;
}

/* Parts as large as can be, two at a time, of which the second is answered first; in round 1 one at
 * a time, and smaller. */
static void copy_script(struct fake_daemon *fake, int fd, int round)
{
    uint8_t memory[SIZE] = {0};
    struct pollfd more = {.fd = fd, .events = POLLIN};
    const uint64_t most = round == 1 ? FAKE_CHUNK / 2 : FAKE_CHUNK;
    struct fake_part parts[2];
    (void)fake;

    fake_hello_as(fd, round == 1 ? one_small_job : NULL, NULL);
    fake_region_serve_alloc(fd, 7);
    for (int way = 0; way < 2; way++) {
        for (uint64_t at = 1; at < SIZE - 1;) {
            fake_part_read(fd, &parts[0], 7);
            ck_assert_uint_eq(parts[0].offset, at);
            ck_assert_uint_eq(parts[0].length, SIZE - 1 - at < most ? SIZE - 1 - at : most);
            at += parts[0].length;
            if (round == 0 && at < SIZE - 1) {
                fake_part_read(fd, &parts[1], 7);
                ck_assert_uint_eq(parts[1].offset, at);
                at += parts[1].length;
                fake_part_answer(fd, &parts[1], memory);
            }
            if (round == 1) /* a client that is right is silent, however long one listens */
                ck_assert_int_eq(poll(&more, 1, 20), 0);
            fake_part_answer(fd, &parts[0], memory);
        }
        ck_assert(memory[0] == 0 && memory[SIZE - 1] == 0);
        for (size_t i = 1; way == 0 && i < SIZE - 1; i++)
            memory[i] ^= 0xff;
    }
    fake_region_serve_release(fd, 7);
}

START_TEST(write_and_read)
{
    struct fake_daemon fake;

    fake_start(&fake, copy_script, NULL, 2);
    for (int round = 0; round < 2; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fa_region *region;
        uint8_t data[SIZE], back[SIZE];

        for (size_t i = 0; i < SIZE; i++)
            data[i] = (uint8_t)(i * 7 + i / 251);
        memset(back, 0xee, sizeof back);
        ck_assert_int_eq(fa_region_alloc(client, &region, SIZE, NULL), FA_OK);
        ck_assert_uint_eq(fa_region_size(region), SIZE);
        ck_assert_int_eq(fa_region_write(client, region, 1, data, SIZE - 2), FA_OK);
        ck_assert_int_eq(fa_region_read(client, region, 1, back + 1, SIZE - 2), FA_OK);
        ck_assert(back[0] == 0xee && back[SIZE - 1] == 0xee);
        for (size_t i = 1; i < SIZE - 1; i++)
            ck_assert_uint_eq(back[i], (uint8_t)(data[i - 1] ^ 0xff));
        ck_assert_int_eq(fa_region_release(client, region), FA_OK);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* --- Making ---------------------------------------------------------------------------------- */

static void register_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    for (int i = 0; i < 2; i++) {
        Fad__RegisterRegion *m;
        struct stat about;

        ck_assert(fake_read(fd, &frame));
        ck_assert_int_eq(frame.frame.type, FA_FRAME_REGISTER_REGION);
        m = fad__register_region__unpack(NULL, frame.frame.message_length, frame.message);
        ck_assert_ptr_nonnull(m);
        ck_assert_int_eq(m->writable, i);
        fad__register_region__free_unpacked(m, NULL);
        ck_assert_int_ge(frame.fd, 0);
        ck_assert_int_eq(fstat(frame.fd, &about), 0);
        ck_assert_int_eq(about.st_size, 5000);
        fake_region_answer(fd, &frame, (uint64_t)i + 1, 5000);
        fake_frame_release(&frame);
    }
    ck_assert(!fake_read(fd, &frame)); /* the client closes: its regions are freed with it */
}

START_TEST(registering)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_region *fixed, *writable;
    struct fa_shared shared;

    fake_start(&fake, register_script, NULL, 1);
    ck_assert_int_eq(fa_shared_create(&shared, 5000), FA_OK);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_register(client, &fixed, &shared, false), FA_OK);
    ck_assert_int_eq(fa_region_register(client, &writable, &shared, true), FA_OK);
    ck_assert_uint_eq(fa_region_size(fixed), 5000);
    ck_assert_int_eq(fa_region_write(client, fixed, 0, &shared, 4), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error(client), "INVALID_ARGUMENT: region: is not writable");
    fa_shared_destroy(&shared);
    ck_assert_int_eq(fa_region_register(client, &fixed, &shared, true), FA_INVALID_ARGUMENT);
    ck_assert_ptr_null(fixed);
    ck_assert_str_eq(fa_last_error_record(client)->field, "shared");
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* --- Wrong calls ----------------------------------------------------------------------------- */

static void quiet_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake, (void)round;

    fake_hello(fd);
    fake_region_serve_alloc(fd, 1);
    ck_assert(!fake_read(fd, &frame)); /* what is wrong is not sent */
}

/* The bytes must lie inside, whatever offset and size add up to. */
static const struct {
    uint64_t offset, size;
} outside[] = {
    {0, SIZE + 1},   {SIZE, 1},       {SIZE + 1, 0},       {UINT64_MAX, 1},
    {1, UINT64_MAX}, {UINT64_MAX, 0}, {UINT64_MAX - 3, 8}, {8, UINT64_MAX - 7},
};

START_TEST(wrong_calls)
{
    struct fake_daemon fake;
    struct fa_client *client, *other;
    struct fa_region *region, *none;
    uint8_t byte = 0;

    fake_start(&fake, quiet_script, NULL, 1);
    ck_assert_int_eq(fa_client_open(&other, ""), FA_INVALID_ARGUMENT);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_alloc(client, &region, SIZE, NULL), FA_OK);
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        ck_assert_int_eq(fa_region_write(client, region, outside[i].offset, &byte, outside[i].size),
                         FA_INVALID_ARGUMENT);
        ck_assert_str_eq(fa_last_error_record(client)->field, "offset");
        ck_assert_int_eq(fa_region_read(client, region, outside[i].offset, &byte, outside[i].size),
                         FA_INVALID_ARGUMENT);
    }
    ck_assert_int_eq(fa_region_write(client, region, SIZE, NULL, 0), FA_OK);
    ck_assert_int_eq(fa_region_write(client, region, 0, NULL, 1), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "data");
    ck_assert_int_eq(fa_region_read(client, NULL, 0, &byte, 1), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "region");
    ck_assert_int_eq(fa_region_read(other, region, 0, &byte, 1), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_release(other, region), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_release(client, NULL), FA_OK);
    ck_assert_int_eq(fa_region_release(NULL, region), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_alloc(client, &none, 0, NULL), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "size");
    ck_assert_int_eq(fa_region_alloc(client, NULL, 1, NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_alloc(NULL, &none, 1, NULL), FA_INVALID_ARGUMENT);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(fa_region_write(NULL, region, 0, &byte, 1), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_region_read(NULL, region, 0, &byte, 1), FA_INVALID_ARGUMENT);
    ck_assert_uint_eq(fa_region_size(NULL), 0);
    fa_client_close(client);
    fa_client_close(other);
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_regions");
    TCase *tcase = tcase_create("client_regions");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, write_and_read);
    tcase_add_test(tcase, registering);
    tcase_add_test(tcase, wrong_calls);
    suite_add_tcase(suite, tcase);
    return suite;
}
