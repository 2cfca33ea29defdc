#include "tests/helpers/fake_daemon.h"

#include <check.h>

void fake_hello_as(int fd, fake_hello_change *change, const void *data)
{
    static uint8_t uuid[16] = {0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    char *transports[2] = {FAKE_TEXT("inline"), FAKE_TEXT("memfd")};
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__HelloReply hello = FAD__HELLO_REPLY__INIT;
    Fad__Limits limits = FAD__LIMITS__INIT;
    Fad__Device devices[2] = {FAD__DEVICE__INIT, FAD__DEVICE__INIT};
    Fad__Version versions[2] = {FAD__VERSION__INIT, FAD__VERSION__INIT};
    Fad__Device *device_list[2] = {&devices[0], &devices[1]};
    Fad__Version *version_list[2] = {&versions[0], &versions[1]};
    struct fake_frame request;

    ck_assert(fake_read(fd, &request));
    ck_assert_int_eq(request.frame.type, FA_FRAME_HELLO);
    devices[0].name = FAKE_TEXT("first");
    devices[0].has_uuid = devices[0].has_memory_bytes = devices[0].has_streams = true;
    devices[0].uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
    devices[0].memory_bytes = 1ull << 40;
    devices[0].streams = 3;
    devices[1].name = FAKE_TEXT("second");
    versions[0].name = FAKE_TEXT("v0"), versions[0].title = FAKE_TEXT("Unfused"),
    versions[0].kernel = FAKE_TEXT("plain");
    versions[1].name = FAKE_TEXT("v4"), versions[1].title = FAKE_TEXT("Optimised v3"),
    versions[1].kernel = FAKE_TEXT("tiled");
    limits.has_message_bytes = limits.has_payload_bytes = limits.has_jobs = true;
    limits.has_staged_bytes = limits.has_mapped_bytes = limits.has_regions = true;
    limits.message_bytes = FA_FRAME_MESSAGE_MAX;
    limits.payload_bytes = FAKE_PAYLOAD_LIMIT;
    limits.jobs = 64;
    limits.staged_bytes = 512;
    limits.mapped_bytes = 1024;
    limits.regions = 5;
    hello.has_protocol_major = hello.has_protocol_minor = true;
    hello.protocol_major = FA_PROTOCOL_MAJOR;
    hello.protocol_minor = 7;
    hello.daemon_version = FAKE_TEXT("9.8.7");
    hello.backend = FAKE_TEXT("cpu");
    hello.n_devices = hello.n_versions = hello.n_transports = 2;
    hello.devices = device_list;
    hello.versions = version_list;
    hello.transports = transports;
    hello.limits = &limits;
    hello.has_connection = true;
    hello.connection = 77;
    if (change)
        change(&hello, data);
    reply.has_status = true;
    reply.hello = &hello;
    fake_reply(fd, &request, &reply, NULL, 0);
    fake_frame_release(&request);
}

void fake_hello(int fd)
{
    fake_hello_as(fd, NULL, NULL);
}
