#include "daemon/backend/extents.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 64

bool fad_extents_init(struct fad_extents *extents, uint64_t size)
{
    *extents =
        (struct fad_extents){.free = calloc(ROOM_FIRST, sizeof *extents->free), .room = ROOM_FIRST};
    if (!extents->free)
        return false;
    extents->free[0] = (struct fad_extent){0, size};
    extents->count = size > 0;
    return true;
}

void fad_extents_deinit(struct fad_extents *extents)
{
    free(extents->free);
    *extents = (struct fad_extents){.free = NULL};
}

/* As many parts are free as are taken, and one, at most: so giving back never needs memory. */
static bool make_room(struct fad_extents *extents)
{
    struct fad_extent *grown;

    if (extents->taken + 2 <= extents->room)
        return true;
    grown = realloc(extents->free, 2 * extents->room * sizeof *grown);
    if (!grown)
        return false;
    extents->free = grown;
    extents->room *= 2;
    return true;
}

static void remove_at(struct fad_extents *extents, size_t i)
{
    extents->count--;
    memmove(&extents->free[i], &extents->free[i + 1], (extents->count - i) * sizeof *extents->free);
}

bool fad_extents_take(struct fad_extents *extents, uint64_t size, uint64_t *offset)
{
    assert(size > 0);
    if (!make_room(extents))
        return false;
    for (size_t i = 0; i < extents->count; i++) {
        struct fad_extent *part = &extents->free[i];

        if (part->size < size)
            continue;
        *offset = part->offset;
        part->offset += size;
        part->size -= size;
        if (part->size == 0)
            remove_at(extents, i);
        extents->taken++;
        return true;
    }
    return false;
}

/* The first free part behind the offset. */
static size_t find_behind(const struct fad_extents *extents, uint64_t offset)
{
    size_t low = 0, high = extents->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (extents->free[middle].offset > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void fad_extents_give(struct fad_extents *extents, uint64_t offset, uint64_t size)
{
    const size_t i = find_behind(extents, offset);
    struct fad_extent *before = i > 0 ? &extents->free[i - 1] : NULL;
    struct fad_extent *behind = i < extents->count ? &extents->free[i] : NULL;

    assert(extents->taken > 0);
    assert(!before || before->offset + before->size <= offset);
    assert(!behind || offset + size <= behind->offset);
    extents->taken--;
    if (before && before->offset + before->size == offset) {
        before->size += size;
        if (behind && offset + size == behind->offset) {
            before->size += behind->size;
            remove_at(extents, i);
        }
    } else if (behind && offset + size == behind->offset) {
        behind->offset = offset;
        behind->size += size;
    } else {
        assert(extents->count < extents->room);
        memmove(&extents->free[i + 1], &extents->free[i],
                (extents->count - i) * sizeof *extents->free);
        extents->free[i] = (struct fad_extent){offset, size};
        extents->count++;
    }
}
