/* libfa's fa_client_reconnect: what was in flight ends, regions are lost, nothing is sent twice,
 * and the client works on. */
#include "tests/helpers/fake_region.h"
#include "tests/helpers/fake_small.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void number_connections(Fad__HelloReply *hello, const void *data)
{
    const int *round = data;

    hello->connection = 100 + (uint64_t)*round;
    hello->n_devices -= (size_t)*round % 2;
}

/* --- Of an open client ----------------------------------------------------------------------- */

#define COUNT 4

/* Round 0: answers 1 and a ping, and in the same breath the half of 2. Round 1: a new region, and
 * one forward: nothing is sent twice. */
static void open_script(struct fake_daemon *fake, int fd, int round)
{
    Fad__Reply pong = FAD__REPLY__INIT;
    struct fake_frame frames[COUNT], ping;
    uint8_t *whole, *half, both[1024];
    size_t whole_size, half_size;
    (void)fake;

    fake_hello_as(fd, number_connections, &round);
    fake_region_serve_alloc(fd, 9);
    if (round == 1) {
        ck_assert(fake_small_read(fd, frames, 1));
        ck_assert_int_eq(fake_small_number(frames), 0);
        fake_small_answer(fd, frames);
        fake_frame_release(frames);
        ck_assert(!fake_read(fd, frames));
        return;
    }
    ck_assert(fake_small_read(fd, frames, COUNT));
    ck_assert(fake_read(fd, &ping));
    fake_small_answer(fd, &frames[1]);
    pong.has_status = true;
    whole = fake_reply_bytes(FA_FRAME_REPLY | FA_FRAME_PING, ping.frame.id, &pong, NULL, 0,
                             &whole_size);
    half = fake_small_reply(&frames[2], &half_size);
    half_size -= 6;
    ck_assert_uint_le(whole_size + half_size, sizeof both);
    memcpy(both, whole, whole_size);
    memcpy(both + whole_size, half, half_size);
    fake_send(fd, both, whole_size + half_size);
    free(whole);
    free(half);
    fake_frame_release(&ping);
    for (int i = 0; i < COUNT; i++)
        fake_frame_release(&frames[i]);
    ck_assert(!fake_read(fd, frames));
}

/* The old region, in every use. */
static void check_lost(struct fa_client *client, struct fa_region *region)
{
    struct fake_small small;
    struct fa_request *request;

    fake_small_init(&small, 1);
    small.args.k = (struct fa_tensor){.region = region};
    ck_assert_int_eq(fa_forward_submit(client, &small.args, &request), FA_REGION_LOST);
    ck_assert_ptr_null(request);
    ck_assert_str_eq(fa_last_error_record(client)->field, "k.region");
    ck_assert_int_eq(fa_region_write(client, region, 0, &small, 4), FA_REGION_LOST);
    ck_assert_str_eq(fa_last_error_record(client)->field, "region");
    ck_assert_int_eq(fa_region_read(client, region, 0, &small, 4), FA_REGION_LOST);
    ck_assert_uint_eq(fa_region_size(region), 64);
    ck_assert_int_eq(fa_region_release(client, region), FA_OK);
}

START_TEST(of_an_open_client)
{
    struct fake_daemon fake;
    struct fake_small small[COUNT], again;
    struct fa_client *client;
    struct fa_region *old, *new;

    fake_start(&fake, open_script, NULL, 2);
    client = fake_open(&fake);
    ck_assert_uint_eq(fa_client_info(client)->connection, 100);
    ck_assert_uint_eq(fa_client_info(client)->device_count, 2);
    ck_assert_int_eq(fa_region_alloc(client, &old, 64, NULL), FA_OK);
    fake_small_submit(client, small, COUNT);
    ck_assert_int_eq(fa_ping(client), FA_OK);
    ck_assert_int_eq(fa_client_reconnect(client), FA_OK);
    ck_assert_uint_eq(fa_client_info(client)->connection, 101);
    ck_assert_uint_eq(fa_client_info(client)->device_count, 1);
    for (int i = 0; i < COUNT; i++) {
        ck_assert(fa_request_done(small[i].request));
        if (i == 2) /* which has begun to come in */
            ck_assert_int_eq(fa_wait(client, small[i].request, NULL), FA_DISCONNECTED);
        else
            fake_small_wait(client, &small[i], i == 1 ? FA_OK : FA_DISCONNECTED);
    }
    ck_assert_int_eq(fa_region_alloc(client, &new, 64, NULL), FA_OK);
    check_lost(client, old);
    fake_small_submit(client, &again, 1);
    fake_small_wait(client, &again, FA_OK);
    fa_client_close(client); /* and the new region with it */
    fake_stop(&fake);
}
END_TEST

/* --- Of a lost connection -------------------------------------------------------------------- */

/* Goes with both in flight, in its second life with one. */
static void lost_script(struct fake_daemon *fake, int fd, int round)
{
    struct fake_frame frames[2];
    const int *life = fake->data;
    (void)round;

    fake_hello_as(fd, number_connections, life);
    ck_assert(fake_small_read(fd, frames, 2));
    if (*life == 1)
        fake_small_answer(fd, &frames[1]);
    for (int i = 0; i < 2; i++)
        fake_frame_release(&frames[i]);
}

START_TEST(of_a_lost_connection)
{
    struct fake_daemon fake;
    struct fake_small small[2];
    struct fa_client *client;
    int life = 0;

    fake_start(&fake, lost_script, &life, 1);
    client = fake_open(&fake);
    fake_small_submit(client, small, 2);
    fake_small_wait(client, &small[0], FA_DISCONNECTED);
    fake_check_closed(client, FA_DISCONNECTED);

    /* No daemon there: as often as one likes, and what was not taken waits. */
    ck_assert_int_eq(pthread_join(fake.thread, NULL), 0);
    close(fake.listen_fd);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(fa_client_reconnect(client), FA_UNAVAILABLE);
        ck_assert_ptr_nonnull(strstr(fa_last_error(client), "no daemon listens"));
        fake_check_closed(client, FA_UNAVAILABLE);
        ck_assert_uint_eq(fa_client_info(client)->connection, 100);
    }
    fake_small_wait(client, &small[1], FA_DISCONNECTED);
    life = 1;
    fake_listen(&fake);
    fake_serve(&fake, 1);
    ck_assert_int_eq(fa_client_reconnect(client), FA_OK);
    ck_assert_uint_eq(fa_client_info(client)->connection, 101);
    ck_assert_int_ge(fa_client_fd(client), 0);
    fake_small_submit(client, small, 2);
    fake_small_wait(client, &small[1], FA_OK);
    ck_assert_int_eq(fa_ping(client), FA_DISCONNECTED);
    fa_client_close(client); /* with one that is done */
    fake_stop(&fake);
}
END_TEST

START_TEST(of_no_socket)
{
    struct fa_client *client;

    ck_assert_int_eq(fa_client_reconnect(NULL), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_client_open(&client, ""), FA_INVALID_ARGUMENT);
    ck_assert_int_eq(fa_client_reconnect(client), FA_INVALID_ARGUMENT);
    ck_assert_str_eq(fa_last_error_record(client)->field, "socket");
    ck_assert_int_eq(fa_ping(client), FA_DISCONNECTED);
    fa_client_close(client);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_reconnect");
    TCase *tcase = tcase_create("client_reconnect");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, of_an_open_client);
    tcase_add_test(tcase, of_a_lost_connection);
    tcase_add_test(tcase, of_no_socket);
    suite_add_tcase(suite, tcase);
    return suite;
}
