#include "client/cli/npy.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define HEADER_MAX 10000u /* NumPy's own limit for what it reads without being told to trust it */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files' byte order is the host's");

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
    unsigned char magic[CLI_NPY_MAGIC_SIZE + 2], length[4] = {0};
    char text[HEADER_MAX], wrong[160];
    uint32_t header;

    if (read_all(npy, magic, sizeof magic, "magic", error) != CLI_OK)
        return error->code;
    if (memcmp(magic, CLI_NPY_MAGIC, CLI_NPY_MAGIC_SIZE) != 0)
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
