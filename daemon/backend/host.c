#include "daemon/backend/host.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Regions up to this size are unmapped on the loop thread: not memfds that may have grown since, of
 * which it may be the last mapping, so that their memory is freed. */
#define UNMAP_AT_ONCE ((size_t)256 << 10)

/* Larger ones in pieces, each a fraction of a millisecond, so that one client's long call lets the
 * short ones of others pass. */
#define PIECE ((size_t)1 << 20)

/* From this size on, memory is asked for in huge pages: faulting in 75 MB of small ones costs more
 * than receiving the bytes. */
#define HUGE_PAGE ((size_t)2 << 20)

/* Staging memory from this size on is freed by the closer. */
#define FREE_AT_ONCE ((size_t)1 << 20)

/* A kernel before 6.7 maps nothing MAP_SHARED that is sealed against writing, not even to read.
 * Pages of a private mapping that nobody writes to are the file's own. */
static void *map_memfd(const struct fad_region_source *source)
{
    int protection = PROT_READ | (source->writable ? PROT_WRITE : 0);
    void *base = mmap(NULL, source->size, protection, source->writable ? MAP_SHARED : MAP_PRIVATE,
                      source->fd, 0);

    if (base != MAP_FAILED)
        close(source->fd); /* not the last reference */
    return base;
}

int fad_host_open(struct fad_region *region)
{
    const struct fad_region_source *source = &region->source;

    region->base =
        source->kind == FAD_REGION_MEMFD
            ? map_memfd(source)
            : mmap(NULL, source->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region->base == MAP_FAILED) /* anything but memory: a seal added since it was checked */
        return errno == ENOMEM ? FA_RESOURCE_EXHAUSTED : FA_INVALID_ARGUMENT;
    region->size = source->size;
    return 0;
}

static bool run_close(struct fad_op *op, void *scratch)
{
    struct fad_region *region = op->subject;
    const size_t size = region->size < PIECE ? region->size : PIECE;

    (void)scratch;
    munmap(region->base, size);
    region->base = (char *)region->base + size;
    region->size -= size;
    return region->size > 0;
}

void fad_host_close(struct fad_region *region, struct fad_op *op, struct fad_worker *closer)
{
    fad_op_prepare(op, run_close, region);
    if (region->size <= UNMAP_AT_ONCE &&
        (region->source.kind != FAD_REGION_MEMFD || region->source.fixed))
        fad_op_perform(op, NULL, closer->completions);
    else
        fad_worker_give(closer, op);
}

void *fad_host_alloc(size_t size)
{
    size_t align = size >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
    void *memory;

    if (size > SIZE_MAX - align)
        return NULL;
    size = (size + align - 1) / align * align;
    memory = aligned_alloc(align, size ? size : align);
    if (memory && align == HUGE_PAGE)
        madvise(memory, size, MADV_HUGEPAGE); /* a hint: without it small pages serve */
    return memory;
}

static bool run_free(struct fad_op *op, void *scratch)
{
    (void)scratch;
    free(op); /* the memory itself */
    return false;
}

void fad_host_free(void *memory, size_t size, struct fad_worker *closer)
{
    struct fad_op *op = memory;

    if (size < FREE_AT_ONCE) {
        free(memory);
        return;
    }
    *op = (struct fad_op){.done = NULL};
    fad_op_prepare(op, run_free, NULL);
    fad_worker_give(closer, op);
}
