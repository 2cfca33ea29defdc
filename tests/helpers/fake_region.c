#include "tests/helpers/fake_region.h"

#include <check.h>
#include <string.h>

void fake_region_answer(int fd, const struct fake_frame *to, uint64_t id, uint64_t size)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__RegionReply region = FAD__REGION_REPLY__INIT;

    reply.has_status = true;
    reply.region = &region;
    region.has_region = region.has_size = true;
    region.region = id;
    region.size = size;
    fake_reply(fd, to, &reply, NULL, 0);
}

void fake_region_serve_alloc(int fd, uint64_t id)
{
    struct fake_frame frame;
    Fad__AllocRegion *alloc;

    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.frame.type, FA_FRAME_ALLOC_REGION);
    alloc = fad__alloc_region__unpack(NULL, frame.frame.message_length, frame.message);
    ck_assert_ptr_nonnull(alloc);
    ck_assert(alloc->has_size && !alloc->has_device_uuid);
    fake_region_answer(fd, &frame, id, alloc->size);
    fad__alloc_region__free_unpacked(alloc, NULL);
    fake_frame_release(&frame);
}

void fake_region_serve_release(int fd, uint64_t id)
{
    struct fake_frame frame;
    Fad__ReleaseRegion *release;

    ck_assert(fake_read(fd, &frame));
    ck_assert_int_eq(frame.frame.type, FA_FRAME_RELEASE_REGION);
    release = fad__release_region__unpack(NULL, frame.frame.message_length, frame.message);
    ck_assert_ptr_nonnull(release);
    ck_assert(release->has_region);
    ck_assert_uint_eq(release->region, id);
    fake_answer(fd, &frame, NULL, 0);
    fad__release_region__free_unpacked(release, NULL);
    fake_frame_release(&frame);
}

void fake_part_read(int fd, struct fake_part *part, uint64_t id)
{
    struct fake_frame *frame = &part->frame;

    ck_assert(fake_read(fd, frame));
    if (frame->frame.type == FA_FRAME_WRITE_REGION) {
        Fad__WriteRegion *m =
            fad__write_region__unpack(NULL, frame->frame.message_length, frame->message);
        ck_assert_ptr_nonnull(m);
        ck_assert(m->has_region && m->region == id && m->has_offset);
        part->offset = m->offset;
        part->length = frame->frame.payload_length;
        fad__write_region__free_unpacked(m, NULL);
    } else {
        Fad__ReadRegion *m =
            fad__read_region__unpack(NULL, frame->frame.message_length, frame->message);
        ck_assert_int_eq(frame->frame.type, FA_FRAME_READ_REGION);
        ck_assert_ptr_nonnull(m);
        ck_assert(m->has_region && m->region == id && m->has_offset && m->has_length);
        ck_assert_uint_eq(frame->frame.payload_length, 0);
        part->offset = m->offset;
        part->length = m->length;
        fad__read_region__free_unpacked(m, NULL);
    }
    ck_assert(part->length > 0 && part->length <= FAKE_CHUNK);
}

void fake_part_answer(int fd, struct fake_part *part, uint8_t *memory)
{
    if (part->frame.frame.type == FA_FRAME_WRITE_REGION) {
        memcpy(memory + part->offset, part->frame.payload, part->length);
        fake_answer(fd, &part->frame, NULL, 0);
    } else {
        fake_answer(fd, &part->frame, memory + part->offset, part->length);
    }
    fake_frame_release(&part->frame);
}
