/* The parts of a range of bytes: what is taken is nobody else's, what is given back can be had
 * again, in any order. */
#include "daemon/backend/extents.h"
#include "tests/helpers/test.h"

#include <stdlib.h>
#include <string.h>

START_TEST(takes_all_and_no_more)
{
    struct fad_extents extents;
    uint64_t offset;

    ck_assert(fad_extents_init(&extents, 100));
    ck_assert(!fad_extents_take(&extents, 101, &offset));
    ck_assert(fad_extents_take(&extents, 60, &offset));
    ck_assert_uint_eq(offset, 0);
    ck_assert(fad_extents_take(&extents, 40, &offset));
    ck_assert_uint_eq(offset, 60);
    ck_assert(!fad_extents_take(&extents, 1, &offset));
    fad_extents_give(&extents, 60, 40);
    fad_extents_give(&extents, 0, 60);
    ck_assert(fad_extents_take(&extents, 100, &offset));
    fad_extents_deinit(&extents);
}
END_TEST

START_TEST(neighbours_merge)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int order = 0; order < 6; order++) {
        struct fad_extents extents;
        uint64_t offset[3], all;

        ck_assert(fad_extents_init(&extents, 30));
        for (int i = 0; i < 3; i++)
            ck_assert(fad_extents_take(&extents, 10, &offset[i]));
        for (int i = 0; i < 3; i++)
            fad_extents_give(&extents, offset[orders[order][i]], 10);
        ck_assert_uint_eq(extents.count, 1);
        ck_assert(fad_extents_take(&extents, 30, &all));
        fad_extents_deinit(&extents);
    }
}
END_TEST

START_TEST(random_parts_never_overlap)
{
    enum { SIZE = 4096, PARTS = 600, STEPS = 200000 };
    static uint8_t used[SIZE];
    static struct {
        uint64_t offset, size;
    } parts[PARTS];
    struct fad_extents extents;
    unsigned seed = 1;
    size_t count = 0;

    memset(used, 0, sizeof used);
    ck_assert(fad_extents_init(&extents, SIZE));
    for (int step = 0; step < STEPS; step++) {
        const unsigned number = seed = seed * 1664525u + 1013904223u;
        uint64_t size = 1 + (number >> 8) % 20, offset;

        if (count < PARTS && number >> 31 && fad_extents_take(&extents, size, &offset)) {
            for (uint64_t i = 0; i < size; i++)
                if (used[offset + i]++)
                    ck_abort_msg("byte %d is taken twice", (int)(offset + i));
            parts[count].offset = offset;
            parts[count++].size = size;
        } else if (count > 0) {
            const size_t i = (number >> 8) % count;
            memset(used + parts[i].offset, 0, parts[i].size);
            fad_extents_give(&extents, parts[i].offset, parts[i].size);
            parts[i] = parts[--count];
        }
    }
    while (count > 0) {
        count--;
        fad_extents_give(&extents, parts[count].offset, parts[count].size);
    }
    ck_assert_uint_eq(extents.count, 1);
    ck_assert_uint_eq(extents.free[0].size, SIZE);
    fad_extents_deinit(&extents);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("extents");
    TCase *tcase = tcase_create("extents");

    tcase_add_test(tcase, takes_all_and_no_more);
    tcase_add_test(tcase, neighbours_merge);
    tcase_add_test(tcase, random_parts_never_overlap);
    suite_add_tcase(suite, tcase);
    return suite;
}
