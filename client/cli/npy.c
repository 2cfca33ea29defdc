#include "client/cli/npy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       "\x93NUMPY"
#define MAGIC_SIZE  6u
#define HEADER_MAX  10000u /* NumPy's own limit for what it reads without being told to trust it */
#define DATA_ALIGN  64u
#define PREFIX_SIZE 10u /* of version 1: magic, version, u16 header length */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files' byte order is the host's");

/* --- Reading --------------------------------------------------------------------------------- */

static enum cli_exit refuse(const struct cli_npy *npy, struct cli_error *error, const char *why)
{
    return cli_fail(error, CLI_USAGE, "%s: %s", npy->path, why);
}

/* size bytes, or a refusal: a file that cannot be read, or that ends before them. */
static enum cli_exit read_all(struct cli_npy *npy, void *out, size_t size, const char *part,
                              struct cli_error *error)
{
    errno = 0;
    if (size == 0 || fread(out, 1, size, npy->file) == size)
        return CLI_OK;
    if (ferror(npy->file))
        return refuse(npy, error, strerror(errno));
    return cli_fail(error, CLI_USAGE, "%s: it is truncated: it ends within its %s", npy->path,
                    part);
}

static enum cli_exit read_header(struct cli_npy *npy, unsigned dims, struct cli_error *error)
{
    unsigned char magic[MAGIC_SIZE + 2], length[4] = {0};
    char text[HEADER_MAX], wrong[160];
    uint32_t header;

    if (read_all(npy, magic, sizeof magic, "magic", error) != CLI_OK)
        return error->code;
    if (memcmp(magic, MAGIC, MAGIC_SIZE) != 0)
        return refuse(npy, error, "it is no .npy file (its first bytes are not \\x93NUMPY)");
    if (magic[6] < 1 || magic[6] > 3 || magic[7] != 0)
        return cli_fail(error, CLI_USAGE,
                        "%s: .npy format version %u.%u; 1.0, 2.0 and 3.0 are read", npy->path,
                        magic[6], magic[7]);
    if (read_all(npy, length, magic[6] == 1 ? 2 : 4, "header", error) != CLI_OK)
        return error->code;
    header = length[0] | (uint32_t)length[1] << 8 | (uint32_t)length[2] << 16 |
             (uint32_t)length[3] << 24;
    if (header > HEADER_MAX)
        return cli_fail(error, CLI_USAGE, "%s: its header is too long (%" PRIu32 " bytes, over %u)",
                        npy->path, header, HEADER_MAX);
    if (read_all(npy, text, header, "header", error) != CLI_OK)
        return error->code;
    if (!cli_npy_parse_header(text, header, dims, npy->shape, wrong, sizeof wrong))
        return refuse(npy, error, wrong);
    return CLI_OK;
}

/* Sets npy->count; compares a regular file's size with what its shape needs. */
static enum cli_exit check_size(struct cli_npy *npy, unsigned dims, struct cli_error *error)
{
    off_t at = ftello(npy->file);
    struct stat info;
    uint64_t bytes;
    bool empty = false, overflow = false;

    npy->count = 1;
    for (unsigned i = 0; i < dims; i++)
        empty |= npy->shape[i] == 0;
    for (unsigned i = 0; i < dims && !empty; i++)
        overflow |= __builtin_mul_overflow(npy->count, npy->shape[i], &npy->count);
    if (empty)
        npy->count = 0;
    if (overflow || npy->count > (uint64_t)INT64_MAX / sizeof(float))
        return refuse(npy, error, "its shape is too large");
    bytes = npy->count * sizeof(float);
    if (at < 0 || fstat(fileno(npy->file), &info) != 0 || !S_ISREG(info.st_mode))
        return CLI_OK; /* a pipe: reading it tells */
    if ((uint64_t)(info.st_size - at) == bytes)
        return CLI_OK;
    return cli_fail(
        error, CLI_USAGE, "%s: it %s: its shape needs %" PRIu64 " bytes of data, it has %" PRIi64,
        npy->path, (uint64_t)(info.st_size - at) < bytes ? "is truncated" : "has trailing bytes",
        bytes, (int64_t)(info.st_size - at));
}

enum cli_exit cli_npy_open(struct cli_npy *out, const char *path, unsigned dims,
                           struct cli_error *error)
{
    assert(dims <= CLI_NPY_DIMS);
    *out = (struct cli_npy){.path = path, .file = fopen(path, "rbe")};
    if (!out->file)
        return refuse(out, error, strerror(errno));
    if (read_header(out, dims, error) == CLI_OK && check_size(out, dims, error) == CLI_OK)
        return CLI_OK;
    cli_npy_close(out);
    return error->code;
}

enum cli_exit cli_npy_read(struct cli_npy *npy, float *data, struct cli_error *error)
{
    if (read_all(npy, data, npy->count * sizeof *data, "data", error) != CLI_OK)
        return error->code;
    if (getc(npy->file) != EOF)
        return refuse(npy, error, "it has trailing bytes after its data");
    return CLI_OK;
}

void cli_npy_close(struct cli_npy *npy)
{
    if (npy->file)
        fclose(npy->file);
    *npy = (struct cli_npy){0};
}

/* --- Writing --------------------------------------------------------------------------------- */

/* Where to put a file that shall be at path. */
struct place {
    char path[PATH_MAX]; /* links followed, so that a link stays one */
    bool regular;        /* a regular file, or nothing yet: replaced whole by a rename */
};

static enum cli_exit find_place(struct place *out, const char *path, struct cli_error *error)
{
    struct stat info;

    if (realpath(path, out->path)) {
        if (stat(out->path, &info) != 0)
            return cli_fail(error, CLI_USAGE, "%s: %s", path, strerror(errno));
        out->regular = S_ISREG(info.st_mode);
        return CLI_OK;
    }
    if (snprintf(out->path, sizeof out->path, "%s", path) >= (int)sizeof out->path)
        return cli_fail(error, CLI_USAGE, "%s: %s", path, strerror(ENAMETOOLONG));
    out->regular = true;
    return CLI_OK;
}

enum cli_exit cli_npy_writable(const char *path, struct cli_error *error)
{
    struct place place;
    char copy[PATH_MAX];
    struct stat info;

    if (find_place(&place, path, error) != CLI_OK)
        return error->code;
    memcpy(copy, place.path, sizeof copy); /* dirname changes it */
    if (access(place.regular ? dirname(copy) : place.path, W_OK) != 0)
        return cli_fail(error, CLI_USAGE, "%s: cannot be written: %s", path, strerror(errno));
    if (stat(place.path, &info) == 0 && S_ISDIR(info.st_mode))
        return cli_fail(error, CLI_USAGE, "%s: cannot be written: %s", path, strerror(EISDIR));
    return CLI_OK;
}

/* Writes the file's bytes; false with errno set. */
static bool write_all(FILE *file, const float *data, const uint64_t *shape, unsigned dims)
{
    unsigned char block[4 * DATA_ALIGN]; /* dict of 4 dimensions of 20 digits: under 160 bytes */
    char *text = (char *)block + PREFIX_SIZE;
    size_t room = sizeof block - PREFIX_SIZE, length, count = 1, total;

    length = (size_t)snprintf(text, room, "{'descr': '<f4', 'fortran_order': False, 'shape': (");
    for (unsigned i = 0; i < dims; i++) {
        length +=
            (size_t)snprintf(text + length, room - length, i ? ", %" PRIu64 : "%" PRIu64, shape[i]);
        count *= shape[i];
    }
    length += (size_t)snprintf(text + length, room - length, "%s), }", dims == 1 ? "," : "");
    total = (PREFIX_SIZE + length + 1 + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    assert(total <= sizeof block);
    memset(text + length, ' ', total - PREFIX_SIZE - length);
    block[total - 1] = '\n';
    memcpy(block, MAGIC "\x01", MAGIC_SIZE + 2);
    block[8] = (unsigned char)((total - PREFIX_SIZE) & 0xff);
    block[9] = (unsigned char)((total - PREFIX_SIZE) >> 8);
    return fwrite(block, 1, total, file) == total &&
           (count == 0 || fwrite(data, sizeof *data, count, file) == count) && fflush(file) == 0;
}

/* Opens what is written to: the file itself, or a temporary one beside it whose name goes to temp.
 */
static FILE *open_place(const struct place *place, char temp[PATH_MAX])
{
    mode_t mask;
    int fd;

    temp[0] = '\0';
    if (!place->regular)
        return fopen(place->path, "wbe");
    if (snprintf(temp, PATH_MAX, "%s.XXXXXX", place->path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0) {
        temp[0] = '\0';
        return NULL;
    }
    mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    return fdopen(fd, "wb");
}

enum cli_exit cli_npy_write(const char *path, const float *data, const uint64_t *shape,
                            unsigned dims, struct cli_error *error)
{
    struct place place;
    char temp[PATH_MAX];
    FILE *file;
    bool written;
    int saved;

    if (find_place(&place, path, error) != CLI_OK)
        return error->code;
    file = open_place(&place, temp);
    written = file && write_all(file, data, shape, dims);
    saved = errno;
    if (file && fclose(file) != 0 && written) {
        written = false;
        saved = errno;
    }
    if (written && temp[0] && rename(temp, place.path) != 0) {
        written = false;
        saved = errno;
    }
    if (written)
        return CLI_OK;
    if (temp[0])
        unlink(temp);
    return cli_fail(error, CLI_FAILED, "%s: could not be written: %s", path, strerror(saved));
}
