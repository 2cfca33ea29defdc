/* Opening a client: no daemon, a busy one, and hellos that are not what they should be. */
#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void check_unopened(const char *path, enum fa_status status, const char *text)
{
    struct fa_client *client;

    ck_assert_int_eq(fa_client_open(&client, path), status);
    ck_assert_ptr_nonnull(client);
    ck_assert_int_eq(fa_last_error_record(client)->status, status);
    ck_assert_msg(strstr(fa_last_error(client), text) != NULL, "%s", fa_last_error(client));
    ck_assert_uint_eq(fa_client_info(client)->device_count, 0);
    ck_assert_int_eq(fa_ping(client), FA_DISCONNECTED);
    ck_assert_ptr_nonnull(strstr(fa_last_error(client), fa_status_name(status)));
    fa_client_close(client);
}

START_TEST(no_daemon)
{
    char directory[] = "/tmp/fa-test-XXXXXX", text[400], longer[200];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", directory);
    snprintf(text, sizeof text,
             "UNAVAILABLE: socket: no daemon listens at %s (No such file or directory); start fad, "
             "or give another socket",
             address.sun_path);
    check_unopened(address.sun_path, FA_UNAVAILABLE, text);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd); /* what a daemon that died leaves */
    snprintf(text, sizeof text, "no daemon listens at %s (Connection refused)", address.sun_path);
    check_unopened(address.sun_path, FA_UNAVAILABLE, text);
    unlink(address.sun_path);
    rmdir(directory);

    check_unopened("", FA_INVALID_ARGUMENT, "empty");
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    check_unopened(longer, FA_INVALID_ARGUMENT, "107");
}
END_TEST

static void nothing_script(struct fake_daemon *fake, int fd, int round)
{
    (void)fake;
    if (round == 1)
        fake_hello(fd);
}

/* A listening queue that is full is waited for. */
START_TEST(full_queue)
{
    struct fake_daemon fake;
    struct fa_client *client;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int first, second;

    /* A daemon that does not accept yet, whose queue of length 0 holds one. */
    fake_start(&fake, nothing_script, NULL, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", fake.path);
    first = socket(AF_UNIX, SOCK_STREAM, 0);
    second = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(connect(first, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(connect(second, (struct sockaddr *)&address, sizeof address), -1);
    ck_assert_int_eq(errno, EAGAIN);
    close(second);
    ck_assert_int_eq(pthread_join(fake.thread, NULL), 0);
    fake_serve(&fake, 2); /* first, then the client */
    ck_assert_int_eq(fa_client_open(&client, fake.path), FA_OK);
    fa_client_close(client);
    close(first);
    fake_stop(&fake);
}
END_TEST

/* --- Hello ----------------------------------------------------------------------------------- */

enum { OTHER_MAJOR, REFUSED, NO_HELLO, SHORT_UUID, BOMB, CLOSED, HELLOS };

/* 40 kB that unpack into 40 times as much. */
#define BOMB_DEVICES 20000

static void hello_script(struct fake_daemon *fake, int fd, int round)
{
    static uint8_t three[3];
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__HelloReply hello = FAD__HELLO_REPLY__INIT;
    static Fad__Device device, *devices[BOMB_DEVICES];
    struct fake_frame frame;
    (void)fake;

    ck_assert(fake_read(fd, &frame));
    fad__device__init(&device);
    reply.has_status = true;
    hello.has_protocol_major = true;
    hello.protocol_major = round == OTHER_MAJOR ? 2 : FA_PROTOCOL_MAJOR;
    reply.hello = round == NO_HELLO || round == REFUSED ? NULL : &hello;
    hello.devices = devices;
    hello.n_devices = round == BOMB ? BOMB_DEVICES : 1;
    for (size_t i = 0; i < hello.n_devices; i++)
        devices[i] = &device;
    if (round == SHORT_UUID) {
        device.has_uuid = true;
        device.uuid = (ProtobufCBinaryData){sizeof three, three};
    }
    if (round == REFUSED) {
        reply.status = FAD__STATUS__PROTOCOL_MISMATCH;
        reply.text = FAKE_TEXT("this daemon speaks 3");
    }
    if (round != CLOSED)
        fake_reply(fd, &frame, &reply, NULL, 0);
    fake_frame_release(&frame);
}

START_TEST(bad_hellos)
{
    static const struct {
        enum fa_status status;
        const char *text;
    } expected[HELLOS] = {
        [OTHER_MAJOR] = {FA_PROTOCOL_MISMATCH, "protocol 2.0, this client 1.1"},
        [REFUSED] = {FA_PROTOCOL_MISMATCH, "this daemon speaks 3"},
        [NO_HELLO] = {FA_PROTOCOL_ERROR, "hello"},
        [SHORT_UUID] = {FA_PROTOCOL_ERROR, "hello.devices.uuid"},
        [BOMB] = {FA_PROTOCOL_ERROR, "unpacked"},
        [CLOSED] = {FA_DISCONNECTED, "see the daemon's log, then run again"},
    };
    struct fake_daemon fake;

    fake_start(&fake, hello_script, NULL, HELLOS);
    for (int round = 0; round < HELLOS; round++) {
        struct fa_client *client;

        ck_assert_int_eq(fa_client_open(&client, fake.path), expected[round].status);
        ck_assert_msg(strstr(fa_last_error(client), expected[round].text) != NULL, "%s",
                      fa_last_error(client));
        fake_check_closed(client, expected[round].status);
        fa_client_close(client);
    }
    fake_stop(&fake);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("client_open");
    TCase *tcase = tcase_create("client_open");

    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, no_daemon);
    tcase_add_test(tcase, full_queue);
    tcase_add_test(tcase, bad_hellos);
    suite_add_tcase(suite, tcase);
    return suite;
}
