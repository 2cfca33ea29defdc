/* npy_file.h: .npy files made byte by byte, and what fa-cli's reader makes of them. */
#ifndef TEST_NPY_FILE_H
#define TEST_NPY_FILE_H

#include "client/cli/npy.h"

#include <stddef.h>
#include <stdint.h>

/* A header as NumPy spells it; shape is a Python tuple in a string. */
#define NPY_HEADER(shape) "{'descr': '<f4', 'fortran_order': False, 'shape': " shape ", }"

/* Four spellings of the header of shape (1, 2, 3, 4). */
#define NPY_SPELLINGS 4
extern const char *const npy_spellings[NPY_SPELLINGS];

/* A file in the making, and where it goes: in a directory of its own between setup and teardown. */
extern struct npy_file {
    char directory[64];
    char path[128];
    unsigned char bytes[65536];
    size_t length;
} npy_file;

/* For tcase_add_checked_fixture. The teardown fails when there is more left than plain files. */
void npy_setup(void);
void npy_teardown(void);

/* Begins anew: magic, format version and header, padded to 64 bytes as NumPy does. */
void npy_begin(unsigned major, const char *header);

void npy_put(const void *bytes, size_t length);

/* count floats 0, 1, 2, ... */
void npy_put_data(size_t count);

void npy_save(void);

/* All of these. */
void npy_make(unsigned major, const char *header, size_t count);

/* Makes the path a pipe's that holds the file's bytes. The caller closes the descriptor. */
int npy_into_pipe(void);

/* Reads the file whole. The data, to be freed, or NULL with *error filled. */
float *npy_load(unsigned dims, uint64_t *shape, uint64_t *count, struct cli_error *error);

/* Asserts that it is read, has that shape, and counts up from 0. */
void npy_accept(unsigned dims, const uint64_t *shape);

/* Asserts that it is refused by name, as a wrong input, for a reason that has the words. */
void npy_refuse(unsigned dims, const char *words);

#endif
