/* fake_region.h: the regions of a scripted daemon. */
#ifndef FAKE_REGION_H
#define FAKE_REGION_H

#include "tests/helpers/fake_daemon.h"

/* fake_hello's limits let two requests of this size be staged. */
#define FAKE_CHUNK 256u

/* Says that a region was made. */
void fake_region_answer(int fd, const struct fake_frame *to, uint64_t id, uint64_t size);

/* Reads and answers an AllocRegion, or a ReleaseRegion of that id. */
void fake_region_serve_alloc(int fd, uint64_t id);
void fake_region_serve_release(int fd, uint64_t id);

/* A part that a WriteRegion or ReadRegion asks for. */
struct fake_part {
    struct fake_frame frame;
    uint64_t offset, length;
};

/* Reads one of that region. */
void fake_part_read(int fd, struct fake_part *part, uint64_t id);

/* Copies it between the frame and the region's memory, answers, and releases the frame. */
void fake_part_answer(int fd, struct fake_part *part, uint8_t *memory);

#endif
