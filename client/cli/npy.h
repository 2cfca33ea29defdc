/* npy.h: tensors in .npy files, as NumPy and PyTorch write them.
 *
 * Reads format versions 1 to 3 with little-endian float32 in C order and as many dimensions as the
 * caller wants; anything else is refused with the file's name and what was found. Writes version 1.
 */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include "client/cli/cli.h"

#include <stdint.h>
#include <stdio.h>

#define CLI_NPY_DIMS       4u
#define CLI_NPY_MAGIC      "\x93NUMPY"
#define CLI_NPY_MAGIC_SIZE 6u

/* An open file, read up to its data. */
struct cli_npy {
    FILE *file;
    const char *path;
    uint64_t shape[CLI_NPY_DIMS]; /* as many as the caller wanted */
    uint64_t count;               /* elements; the bytes fit an int64_t */
};

/* Opens path and reads its header. path must outlive *out. On failure (CLI_USAGE) there is nothing
 * to close. A regular file that is shorter or longer than its shape needs is refused here, before
 * anyone makes room for the data. */
enum cli_exit cli_npy_open(struct cli_npy *out, const char *path, unsigned dims,
                           struct cli_error *error);

/* Reads the data, npy->count floats, and checks that the file ends there. */
enum cli_exit cli_npy_read(struct cli_npy *npy, float *data, struct cli_error *error);

/* Legal on a zeroed struct. */
void cli_npy_close(struct cli_npy *npy);

/* Reads a header's text, a Python dict literal of the keys descr, fortran_order and shape, into
 * shape[dims]. False with the reason in wrong[wrong_size] when it is not one that is served. */
bool cli_npy_parse_header(const char *text, size_t length, unsigned dims, uint64_t *shape,
                          char *wrong, size_t wrong_size);

/* --- npy_write.c ----------------------------------------------------------------------------- */

/* CLI_USAGE unless a file can be made at path: asked before the work that it is to hold. */
enum cli_exit cli_npy_writable(const char *path, struct cli_error *error);

/* Whether the two paths lead to one regular file, there or not yet. */
bool cli_npy_same_file(const char *a, const char *b);

/* Whether the path leads to what standard output is. Never for /dev/null. */
bool cli_npy_is_stdout(const char *path);

/* Writes data to path, through links, also those that lead nowhere yet. A regular file appears
 * whole or not at all, also when a signal ends the program. */
enum cli_exit cli_npy_write(const char *path, const float *data, const uint64_t *shape,
                            unsigned dims, struct cli_error *error);

#endif
