/* Copies between packed memory and memory that is laid out in pieces, against the definition: byte
 * by byte, from every byte on and of every length. */
#include "daemon/backend/layout.h"
#include "tests/helpers/test.h"

#include <string.h>

#define ROOM 512

static uint8_t laid[ROOM], packed[ROOM];

static const struct fad_layout layouts[] = {
    {{2, 3, 2}, {60, 20, 8}, 5},  /* gaps everywhere */
    {{1, 1, 1}, {0, 0, 0}, 37},   /* one piece */
    {{2, 2, 3}, {32, 5, 10}, 5},  /* rows of the heads by turns */
    {{2, 2, 3}, {0, 0, 3}, 7},    /* read again and again, and overlapping */
    {{3, 1, 2}, {24, 999, 12}, 4} /* a stride that nothing steps over */
};

#define LAYOUTS (sizeof layouts / sizeof layouts[0])

/* Where byte n of the packed order lies. */
static uint64_t place(const struct fad_layout *l, uint64_t n)
{
    uint64_t piece = n / l->width, k = piece % l->counts[2], rest = piece / l->counts[2];
    return rest / l->counts[1] * l->strides[0] + rest % l->counts[1] * l->strides[1] +
           k * l->strides[2] + n % l->width;
}

static void fill(void)
{
    for (int i = 0; i < ROOM; i++) {
        laid[i] = (uint8_t)(i % 251);
        packed[i] = (uint8_t)(255 - i % 241);
    }
}

START_TEST(any_bytes_are_gathered)
{
    const struct fad_layout *l = &layouts[_i];
    const uint64_t whole = fad_layout_size(l);

    ck_assert_uint_eq(whole, l->counts[0] * l->counts[1] * l->counts[2] * l->width);
    for (uint64_t first = 0; first < whole; first++) {
        for (uint64_t size = 0; size <= whole - first; size++) {
            fill();
            fad_layout_copy(l, laid, packed, first, size, true);
            for (uint64_t i = 0; i < ROOM; i++) {
                uint8_t want =
                    i < size ? (uint8_t)(place(l, first + i) % 251) : (uint8_t)(255 - i % 241);
                if (packed[i] != want)
                    ck_abort_msg("byte %d of [%d, +%d)", (int)i, (int)first, (int)size);
            }
        }
    }
}
END_TEST

START_TEST(any_bytes_are_scattered_and_no_other_touched)
{
    const struct fad_layout *l = &layouts[_i];
    const uint64_t whole = fad_layout_size(l);
    uint8_t want[ROOM];

    for (uint64_t first = 0; first < whole; first++) {
        for (uint64_t size = 0; size <= whole - first; size++) {
            fill();
            memcpy(want, laid, ROOM);
            for (uint64_t i = 0; i < size; i++)
                want[place(l, first + i)] = packed[i];
            fad_layout_copy(l, laid, packed, first, size, false);
            ck_assert_mem_eq(laid, want, ROOM);
        }
    }
}
END_TEST

/* A copy made in steps, as the CPU backend does. */
START_TEST(a_copy_goes_on_where_it_was)
{
    const struct fad_layout *l = &layouts[0];
    const uint64_t whole = fad_layout_size(l);

    for (size_t step = 1; step <= whole; step++) {
        for (int way = 0; way < 3; way++) { /* gathers, scatters, is packed on both sides */
            struct fad_copy copy = {.to = way == 1 ? laid : packed,
                                    .from = way == 1 ? packed : laid,
                                    .size = whole,
                                    .layout = way == 2 ? NULL : l,
                                    .gathers = way == 0};
            fill();
            while (copy.size > 0)
                fad_copy_step(&copy, copy.size < step ? copy.size : step);
            for (uint64_t n = 0; n < whole; n++)
                ck_assert_uint_eq(packed[n], laid[way == 2 ? n : place(l, n)]);
            for (uint64_t n = whole; n < ROOM; n++)
                ck_assert_uint_eq(packed[n], 255 - n % 241);
        }
    }
}
END_TEST

static void expect_layout(struct fa_extents extents, struct fa_strides strides,
                          struct fad_layout want)
{
    struct fad_layout got = fad_layout_of(extents, strides, 4);

    ck_assert_uint_eq(got.width, want.width);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(got.counts[i], want.counts[i]);
        if (want.counts[i] > 1)
            ck_assert_uint_eq(got.strides[i], want.strides[i]);
    }
}

START_TEST(what_touches_is_one_piece)
{
    const struct fa_extents extents = {2, 3, 5, 8};

    expect_layout(extents, (struct fa_strides){150, 50, 10},
                  (struct fad_layout){{2, 3, 5}, {600, 200, 40}, 32});
    expect_layout(extents, (struct fa_strides){150, 50, 8},
                  (struct fad_layout){{1, 2, 3}, {0, 600, 200}, 160});
    expect_layout(extents, (struct fa_strides){150, 40, 8},
                  (struct fad_layout){{1, 1, 2}, {0, 0, 600}, 480});
    expect_layout(extents, (struct fa_strides){120, 40, 8},
                  (struct fad_layout){{1, 1, 1}, {0, 0, 0}, 960});
    expect_layout((struct fa_extents){2, 3, 1, 8}, (struct fa_strides){30, 10, 1},
                  (struct fad_layout){{1, 2, 3}, {0, 120, 40}, 32});
    expect_layout(extents, (struct fa_strides){120, 8, 24}, /* batch, row, head */
                  (struct fad_layout){{2, 3, 5}, {480, 32, 96}, 32});
    expect_layout((struct fa_extents){1, 3, 5, 1}, (struct fa_strides){0, 1, 3}, /* an lse so */
                  (struct fad_layout){{1, 3, 5}, {0, 4, 12}, 4});
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("layout");
    TCase *tests = tcase_create("copies");

    tcase_add_loop_test(tests, any_bytes_are_gathered, 0, LAYOUTS);
    tcase_add_loop_test(tests, any_bytes_are_scattered_and_no_other_touched, 0, LAYOUTS);
    tcase_add_test(tests, a_copy_goes_on_where_it_was);
    tcase_add_test(tests, what_touches_is_one_piece);
    suite_add_tcase(suite, tests);
    return suite;
}
