/* cuda_forged.c: memory handles that are not as a driver gave them.
 *
 * A driver takes a handle's word for where in its block of memory an allocation lies: with other
 * bytes there it maps an address behind the block, and the first access loses the device, for
 * everybody. What a handle's bytes mean is the driver's secret, but handles of memory of our own
 * show whether it is as we know it (seen of driver 580):
 *     u64 at 16  the allocation's bytes
 *     u32 at 24  its block's pages of 4 KiB, which the driver does check
 *     u32 at 28  where in the block it begins
 * Then handles that contradict themselves are refused. */
#include "daemon/backend/cuda_parts.h"

#include "daemon/util/log.h"

#include <string.h>

#define PAGE ((uint64_t)4096)

struct meaning {
    uint64_t size, block, offset; /* bytes */
};

static struct meaning meaning_of(const uint8_t bytes[64])
{
    uint32_t pages, offset;
    struct meaning meaning;

    memcpy(&meaning.size, bytes + 16, sizeof meaning.size);
    memcpy(&pages, bytes + 24, sizeof pages);
    memcpy(&offset, bytes + 28, sizeof offset);
    meaning.block = pages * PAGE;
    meaning.offset = offset;
    return meaning;
}

static bool is_sound(const struct meaning *meaning)
{
    return meaning->size > 0 && meaning->offset <= meaning->block &&
           meaning->size <= meaning->block - meaning->offset;
}

bool cuda_is_forged(const struct cuda_backend *backend, const uint8_t bytes[64])
{
    const struct meaning meaning = meaning_of(bytes);

    return backend->knows_handles && !is_sound(&meaning);
}

/* Two small allocations lie in one block; the third has one of its own. */
#define SAMPLES 3
static const size_t sample_sizes[SAMPLES] = {300, 300, (size_t)3 << 20};

static bool learn(char *const samples[SAMPLES])
{
    struct meaning meanings[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        cudaIpcMemHandle_t handle;

        if (!samples[i] || cudaIpcGetMemHandle(&handle, samples[i]) != cudaSuccess)
            return false;
        meanings[i] = meaning_of((const uint8_t *)&handle);
        if (meanings[i].size != sample_sizes[i] || !is_sound(&meanings[i]))
            return false;
    }
    return samples[1] - samples[0] ==
               (ptrdiff_t)meanings[1].offset - (ptrdiff_t)meanings[0].offset &&
           meanings[2].block < 2 * sample_sizes[2];
}

void cuda_learn_handles(struct cuda_backend *backend)
{
    char *samples[SAMPLES] = {NULL};

    (void)cuda_use(&backend->parts[0]);
    for (int i = 0; i < SAMPLES; i++)
        if (cudaMalloc((void **)&samples[i], sample_sizes[i]) != cudaSuccess)
            samples[i] = NULL;
    backend->knows_handles = learn(samples);
    if (!backend->knows_handles)
        fad_log(FAD_LOG_INFO, "what this driver's memory handles mean is not known: a client that "
                              "forges one can lose the device for all");
    for (int i = 0; i < SAMPLES; i++)
        (void)cudaFree(samples[i]);
    (void)cudaGetLastError();
}
