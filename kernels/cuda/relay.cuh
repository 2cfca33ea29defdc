/* relay.cuh: units that one block begins and another ends, so that all of the device works until
 * the end of a grid (v4).
 *
 * Of n equal units on a device that runs `slots` of them at once the last round leaves some slots
 * empty. So of `slots` units the jth is cut after j / slots of its tiles of keys. The grid begins
 * with their first legs, the shortest first; then come the other units; then the second legs, the
 * longest first. The sooner a slot is done with the former the longer a second leg it gets, and all
 * end at about n / slots, when n is at least slots. (McNaughton's wrap-around rule for machines
 * that may interrupt their jobs, in an order that needs no plan of who does what.)
 *
 * The second leg goes on with what the first had in its registers: the bits are those of one block.
 * It may wait, for a leg whose block has started before it; whichever block starts first takes the
 * first leg, so that there always is such a one.
 *
 * Only launches of as many units as a problem has do this. Ranges of one have others beside them,
 * which fill the device as well.
 *
 * The launch's scratch: what the legs share, then the registers of each cut unit's block. */
#ifndef FA_KERNELS_CUDA_RELAY_CUH
#define FA_KERNELS_CUDA_RELAY_CUH

#include "kernels/cuda/spans.cuh"

/* Tiles of keys of a unit that is worth cutting. */
#define RELAY_STEPS 8u

/* What the legs of a grid share; zeroes at first. */
struct relay {
    uint32_t started; /* blocks */
    uint32_t done[];  /* [cut.relays], whether the unit's first leg is */
};

/* A block's part of its unit's keys: all, or up to the cut, or from there on. A first leg may have
 * none; its registers then are nobody's. */
struct leg {
    uint32_t first_key, end_key;
    /* Of a unit that is cut: */
    uint32_t *done;
    float *registers; /* [number][thread] */
};

/* --- On the host ---------------------------------------------------------------------------- */

/* Of what the legs share. */
__host__ __device__ inline size_t relay_bytes(uint32_t relays)
{
    return (sizeof(struct relay) + relays * sizeof(uint32_t) + 63) / 64 * 64;
}

/* How many units a grid of all the problem's cuts, on a device that runs so many `slots` of its
 * blocks at once: none if these are not full once; if units are short; under a mask, where they are
 * of all lengths and the longest come first; or if it spares less than two tiles of keys a slot:
 * legs are whole tiles, and a second leg copies q again. keys: of a tile. */
static inline uint32_t relays_of(const struct fa_problem *problem, uint32_t tile_rows,
                                 uint32_t keys, uint32_t slots)
{
    const uint64_t units = spans_units(problem, tile_rows);
    const uint32_t steps = spans_cut(problem, tile_rows).span_keys / keys;
    const uint64_t idle = (slots - units % slots) % slots;

    if (problem->mask != FA_MASK_NONE || steps < RELAY_STEPS || units < slots)
        return 0;
    return idle * steps < 2 * slots ? 0 : slots;
}

/* --- On the device -------------------------------------------------------------------------- */

/* The block's tile and its leg, into shared memory. KEYS: of a tile. REGISTERS: floats of a block.
 * Synchronises. */
template <uint32_t KEYS, size_t REGISTERS>
__device__ __forceinline__ void find_leg(const struct args &args, uint32_t tile_rows,
                                         struct tile *tile, struct leg *leg)
{
    if (threadIdx.x == 0) {
        const uint32_t relays = args.cut.relays;
        struct relay *relay = (struct relay *)args.scratch;
        uint64_t unit = blockIdx.x;
        bool second = false;

        if (relays > 0) {
            unit = atomicAdd(&relay->started, 1u);
            second = unit >= args.unit_count;
            unit -= second ? args.unit_count : 0;
        }
        *tile = tile_of_unit(args, args.first_unit + unit, tile_rows);
        leg->first_key = tile->first_key, leg->end_key = tile->end_key;
        if (unit < relays) {
            const uint32_t steps = (tile->end_key - tile->first_key + KEYS - 1) / KEYS;
            const uint32_t cut = tile->first_key + (uint32_t)(unit * steps / relays) * KEYS;

            *(second ? &leg->first_key : &leg->end_key) = cut;
            leg->done = &relay->done[unit];
            leg->registers = (float *)((char *)relay + relay_bytes(relays)) + unit * REGISTERS;
        }
    }
    __syncthreads();
}

/* Called by every thread of the block, which has written its registers. */
__device__ __forceinline__ void leg_ends(const struct leg &leg)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        atomicExch(leg.done, 1u);
}

/* Called by one thread, before the block synchronises and reads the registers. */
__device__ __forceinline__ void await_leg(const struct leg &leg)
{
    while (atomicAdd(leg.done, 0u) == 0)
        __nanosleep(100);
    __threadfence();
}

#endif
