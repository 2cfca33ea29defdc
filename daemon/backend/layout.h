/* layout.h: copies between memory that is packed and memory that is laid out in pieces. */
#ifndef FAD_LAYOUT_H
#define FAD_LAYOUT_H

#include "daemon/backend/backend.h"

/* Where a tensor's elements, of so many bytes each, lie. What touches is one piece. The tensor must
 * have elements, and their bytes a span that fits an int64_t (fa_span). */
struct fad_layout fad_layout_of(struct fa_extents extents, struct fa_strides strides,
                                uint64_t element_bytes);

/* The bytes of all its pieces. */
uint64_t fad_layout_size(const struct fad_layout *layout);

/* Copies the bytes [first, first + size) of the packed order, which need not begin or end with a
 * piece. laid is where piece [0, 0, 0] lies, packed where byte `first` of the packed order does.
 * gathers: from laid to packed, else the other way. Touches nothing between the pieces. */
void fad_layout_copy(const struct fad_layout *layout, void *laid, void *packed, uint64_t first,
                     uint64_t size, bool gathers);

/* Makes the next size bytes of a copy whose places this thread reaches both. Afterwards it is the
 * copy of the rest, copy->size bytes. */
void fad_copy_step(struct fad_copy *copy, size_t size);

#endif
