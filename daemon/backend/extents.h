/* extents.h: which parts of a range of bytes are free. First fit; neighbours merge. */
#ifndef FAD_EXTENTS_H
#define FAD_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fad_extents {
    struct fad_extent {
        uint64_t offset, size;
    } * free;           /* in the order of their offsets; no two touch */
    size_t count, room; /* extents in it, and that fit */
    size_t taken;       /* parts that are not free */
};

/* All of size bytes are free. False: no memory. */
bool fad_extents_init(struct fad_extents *extents, uint64_t size);
void fad_extents_deinit(struct fad_extents *extents);

/* Takes size bytes (> 0). False: no part that is free has so many, or there is no memory. */
bool fad_extents_take(struct fad_extents *extents, uint64_t size, uint64_t *offset);

/* Gives back what was taken. */
void fad_extents_give(struct fad_extents *extents, uint64_t offset, uint64_t size);

#endif
