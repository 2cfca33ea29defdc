/* Regions on the scripted backend, on one thread: what a slow, failing or many-device backend does
 * to them. What is in them is tested over the wire. */
#include "tests/helpers/loopback.h"
#include "tests/helpers/test.h"

#include <errno.h>
#include <string.h>

/* Two devices, with the uuids 1, 1, ... and 2, 2, ... */
#define ANY 0
static void send_alloc(int client, uint64_t id, uint64_t size, uint8_t device)
{
    Fad__AllocRegion message = FAD__ALLOC_REGION__INIT;
    uint8_t uuid[16];

    memset(uuid, device, sizeof uuid);
    message.has_size = true;
    message.has_device_uuid = device != ANY;
    message.size = size;
    message.device_uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    loopback_send_message(client, FA_FRAME_ALLOC_REGION, id, &message.base, 0);
}

static uint64_t expect_region(int client, uint64_t id)
{
    uint64_t got, region;
    Fad__Reply *reply = loopback_receive(client, &got);

    ck_assert_ptr_nonnull(reply);
    ck_assert_uint_eq(got, id);
    ck_assert_msg(reply->status == FAD__STATUS__OK && reply->region, "%s", reply->text);
    region = reply->region->region;
    fad__reply__free_unpacked(reply, NULL);
    return region;
}

static uint64_t alloc(int client, uint8_t device)
{
    send_alloc(client, 100, 1 << 16, device);
    return expect_region(client, 100);
}

static void send_read(int client, uint64_t id, uint64_t region)
{
    Fad__ReadRegion message = FAD__READ_REGION__INIT;

    message.has_region = message.has_offset = message.has_length = true;
    message.region = region;
    message.length = 4096;
    loopback_send_message(client, FA_FRAME_READ_REGION, id, &message.base, 0);
}

static void send_write(int client, uint64_t id, uint64_t region)
{
    Fad__WriteRegion message = FAD__WRITE_REGION__INIT;

    message.has_region = message.has_offset = true;
    message.region = region;
    loopback_send_message(client, FA_FRAME_WRITE_REGION, id, &message.base, 4096);
}

static void send_release(int client, uint64_t id, uint64_t region)
{
    Fad__ReleaseRegion message = FAD__RELEASE_REGION__INIT;

    message.has_region = true;
    message.region = region;
    loopback_send_message(client, FA_FRAME_RELEASE_REGION, id, &message.base, 0);
}

static void put_region(struct forward *forward, enum fad_tensor t, Fad__RegionLocation *location,
                       uint64_t region)
{
    fad__region_location__init(location);
    location->has_region = location->has_offset = true;
    location->region = region;
    location->offset = 4096u * (unsigned)t;
    forward->tensors[t].region = location;
}

/* A forward whose tensors all lie in the regions. */
static void send_forward(int client, uint64_t id, const uint64_t regions[FAD_TENSORS])
{
    Fad__RegionLocation locations[FAD_TENSORS];
    struct forward forward;

    forward_init(&forward, 4);
    for (int t = 0; t < FAD_TENSORS; t++)
        put_region(&forward, (enum fad_tensor)t, &locations[t], regions[t]);
    loopback_send(client, id, &forward);
}

START_TEST(an_opening_that_fails_later_names_its_field)
{
    loopback_hello(0);
    scripted.fail[SCRIPTED_OPEN] = FA_RESOURCE_EXHAUSTED;
    send_alloc(0, 2, 4096, 1);
    loopback_expect(0, 2, FA_RESOURCE_EXHAUSTED, "size");
    scripted.fail[SCRIPTED_OPEN] = 0;
    scripted.refuse[SCRIPTED_OPEN] = FA_RESOURCE_EXHAUSTED;
    send_alloc(0, 3, 4096, 1);
    loopback_expect(0, 3, FA_RESOURCE_EXHAUSTED, "size");
    scripted.refuse[SCRIPTED_OPEN] = -EIO;
    send_alloc(0, 4, 4096, 1);
    loopback_expect(0, 4, FA_DEVICE_LOST, "size");
    ck_assert_int_eq(loopback.fatal, -EIO);
    scripted.refuse[SCRIPTED_OPEN] = 0;
    ck_assert_uint_eq(alloc(0, 1), 1);
}
END_TEST

START_TEST(a_hang_up_while_it_opens)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_OPEN] = true;
    send_alloc(0, 2, 4096, 1);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 1);
    loopback_hang_up(0);
    ck_assert_int_eq(loopback.freed, 0);
    scripted_finish(0);
    loopback_turn();
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(a_region_fixes_the_device)
{
    uint64_t first, second, mixed[FAD_TENSORS];

    loopback_hello(0);
    first = alloc(0, 1);
    second = alloc(0, 2);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    for (int t = 0; t < FAD_TENSORS; t++)
        mixed[t] = second;
    send_forward(0, 2, mixed);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 1);
    ck_assert_uint_eq(scripted.held[0].range->device, 1);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    mixed[FAD_V] = first;
    send_forward(0, 3, mixed);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "v.region");
    send_alloc(0, 4, 4096, 3);
    loopback_expect(0, 4, FA_NOT_FOUND, "device_uuid");
}
END_TEST

START_TEST(whatever_fixes_no_device_goes_to_the_least_loaded)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    loopback_send_inline(0, 2);
    loopback_send_inline(0, 3);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 2);
    ck_assert_uint_eq(scripted.held[0].range->device + scripted.held[1].range->device, 1);
    scripted_finish(0);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    loopback_expect(0, 3, FA_OK, NULL);
}
END_TEST

START_TEST(a_release_waits_for_the_requests_in_flight)
{
    uint64_t region, regions[FAD_TENSORS];

    loopback_hello(0);
    region = alloc(0, 1);
    for (int t = 0; t < FAD_TENSORS; t++)
        regions[t] = region;
    scripted.hold[SCRIPTED_LAUNCH] = scripted.hold[SCRIPTED_COPY] = true;
    send_forward(0, 2, regions);
    send_read(0, 3, region);
    send_release(0, 4, region);
    send_forward(0, 5, regions);
    loopback_expect(0, 5, FA_NOT_FOUND, "q.region.region");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_CLOSE], 0);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_CLOSE], 0);
    scripted_finish(0);
    loopback_expect(0, 3, FA_OK, NULL);
    loopback_expect(0, 4, FA_OK, NULL);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(two_copies_of_a_uid_are_made_at_a_time)
{
    uint64_t region;

    loopback_hello(0);
    loopback_hello(1);
    region = alloc(0, 1);
    scripted.hold[SCRIPTED_COPY] = true;
    for (uint64_t id = 2; id < 7; id++)
        send_read(0, id, region);
    send_write(0, 7, region);
    send_read(1, 2, alloc(1, 1));
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 2);
    scripted_finish(0);
    loopback_expect(0, 2, FA_OK, NULL);
    scripted_finish(0);
    loopback_expect(0, 3, FA_OK, NULL);
    ck_assert_uint_eq(scripted.held_count, 2);
    scripted_finish(1); /* of two connections one after the other */
    loopback_expect(1, 2, FA_OK, NULL);
    for (uint64_t id = 4; id < 8; id++) {
        ck_assert_uint_le(scripted.held_count, 2);
        scripted_finish(0);
        loopback_expect(0, id, FA_OK, NULL);
    }
    ck_assert_uint_eq(scripted.held_count, 0);
}
END_TEST

START_TEST(copies_that_wait_go_with_their_client)
{
    uint64_t region;

    loopback_hello(0);
    region = alloc(0, 1);
    scripted.hold[SCRIPTED_COPY] = true;
    for (uint64_t id = 2; id < 8; id++)
        send_write(0, id, region);
    loopback_turn();
    loopback_hang_up(0);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 2);
    ck_assert_int_eq(loopback.freed, 0);
    scripted_finish(1);
    scripted_finish(0);
    loopback_turn();
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 2);
    ck_assert_int_eq(loopback.freed, 1);
    ck_assert_uint_eq(scripted.open_regions + scripted.host_used, 0);
}
END_TEST

START_TEST(a_failed_copy_is_that_requests_affair)
{
    uint64_t region;

    loopback_hello(0);
    region = alloc(0, 1);
    scripted.fail[SCRIPTED_COPY] = FA_INTERNAL;
    send_write(0, 2, region);
    loopback_expect(0, 2, FA_INTERNAL, "");
    scripted.fail[SCRIPTED_COPY] = 0;
    scripted.refuse[SCRIPTED_COPY] = FA_RESOURCE_EXHAUSTED;
    send_read(0, 3, region);
    send_read(0, 4, region);
    loopback_expect(0, 3, FA_RESOURCE_EXHAUSTED, "");
    loopback_expect(0, 4, FA_RESOURCE_EXHAUSTED, "");
    scripted.refuse[SCRIPTED_COPY] = -EIO;
    send_read(0, 5, region);
    loopback_expect(0, 5, FA_DEVICE_LOST, "");
    ck_assert_int_eq(loopback.fatal, -EIO);
    scripted.refuse[SCRIPTED_COPY] = 0;
    send_read(0, 6, region);
    loopback_expect(0, 6, FA_OK, NULL);
}
END_TEST

/* The device that a region was made on. */
static uint32_t device_of_new(int client, uint8_t device)
{
    uint32_t made;

    scripted.hold[SCRIPTED_OPEN] = true;
    send_alloc(client, 100, 1 << 16, device);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 1);
    made = scripted.held[0].region->source.device;
    scripted_finish(0);
    expect_region(client, 100);
    return made;
}

/* One request can use all of a connection's regions, and connections spread over the devices. */
START_TEST(regions_of_a_connection_share_a_device)
{
    uint32_t first;

    loopback_hello(0);
    loopback_hello(1);
    first = device_of_new(0, ANY);
    ck_assert_uint_eq(device_of_new(0, ANY), first);
    ck_assert_uint_eq(device_of_new(1, ANY), 1 - first);
    ck_assert_uint_eq(device_of_new(1, ANY), 1 - first);
    ck_assert_uint_eq(device_of_new(1, (uint8_t)(first + 1)), first); /* by its uuid */
    ck_assert_uint_eq(device_of_new(1, ANY), first);
}
END_TEST

START_TEST(also_those_that_are_made_at_once)
{
    loopback_hello(0);
    scripted.hold[SCRIPTED_OPEN] = true;
    for (uint64_t id = 2; id < 5; id++)
        send_alloc(0, id, 1 << 16, ANY);
    loopback_turn();
    ck_assert_uint_eq(scripted.held_count, 3);
    for (unsigned i = 1; i < 3; i++)
        ck_assert_uint_eq(scripted.held[i].region->source.device,
                          scripted.held[0].region->source.device);
    for (uint64_t id = 2; id < 5; id++) {
        scripted_finish(0);
        expect_region(0, id);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("connection_regions");
    TCase *tests = tcase_create("regions");

    tcase_add_checked_fixture(tests, loopback_setup, loopback_teardown);
    tcase_add_test(tests, an_opening_that_fails_later_names_its_field);
    tcase_add_test(tests, a_hang_up_while_it_opens);
    tcase_add_test(tests, a_region_fixes_the_device);
    tcase_add_test(tests, whatever_fixes_no_device_goes_to_the_least_loaded);
    tcase_add_test(tests, regions_of_a_connection_share_a_device);
    tcase_add_test(tests, also_those_that_are_made_at_once);
    tcase_add_test(tests, a_release_waits_for_the_requests_in_flight);
    tcase_add_test(tests, two_copies_of_a_uid_are_made_at_a_time);
    tcase_add_test(tests, copies_that_wait_go_with_their_client);
    tcase_add_test(tests, a_failed_copy_is_that_requests_affair);
    suite_add_tcase(suite, tests);
    return suite;
}
