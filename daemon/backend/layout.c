#include "daemon/backend/layout.h"

#include <assert.h>
#include <string.h>

struct fad_layout fad_layout_of(struct fa_extents extents, struct fa_strides strides,
                                uint64_t element_bytes)
{
    struct fad_layout layout = {.counts = {extents.batch, extents.heads, extents.rows},
                                .strides = {(uint64_t)strides.batch * element_bytes,
                                            (uint64_t)strides.head * element_bytes,
                                            (uint64_t)strides.row * element_bytes},
                                .width = extents.width * element_bytes};

    for (int i = 0; i < 3; i++) {
        if (layout.counts[2] > 1 && layout.strides[2] != layout.width)
            break;
        layout.width *= layout.counts[2];
        for (int outer = 2; outer > 0; outer--) {
            layout.counts[outer] = layout.counts[outer - 1];
            layout.strides[outer] = layout.strides[outer - 1];
        }
        layout.counts[0] = 1;
    }
    return layout;
}

uint64_t fad_layout_size(const struct fad_layout *layout)
{
    return layout->counts[0] * layout->counts[1] * layout->counts[2] * layout->width;
}

void fad_layout_copy(const struct fad_layout *layout, void *laid, void *packed, uint64_t first,
                     uint64_t size, bool gathers)
{
    const uint64_t *counts = layout->counts, *strides = layout->strides;
    char *there = packed;
    uint64_t piece, i, j, k, skip;

    if (size == 0)
        return;
    piece = first / layout->width;
    skip = first % layout->width;
    k = piece % counts[2];
    j = piece / counts[2] % counts[1];
    i = piece / counts[2] / counts[1];
    while (size > 0) {
        char *here = (char *)laid + i * strides[0] + j * strides[1] + k * strides[2] + skip;
        const uint64_t left = layout->width - skip, count = left < size ? left : size;

        assert(i < counts[0]);
        memcpy(gathers ? there : here, gathers ? here : there, count);
        there += count;
        size -= count;
        skip = 0;
        if (++k == counts[2]) {
            k = 0;
            if (++j == counts[1]) {
                j = 0;
                i++;
            }
        }
    }
}

void fad_copy_step(struct fad_copy *copy, size_t size)
{
    const bool scatters = copy->layout && !copy->gathers;

    assert(size <= copy->size);
    if (!copy->layout)
        memcpy(copy->to, copy->from, size);
    else
        fad_layout_copy(copy->layout, copy->gathers ? (void *)copy->from : copy->to,
                        copy->gathers ? copy->to : (void *)copy->from,
                        fad_layout_size(copy->layout) - copy->size, size, copy->gathers);
    if (!scatters)
        copy->to = (char *)copy->to + size;
    if (!copy->layout || scatters)
        copy->from = (const char *)copy->from + size;
    copy->size -= size;
}
