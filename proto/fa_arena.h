/* fa_arena.h: a capped allocator for unpacking one protobuf message at a time.
 *
 * A message expands when it is unpacked, a hostile one up to 90 times. The arena bounds that: what
 * does not fit is refused by protobuf-c as a message that cannot be unpacked. */
#ifndef FA_ARENA_H
#define FA_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

/* Every message of fad.proto that follows the limits unpacks into much less. */
#define FA_ARENA_SIZE ((size_t)64 * 1024)

struct fa_arena {
    ProtobufCAllocator allocator;
    size_t used;
    _Alignas(max_align_t) unsigned char memory[FA_ARENA_SIZE];
};

/* An empty arena. The struct must stay where it is. */
void fa_arena_init(struct fa_arena *arena);

/* Forgets what the last unpacking allocated and returns the allocator for the next. Never call
 * protobuf's free_unpacked: the memory is the arena's, until the next reset. */
ProtobufCAllocator *fa_arena_reset(struct fa_arena *arena);

#endif
