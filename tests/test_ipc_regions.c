/* Clients' GPU memory by CUDA IPC, registered or named directly, on the scripted backend: what may
 * be registered, what is charged, and that one allocation is known by any of its names. */
#include "tests/helpers/loopback_forward.h"

#include <string.h>

static struct {
    Fad__RegisterRegion message;
    Fad__CudaIpcLocation ipc;
    uint8_t handle[64], uuid[16], event[64];
} asked;

static void setup(void)
{
    loopback_setup();
    loopback_hello(0);
    memset(&asked, 0, sizeof asked);
    fad__register_region__init(&asked.message);
    fad__cuda_ipc_location__init(&asked.ipc);
    asked.message.cuda_ipc = &asked.ipc;
    asked.message.has_writable = asked.message.writable = true;
    asked.ipc.has_handle = asked.ipc.has_buffer_id = asked.ipc.has_device_uuid = true;
    memset(asked.handle, 7, sizeof asked.handle);
    memset(asked.uuid, 1, sizeof asked.uuid);
    asked.ipc.handle = (ProtobufCBinaryData){sizeof asked.handle, asked.handle};
    asked.ipc.device_uuid = (ProtobufCBinaryData){sizeof asked.uuid, asked.uuid};
    asked.ipc.event = (ProtobufCBinaryData){sizeof asked.event, asked.event};
    asked.ipc.buffer_id = 7;
}

static void send_register(uint64_t id)
{
    loopback_send_message(0, FA_FRAME_REGISTER_REGION, id, &asked.message.base, 0);
}

static void expect_refused(enum fa_status status, const char *field)
{
    send_register(2);
    loopback_expect(0, 2, status, field);
    ck_assert_uint_eq(scripted.open_regions, 0);
    ck_assert_uint_eq(loopback.account.used.of[FAD_MAPPED], 0);
    ck_assert_uint_eq(loopback.account.used.of[FAD_REGIONS], 0);
}

static uint64_t registered(void)
{
    struct wire_reply reply;
    uint64_t region;

    send_register(90);
    loopback_receive_reply(0, &reply);
    ck_assert_msg(reply.message->status == FAD__STATUS__OK, "%s", reply.message->text);
    ck_assert_uint_eq(reply.message->region->size, scripted.ipc_size);
    region = reply.message->region->region;
    wire_release(&reply);
    return region;
}

static void release(uint64_t region)
{
    Fad__ReleaseRegion message = FAD__RELEASE_REGION__INIT;

    message.has_region = true;
    message.region = region;
    loopback_send_message(0, FA_FRAME_RELEASE_REGION, 91, &message.base, 0);
    loopback_expect(0, 91, FA_OK, NULL);
}

/* Lets a tensor of a forward lie in a region. */
static void put_region(struct forward *forward, enum fad_tensor t, uint64_t region, uint64_t offset)
{
    static Fad__RegionLocation locations[FAD_TENSORS];

    fad__region_location__init(&locations[t]);
    locations[t].has_region = locations[t].has_offset = true;
    locations[t].region = region;
    locations[t].offset = offset;
    forward->tensors[t].region = &locations[t];
    forward->tensors[t].cuda_ipc = NULL;
}

/* --- Registering ----------------------------------------------------------------------------- */

START_TEST(an_allocation_is_a_region)
{
    struct forward forward;
    uint64_t region;

    scripted.base.separate = true;
    region = registered();
    ck_assert_uint_eq(loopback.account.used.of[FAD_MAPPED], scripted.ipc_size);
    ck_assert_uint_eq(loopback.account.used.of[FAD_REGIONS], 1);
    forward_init(&forward, 4);
    for (int t = 0; t < FAD_TENSORS; t++)
        put_region(&forward, (enum fad_tensor)t, region, 4096u * (unsigned)t);
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 1);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_COPY], 0);
    put_region(&forward, FAD_V, region, scripted.ipc_size - 124); /* by its real size */
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "v.region.offset");
    release(region);
    ck_assert_uint_eq(loopback.account.used.of[FAD_MAPPED], 0);
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

START_TEST(it_fixes_the_device)
{
    struct forward forward;

    memset(asked.uuid, 2, sizeof asked.uuid);
    scripted.hold[SCRIPTED_LAUNCH] = true;
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 2);
    put_region(&forward, FAD_K, registered(), 0);
    loopback_send(0, 2, &forward);
    loopback_turn();
    ck_assert_uint_eq(scripted.held[0].range->device, 1);
    loopback_finish(SCRIPTED_LAUNCH);
    loopback_expect(0, 2, FA_OK, NULL);
    forward_put_ipc(&forward, FAD_V, 7, 1, 8192);
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "v.cuda_ipc.device_uuid");
}
END_TEST

START_TEST(outputs_need_one_that_is_writable)
{
    struct forward forward;

    asked.message.writable = false;
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    put_region(&forward, FAD_Q, registered(), 0);
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_OK, NULL);
    put_region(&forward, FAD_O, 1, 12288);
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "o.region");
}
END_TEST

START_TEST(what_is_wrong_with_it_is_named)
{
    asked.ipc.handle.len = 63;
    expect_refused(FA_INVALID_ARGUMENT, "cuda_ipc.handle");
    asked.ipc.handle.len = 64;
    asked.ipc.has_buffer_id = false;
    expect_refused(FA_INVALID_ARGUMENT, "cuda_ipc.buffer_id");
    asked.ipc.has_buffer_id = true;
    asked.ipc.has_device_uuid = false;
    expect_refused(FA_INVALID_ARGUMENT, "cuda_ipc.device_uuid");
    asked.ipc.has_device_uuid = true;
    asked.ipc.has_event = true;
    expect_refused(FA_INVALID_ARGUMENT, "cuda_ipc.event");
    asked.ipc.has_event = false;
    asked.uuid[0]++;
    expect_refused(FA_NOT_FOUND, "cuda_ipc.device_uuid");
    asked.uuid[0]--;
    asked.message.cuda_ipc = NULL;
    expect_refused(FA_INVALID_ARGUMENT, "header.nfds");
    asked.message.cuda_ipc = &asked.ipc;
    ck_assert_uint_eq(scripted.calls[SCRIPTED_OPEN], 0);
    scripted.base.opens_ipc = false;
    expect_refused(FA_UNIMPLEMENTED, "cuda_ipc");
}
END_TEST

START_TEST(a_descriptor_beside_it_is_refused)
{
    struct wire_bytes bytes = {0};
    const int memfd = wire_memfd(4096, F_SEAL_SHRINK);

    wire_append_message(&bytes, FA_FRAME_REGISTER_REGION, 2, &asked.message.base, NULL, 0);
    loopback_send_bytes(0, bytes.data, bytes.size, memfd);
    loopback_expect(0, 2, FA_INVALID_ARGUMENT, "cuda_ipc");
    wire_free(&bytes);
    close(memfd);
}
END_TEST

START_TEST(the_driver_may_refuse_it)
{
    scripted.refuse[SCRIPTED_OPEN] = FA_IPC_REFUSED;
    expect_refused(FA_IPC_REFUSED, "cuda_ipc");
    scripted.refuse[SCRIPTED_OPEN] = 0;
    scripted.fail[SCRIPTED_OPEN] = FA_IPC_REFUSED;
    expect_refused(FA_IPC_REFUSED, "cuda_ipc");
    scripted.fail[SCRIPTED_OPEN] = 0;
    ck_assert_uint_eq(registered(), 1);
}
END_TEST

/* --- Its real size against the limit --------------------------------------------------------- */

START_TEST(one_over_the_limit_is_closed_again)
{
    scripted.ipc_size = loopback.account.limit.of[FAD_MAPPED] + 1;
    expect_refused(FA_RESOURCE_EXHAUSTED, "");
    ck_assert_uint_eq(scripted.calls[SCRIPTED_CLOSE], 1);
    scripted.ipc_size = 1 << 20;
    ck_assert_uint_eq(registered(), 1);
}
END_TEST

START_TEST(its_refusal_comes_when_it_is_closed)
{
    scripted.ipc_size = loopback.account.limit.of[FAD_MAPPED] + 1;
    scripted.hold[SCRIPTED_CLOSE] = true;
    send_register(2);
    loopback_expect_nothing(0);
    ck_assert_uint_eq(loopback.account.used.of[FAD_MAPPED], 0);
    if (_i == 0) {
        loopback_finish(SCRIPTED_CLOSE);
        loopback_expect(0, 2, FA_RESOURCE_EXHAUSTED, "");
    } else {
        loopback_hang_up(0);
        ck_assert_int_eq(loopback.freed, 0);
        loopback_finish(SCRIPTED_CLOSE);
        ck_assert_int_eq(loopback.freed, 1);
    }
    ck_assert_uint_eq(loopback.account.used.of[FAD_REGIONS], 0);
}
END_TEST

/* It is the client's own memory: that it is mapped costs the daemon nothing. */
START_TEST(direct_handles_are_not_charged)
{
    struct forward forward;

    scripted.ipc_size = loopback.account.limit.of[FAD_MAPPED] + 1;
    scripted.hold[SCRIPTED_LAUNCH] = true;
    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    for (uint64_t id = 2; id < 4; id++) {
        loopback_send(0, id, &forward);
        loopback_turn();
        ck_assert_uint_eq(loopback.account.used.of[FAD_MAPPED], 0);
    }
    for (uint64_t id = 2; id < 4; id++) {
        loopback_finish(SCRIPTED_LAUNCH);
        loopback_expect(0, id, FA_OK, NULL);
    }
    ck_assert_uint_eq(scripted.open_regions, 0);
}
END_TEST

/* --- One allocation, whatever it is called --------------------------------------------------- */

static void expect_overlap(struct forward *forward, uint64_t id, bool overlaps)
{
    loopback_send(0, id, forward);
    loopback_expect(0, id, overlaps ? FA_INVALID_ARGUMENT : FA_OK, overlaps ? "o" : NULL);
}

/* k lies at 4096 and has 128 bytes, as o has. */
START_TEST(an_event_makes_no_other_memory)
{
    struct forward forward;

    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    forward_put_ipc(&forward, FAD_O, 7, 1, 4096 + 124);
    forward.ipc[FAD_O].has_event = true;
    forward.ipc[FAD_O].event = asked.ipc.event;
    expect_overlap(&forward, 2, true);
    forward.ipc[FAD_O].offset = 4096 + 128;
    expect_overlap(&forward, 3, false);
    forward.ipc[FAD_O].offset = 4096;
    forward.ipc[FAD_O].buffer_id = 8; /* other memory at the same address */
    expect_overlap(&forward, 4, false);
}
END_TEST

START_TEST(a_region_and_a_handle_may_name_one_memory)
{
    struct forward forward;
    uint64_t region = registered();

    forward_init(&forward, 4);
    forward_put_all_ipc(&forward, 1);
    put_region(&forward, FAD_O, region, 4096 + 124);
    expect_overlap(&forward, 2, true);
    put_region(&forward, FAD_O, region, 4096 + 128);
    expect_overlap(&forward, 3, false);
    put_region(&forward, FAD_K, region, 4096);
    forward_put_ipc(&forward, FAD_O, 7, 1, 4096 - 124);
    forward.tensors[FAD_O].region = NULL;
    expect_overlap(&forward, 4, true);
    forward_put_ipc(&forward, FAD_O, 8, 1, 4096 - 124);
    expect_overlap(&forward, 5, false);
}
END_TEST

START_TEST(two_regions_may_be_one_memory)
{
    struct forward forward;
    uint64_t first = registered(), second = registered(), other;

    asked.handle[63]++;
    other = registered();
    forward_init(&forward, 4);
    for (int t = 0; t < FAD_TENSORS; t++)
        put_region(&forward, (enum fad_tensor)t, first, 4096u * (unsigned)t);
    put_region(&forward, FAD_O, second, 4096 + 124);
    expect_overlap(&forward, 2, true);
    put_region(&forward, FAD_O, second, 4096 + 128);
    expect_overlap(&forward, 3, false);
    put_region(&forward, FAD_O, other, 4096);
    expect_overlap(&forward, 4, false);
}
END_TEST

/* --- Events ---------------------------------------------------------------------------------- */

static void put_region_event(struct forward *forward, enum fad_tensor t, uint64_t region)
{
    put_region(forward, t, region, 4096u * (unsigned)t);
    forward->tensors[t].region->has_event = true;
    forward->tensors[t].region->event = asked.ipc.event;
}

START_TEST(tensors_in_a_region_wait_for_an_event)
{
    struct forward forward;
    const uint64_t region = registered();

    forward_init(&forward, 4);
    memset(asked.event, 9, sizeof asked.event);
    for (int t = 0; t < FAD_TENSORS; t++)
        put_region_event(&forward, (enum fad_tensor)t, region);
    scripted.hold[SCRIPTED_EVENT] = true;
    loopback_send(0, 2, &forward);
    loopback_turn();
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 1);
    ck_assert_mem_eq(scripted.held[0].wait->handle, asked.event, 64);
    ck_assert_uint_eq(scripted.held[0].wait->device, 0);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_LAUNCH], 0);
    loopback_finish(SCRIPTED_EVENT);
    loopback_expect(0, 2, FA_OK, NULL);
    scripted.hold[SCRIPTED_EVENT] = false;
    scripted.fail[SCRIPTED_EVENT] = FA_IPC_REFUSED;
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_IPC_REFUSED, "q.region.event");
}
END_TEST

/* Only the client's own memory on a GPU has any. */
START_TEST(other_regions_have_no_event)
{
    struct forward forward;
    struct wire_region own;
    const uint64_t region = registered();

    loopback_region(&own, 0, 1 << 16, true);
    forward_init(&forward, 4);
    for (int t = 0; t < FAD_TENSORS; t++)
        put_region(&forward, (enum fad_tensor)t, region, 4096u * (unsigned)t);
    put_region_event(&forward, FAD_K, own.id);
    loopback_send(0, 2, &forward);
    loopback_expect(0, 2, FA_INVALID_ARGUMENT, "k.region.event");
    put_region_event(&forward, FAD_K, region);
    forward.tensors[FAD_K].region->event.len = 63;
    loopback_send(0, 3, &forward);
    loopback_expect(0, 3, FA_INVALID_ARGUMENT, "k.region.event");
    put_region_event(&forward, FAD_K, region);
    loopback_send(0, 4, &forward);
    loopback_expect(0, 4, FA_OK, NULL);
    ck_assert_uint_eq(scripted.calls[SCRIPTED_EVENT], 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("ipc_regions");
    TCase *tests = tcase_create("scripted");

    tcase_set_timeout(tests, 60); /* some clear much memory */
    tcase_add_checked_fixture(tests, setup, loopback_teardown);
    tcase_add_test(tests, an_allocation_is_a_region);
    tcase_add_test(tests, it_fixes_the_device);
    tcase_add_test(tests, outputs_need_one_that_is_writable);
    tcase_add_test(tests, what_is_wrong_with_it_is_named);
    tcase_add_test(tests, a_descriptor_beside_it_is_refused);
    tcase_add_test(tests, the_driver_may_refuse_it);
    tcase_add_test(tests, one_over_the_limit_is_closed_again);
    tcase_add_loop_test(tests, its_refusal_comes_when_it_is_closed, 0, 2);
    tcase_add_test(tests, direct_handles_are_not_charged);
    tcase_add_test(tests, an_event_makes_no_other_memory);
    tcase_add_test(tests, a_region_and_a_handle_may_name_one_memory);
    tcase_add_test(tests, tensors_in_a_region_wait_for_an_event);
    tcase_add_test(tests, other_regions_have_no_event);
    tcase_add_test(tests, two_regions_may_be_one_memory);
    suite_add_tcase(suite, tests);
    return suite;
}
