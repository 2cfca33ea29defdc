#include "proto/fa_arena.h"

static void *arena_alloc(void *data, size_t size)
{
    struct fa_arena *arena = data;
    const size_t align = _Alignof(max_align_t);
    void *out;

    if (size > FA_ARENA_SIZE - arena->used)
        return NULL;
    out = arena->memory + arena->used;
    size += (align - size % align) % align;
    arena->used = size > FA_ARENA_SIZE - arena->used ? FA_ARENA_SIZE : arena->used + size;
    return out;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer;
}

void fa_arena_init(struct fa_arena *arena)
{
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->used = 0;
}

ProtobufCAllocator *fa_arena_reset(struct fa_arena *arena)
{
    arena->used = 0;
    return &arena->allocator;
}
