/* copies.cuh: how the threads of a block bring tiles of keys and values to shared memory by
 * asynchronous copies (v4). S: a tiling, with D columns of o, KEYS of a tile, WARPS and THREADS of
 * a block, and whether keys lie TRANSPOSED. EXACT: head_dim is S::D.
 *
 * A thread has a part of each tile, one after the other: `next` is its first element of the next
 * one, `to` where that goes, `row` its row in the tile. These are kept from tile to tile: with
 * transposed keys to find them anew takes more registers. */
#ifndef FA_KERNELS_CUDA_COPIES_CUH
#define FA_KERNELS_CUDA_COPIES_CUH

#include "kernels/cuda/warp.cuh"

#include <type_traits>

/* Of tiles that lie as in memory, with STRIDE floats from row to row. Nothing is copied after a
 * row's `width` elements. A warp, or a part of one, copies a row at a time, by 16 bytes if
 * `pieces`, else by 4. Many small copies are unrolled little: the registers of their addresses
 * would be missed elsewhere. */
template <typename S, bool EXACT, int STRIDE> struct rows_copy {
    const float *next;
    float *to;
    int row;

    template <int BYTES> static constexpr int PIECES = S::D * 4 / BYTES;
    template <int BYTES>
    static constexpr int LANES = PIECES<BYTES> <= 8    ? 8
                                 : PIECES<BYTES> <= 16 ? 16
                                                       : 32;

    template <int BYTES> __device__ __forceinline__ static int column()
    {
        return (int)threadIdx.x % LANES<BYTES> * (BYTES / 4);
    }

    /* first: row 0 of the first tile; row_stride: floats from row to row, there. */
    __device__ __forceinline__ void init(const float *first, int64_t row_stride, float *tile,
                                         bool pieces)
    {
        const int first_column = pieces ? column<16>() : column<4>();

        row = (int)threadIdx.x / (pieces ? LANES<16> : LANES<4>);
        next = first + row * row_stride + first_column;
        to = tile + row * STRIDE + first_column;
    }

    template <int BYTES>
    __device__ __forceinline__ void copy(int64_t row_stride, int rows, int width) const
    {
        constexpr int STEP = LANES<BYTES> * (BYTES / 4), AT_ONCE = S::THREADS / LANES<BYTES>;
        constexpr bool WHOLE = EXACT && S::D % STEP == 0;
        const float *from = next;

        static_assert(S::KEYS % AT_ONCE == 0, "whole steps");
#pragma unroll(BYTES == 16 ? S::KEYS : S::D <= 96 ? 4 : 2)
        for (int i = 0; i < S::KEYS; i += AT_ONCE) {
#pragma unroll
            for (int d = 0; d < S::D; d += STEP)
                if (WHOLE || column<BYTES>() + d < width)
                    copy_async<BYTES>(to + i * STRIDE + d, from + d, row + i < rows);
            from += AT_ONCE * row_stride;
        }
    }

    /* Starts copying a tile of which `rows` rows are there; the others become zeroes. */
    __device__ __forceinline__ void start(int64_t row_stride, int rows, int width, bool pieces)
    {
        if (pieces)
            copy<16>(row_stride, rows, width);
        else
            copy<4>(row_stride, rows, width);
        next += S::KEYS * row_stride;
    }
};

/* Of tiles of keys that lie transposed, by elements. A warp copies 16 elements of each of 2 keys at
 * once, which come to lie side by side. That takes two passes through the lines of memory, if rows
 * begin at multiples of 64 bytes, and two through the banks of shared memory (8 elements of each of
 * 4 keys: four and one).
 *
 * Of 16 keys the four warps take keys w and w + 8, then w + 4 and w + 12: what a thread's row and
 * its step add to a key have no bits in common, and so their places add up. */
template <typename S, bool EXACT, int STRIDE> struct columns_copy {
    const float *next;
    float *to;
    int row;

    __device__ __forceinline__ static int column()
    {
        return (int)threadIdx.x % 16;
    }

    __device__ __forceinline__ void init(const float *first, int64_t row_stride, float *tile, bool)
    {
        row = (int)threadIdx.x / 32 + (int)threadIdx.x % 32 / 16 * 8;
        next = first + row * row_stride + column();
        to = tile + column() * STRIDE + key_place(row);
    }

    __device__ __forceinline__ void start(int64_t row_stride, int rows, int width, bool)
    {
        static_assert(S::WARPS == 4 && S::KEYS % 16 == 0 && S::D % 16 == 0, "whole steps");
#pragma unroll(EXACT ? S::KEYS / 8 : 1)
        for (int n = 0; n < S::KEYS / 8; n++) {
            const int i = n / 2 * 16 + n % 2 * 4;
            const float *from = next + i * row_stride;
#pragma unroll
            for (int d = 0; d < S::D; d += 16)
                if (EXACT || column() + d < width)
                    copy_async<4>(to + key_place(i) + d * STRIDE, from + d, row + i < rows);
        }
        next += S::KEYS * row_stride;
    }
};

/* Of keys, by how the tiling has them. */
template <typename S, bool EXACT, int STRIDE>
using keys_copy =
    std::conditional_t<S::TRANSPOSED, columns_copy<S, EXACT, STRIDE>, rows_copy<S, EXACT, STRIDE>>;

/* Waits for the copies that this thread started, then for all threads of the block: afterwards the
 * tiles are complete, and nobody still uses what was read before. */
__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

#endif
