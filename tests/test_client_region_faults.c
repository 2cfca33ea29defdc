/* libfa's regions against a daemon that refuses, lies, ends or falls silent. */
#include "tests/helpers/fake_region.h"
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <string.h>

#define SIZE (5 * FAKE_CHUNK + 40)

/* Refuses the second part of two and answers the first late; then answers a read with less. */
static void refusing_script(struct fake_daemon *fake, int fd, int round)
{
    uint8_t memory[SIZE] = {0};
    struct fake_part parts[2];
    (void)fake, (void)round;

    fake_hello(fd);
    fake_region_serve_alloc(fd, 1);
    fake_part_read(fd, &parts[0], 1);
    fake_part_read(fd, &parts[1], 1);
    fake_refuse(fd, &parts[0].frame, FA_RESOURCE_EXHAUSTED, "staged_bytes", "full");
    fake_refuse(fd, &parts[1].frame, FA_INTERNAL, NULL, "not told");
    for (int i = 0; i < 2; i++)
        fake_frame_release(&parts[i].frame);
    fake_part_read(fd, &parts[0], 1);
    ck_assert_int_eq(parts[0].frame.frame.type, FA_FRAME_READ_REGION); /* no third part */
    parts[0].length--;
    fake_part_answer(fd, &parts[0], memory);
}

START_TEST(refused_parts)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct fa_region *region;
    uint8_t data[SIZE] = {0};

    fake_start(&fake, refusing_script, NULL, 1);
    client = fake_open(&fake);
    ck_assert_int_eq(fa_region_alloc(client, &region, SIZE, NULL), FA_OK);
    ck_assert_int_eq(fa_region_write(client, region, 0, data, SIZE), FA_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(fa_last_error(client), "RESOURCE_EXHAUSTED: staged_bytes: full");
    ck_assert_int_eq(fa_region_read(client, region, 0, data, 9), FA_PROTOCOL_ERROR);
    ck_assert_str_eq(fa_last_error_record(client)->field, "header.payload_length");
    fake_check_closed(client, FA_PROTOCOL_ERROR);
    ck_assert_int_eq(fa_region_release(client, region), FA_DISCONNECTED);
    fa_client_close(client);
    fake_stop(&fake);
}
END_TEST

/* With two parts in flight it ends in some way, or not at all. */
enum { LAST_WORD, HANG_UP, SILENCE, ENDINGS };

static void ending_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_part parts[2];
    (void)fake;

    fake_hello(fd);
    fake_region_serve_alloc(fd, 1);
    for (int i = 0; i < 2; i++) {
        fake_part_read(fd, &parts[i], 1);
        fake_frame_release(&parts[i].frame);
    }
    if (round == LAST_WORD)
        fake_last_word(fd, 0, FA_SHUTTING_DOWN, "stopping");
    if (round == SILENCE)
        ck_assert(!fake_read(fd, &parts[0].frame)); /* no third part, and the client closes */
}

START_TEST(ended_parts)
{
    static const enum fa_status expected[ENDINGS] = {
        [LAST_WORD] = FA_SHUTTING_DOWN, [HANG_UP] = FA_DISCONNECTED, [SILENCE] = FA_TIMEOUT};
    struct fake_daemon fake;
    uint8_t data[SIZE] = {0};

    fake_start(&fake, ending_script, NULL, ENDINGS);
    for (int round = 0; round < ENDINGS; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fa_region *region;

        ck_assert_int_eq(fa_region_alloc(client, &region, SIZE, NULL), FA_OK);
        if (round == SILENCE)
            fa_client_set_timeout(client, 50);
        ck_assert_int_eq(fa_region_read(client, region, 0, data, SIZE), expected[round]);
        ck_assert_int_eq(fa_last_error_record(client)->status, expected[round]);
        fake_check_closed(client, expected[round]);
        ck_assert_int_eq(fa_region_write(client, region, 0, data, SIZE), FA_DISCONNECTED);
        ck_assert_int_eq(fa_region_release(client, region), FA_DISCONNECTED);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

/* Makes regions that are none; refuses in round 0. */
static void making_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frame;
    (void)fake;

    fake_hello(fd);
    ck_assert(fake_read(fd, &frame));
    if (round == 0)
        fake_refuse(fd, &frame, FA_RESOURCE_EXHAUSTED, "size", "mapped_bytes");
    else if (round == 1)
        fake_answer(fd, &frame, NULL, 0);
    else
        fake_region_answer(fd, &frame, round == 2 ? 0 : 1, round == 2 ? 100 : 99);
    fake_frame_release(&frame);
    while (fake_read(fd, &frame))
        ck_abort_msg("the client goes on");
}

START_TEST(failed_making)
{
    static const char *const fields[] = {"size", "region", "region", "region.size"};
    struct fake_daemon fake;

    fake_start(&fake, making_script, NULL, 4);
    for (int round = 0; round < 4; round++) {
        struct fa_client *client = fake_open(&fake);
        struct fa_region *region = (struct fa_region *)(void *)client;

        ck_assert_int_eq(fa_region_alloc(client, &region, 100, NULL),
                         round == 0 ? FA_RESOURCE_EXHAUSTED : FA_PROTOCOL_ERROR);
        ck_assert_ptr_null(region);
        ck_assert_str_eq(fa_last_error_record(client)->field, fields[round]);
        if (round > 0)
            fake_check_closed(client, FA_PROTOCOL_ERROR);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_region_faults");
    TCase *tcase = tcase_create("client_region_faults");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, refused_parts);
    tcase_add_test(tcase, ended_parts);
    tcase_add_test(tcase, failed_making);
    suite_add_tcase(suite, tcase);
    return suite;
}
