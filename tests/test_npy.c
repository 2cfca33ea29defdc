/* .npy files: every kind that is read, and every kind that is refused. */
#include "tests/helpers/npy_file.h"
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- Accepted -------------------------------------------------------------------------------- */

START_TEST(reads_all_format_versions)
{
    for (unsigned major = 1; major <= 3; major++) {
        npy_make(major, NPY_HEADER("(2, 3, 4, 5)"), 120);
        npy_accept(4, (uint64_t[]){2, 3, 4, 5});
    }
}
END_TEST

START_TEST(reads_any_spelling_of_the_dict)
{
    npy_make(1, npy_spellings[_i], 24);
    npy_accept(4, (uint64_t[]){1, 2, 3, 4});
}
END_TEST

START_TEST(reads_as_many_dimensions_as_wanted)
{
    npy_make(1, NPY_HEADER("(2, 3, 4)"), 24);
    npy_accept(3, (uint64_t[]){2, 3, 4});
    npy_make(1, NPY_HEADER("(7,)"), 7);
    npy_accept(1, (uint64_t[]){7});
    npy_make(1, NPY_HEADER("()"), 1);
    npy_accept(0, NULL);
}
END_TEST

START_TEST(reads_empty_shapes)
{
    npy_make(1, NPY_HEADER("(1, 0, 3, 4)"), 0);
    npy_accept(4, (uint64_t[]){1, 0, 3, 4});
    /* No product of a shape with a 0 overflows. */
    npy_make(1, NPY_HEADER("(9223372036854775807, 9223372036854775807, 9, 0)"), 0);
    npy_accept(4, (uint64_t[]){INT64_MAX, INT64_MAX, 9, 0});
}
END_TEST

START_TEST(reads_from_a_pipe)
{
    int fd;

    npy_begin(1, NPY_HEADER("(1, 1, 2, 2)"));
    npy_put_data(4);
    fd = npy_into_pipe();
    npy_accept(4, (uint64_t[]){1, 1, 2, 2});
    close(fd);
}
END_TEST

/* --- Refused --------------------------------------------------------------------------------- */

static const struct {
    const char *header;
    const char *words;
} refusals[] = {
    {"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "float64"},
    {"{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "big-endian"},
    {"{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "float16"},
    {"{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "'<i4'"},
    {"{'descr': 'float32', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "'float32'"},
    {"{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "Python objects"},
    {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1, 1, 1), }", "structured"},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1, 1, 1), }", "Fortran order"},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1, 1, 1), }", "neither True nor False"},
    {NPY_HEADER("(1, 1, 1)"), "3 dimensions; 4"},
    {NPY_HEADER("(1, 1, 1, 1, 1)"), "5 dimensions; 4"},
    {NPY_HEADER("(1,)"), "1 dimension; 4"},
    {NPY_HEADER("()"), "0 dimensions; 4"},
    {NPY_HEADER("(1)"), "not a tuple"},
    {NPY_HEADER("[1, 1, 1, 1]"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, -1)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, 1L)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, 01)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, 1.0)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1,, 1)"), "not a tuple"},
    {NPY_HEADER("(, 1, 1, 1)"), "not a tuple"},
    {NPY_HEADER("(1 1, 1, 1)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, 9223372036854775808)"), "not a tuple"},
    {NPY_HEADER("(1, 1, 1, 99999999999999999999999)"), "not a tuple"},
    {NPY_HEADER("(4294967296, 4294967296, 1, 1)"), "too large"},
    {NPY_HEADER("(9223372036854775807, 2, 1, 1)"), "too large"},
    {NPY_HEADER("(1, 1, 1, 2305843009213693952)"), "too large"},
    {"{'descr': '<f4', 'fortran_order': False, }", "lacks"},
    {"{}", "lacks"},
    {"", "not a dict"},
    {"('descr', '<f4')", "not a dict"},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "twice"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), 'x': 1}", "has a key that"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)", "dict that ends"},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "dict that ends"},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)} x", "goes on"},
    {"{'descr\\x00': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "dict of strings"},
    {"{descr: '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "dict of strings"},
    {"{'descr': <f4, 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "descr is not a string"},
    {"{'descr': '<f4, 'fortran_order': False, 'shape': (1, 1, 1, 1)}", "dict that ends"},
};

START_TEST(refuses_other_headers)
{
    for (unsigned major = 1; major <= 3; major++) {
        npy_make(major, refusals[_i].header, 1);
        npy_refuse(4, refusals[_i].words);
    }
}
END_TEST

START_TEST(refuses_what_is_no_npy)
{
    ck_assert_int_eq(access(npy_file.path, F_OK), -1);
    npy_refuse(4, "No such file");

    npy_begin(1, NPY_HEADER("(1, 1, 1, 1)"));
    npy_put_data(1);
    npy_file.bytes[0] = 'x';
    npy_save();
    npy_refuse(4, "no .npy file");

    for (unsigned version = 0; version < 256; version++) {
        npy_begin(1, NPY_HEADER("(1, 1, 1, 1)"));
        npy_put_data(1);
        npy_file.bytes[6] = (unsigned char)version;
        npy_file.bytes[7] = version >= 1 && version <= 3;
        npy_save();
        npy_refuse(4, "format version");
    }

    /* A npy_file.directory opens but does not read. */
    snprintf(npy_file.path, sizeof npy_file.path, "%s", npy_file.directory);
    npy_refuse(4, "Is a directory");
}
END_TEST

START_TEST(refuses_a_header_too_long)
{
    uint32_t length = 10001;

    npy_begin(2, NPY_HEADER("(1, 1, 1, 1)"));
    memcpy(npy_file.bytes + 8, &length, sizeof length);
    npy_save();
    npy_refuse(4, "header is too long");
    length = UINT32_MAX;
    memcpy(npy_file.bytes + 8, &length, sizeof length);
    npy_save();
    npy_refuse(4, "header is too long");
}
END_TEST

/* Every length but the right one, whichever part it cuts. */
START_TEST(refuses_every_truncation)
{
    size_t whole;

    npy_begin(1, NPY_HEADER("(1, 1, 2, 2)"));
    npy_put_data(4);
    whole = npy_file.length;
    for (npy_file.length = 0; npy_file.length < whole; npy_file.length++) {
        npy_save();
        npy_refuse(4, "truncated");
    }
    npy_save();
    npy_accept(4, (uint64_t[]){1, 1, 2, 2});
}
END_TEST

START_TEST(refuses_trailing_bytes)
{
    npy_begin(1, NPY_HEADER("(1, 1, 2, 2)"));
    npy_put_data(4);
    npy_put("x", 1);
    npy_save();
    npy_refuse(4, "trailing bytes");
}
END_TEST

/* The size of a pipe's data shows only in reading it. */
START_TEST(refuses_a_pipe_too_short_or_long)
{
    static const char *const words[] = {"truncated", "trailing bytes"};

    for (int i = 0; i < 2; i++) {
        int fd;

        npy_begin(1, NPY_HEADER("(1, 1, 2, 2)"));
        npy_put_data(i == 0 ? 3 : 5);
        fd = npy_into_pipe();
        npy_refuse(4, words[i]);
        close(fd);
    }
}
END_TEST

/* A shape far beyond any memory is refused by the file's size, before anyone asks for room. */
START_TEST(refuses_a_shape_larger_than_the_file)
{
    npy_make(1, NPY_HEADER("(1, 1, 1000000, 1000000)"), 4);
    npy_refuse(4, "truncated");
}
END_TEST

START_TEST(refusals_are_one_line)
{
    struct cli_error error = {0};
    struct cli_npy npy;

    ck_assert_int_eq(cli_npy_open(&npy, "no\nsuch\033file", 4, &error), CLI_USAGE);
    ck_assert_str_eq(error.text, "no?such?file: No such file or directory");
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("npy");
    TCase *tcase = tcase_create("npy");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, npy_setup, npy_teardown);
    tcase_add_test(tcase, reads_all_format_versions);
    tcase_add_loop_test(tcase, reads_any_spelling_of_the_dict, 0, NPY_SPELLINGS);
    tcase_add_test(tcase, reads_as_many_dimensions_as_wanted);
    tcase_add_test(tcase, reads_empty_shapes);
    tcase_add_test(tcase, reads_from_a_pipe);
    tcase_add_loop_test(tcase, refuses_other_headers, 0, sizeof refusals / sizeof refusals[0]);
    tcase_add_test(tcase, refuses_what_is_no_npy);
    tcase_add_test(tcase, refuses_a_header_too_long);
    tcase_add_test(tcase, refuses_every_truncation);
    tcase_add_test(tcase, refuses_trailing_bytes);
    tcase_add_test(tcase, refuses_a_pipe_too_short_or_long);
    tcase_add_test(tcase, refuses_a_shape_larger_than_the_file);
    tcase_add_test(tcase, refusals_are_one_line);
    suite_add_tcase(suite, tcase);
    return suite;
}
