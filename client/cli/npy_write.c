/* npy_write.c: writing .npy files. A regular file is written beside its place and then renamed. */
#include "client/cli/npy.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA_ALIGN  64u
#define PREFIX_SIZE 10u /* of version 1: magic, version, u16 header length */
#define LINKS_MAX   40  /* as the system follows */

/* --- The place ------------------------------------------------------------------------------- */

/* Where to put a file that shall be at path. */
struct place {
    char path[PATH_MAX]; /* of a regular file: absolute, without links, so that a link stays one */
    bool regular;        /* a regular file, or nothing yet: replaced whole by a rename */
};

/* Replaces a link by where it leads. 1 when it was one, 0 when not, -1 with errno set. */
static int follow(char path[PATH_MAX])
{
    char link[PATH_MAX], copy[PATH_MAX];
    ssize_t length = readlink(path, link, sizeof link - 1);

    if (length < 0)
        return errno == ENOENT || errno == EINVAL ? 0 : -1;
    link[length] = '\0';
    memcpy(copy, path, sizeof copy); /* dirname changes it */
    if (snprintf(path, PATH_MAX, "%s%s%s", link[0] == '/' ? "" : dirname(copy),
                 link[0] == '/' ? "" : "/", link) < PATH_MAX)
        return 1;
    errno = ENAMETOOLONG;
    return -1;
}

/* The place of a file that is not there: the directory it shall be in, and its name. 0 or errno. */
static int find_new(struct place *out, const char *path)
{
    char target[PATH_MAX] = "", copy[PATH_MAX];
    int followed, links = 0;
    size_t length;

    if (snprintf(target, sizeof target, "%s", path) >= (int)sizeof target)
        return ENAMETOOLONG;
    while ((followed = follow(target)) > 0)
        if (++links > LINKS_MAX)
            return ELOOP;
    if (followed < 0)
        return errno;
    if (target[0] == '\0')
        return ENOENT;
    if (target[strlen(target) - 1] == '/')
        return EISDIR;
    memcpy(copy, target, sizeof copy);
    if (!realpath(dirname(copy), out->path))
        return errno;
    length = strlen(out->path);
    if (snprintf(out->path + length, sizeof out->path - length, "/%s", basename(target)) >=
        (int)(sizeof out->path - length))
        return ENAMETOOLONG;
    out->regular = true;
    return 0;
}

/* 0 or errno. */
static int find_place(struct place *out, const char *path)
{
    struct stat info;

    *out = (struct place){0};
    if (stat(path, &info) != 0)
        return errno == ENOENT ? find_new(out, path) : errno;
    out->regular = S_ISREG(info.st_mode);
    if (out->regular)
        return realpath(path, out->path) ? 0 : errno;
    if (S_ISDIR(info.st_mode))
        return EISDIR;
    return snprintf(out->path, sizeof out->path, "%s", path) < (int)sizeof out->path ? 0
                                                                                     : ENAMETOOLONG;
}

bool cli_npy_same_file(const char *a, const char *b)
{
    struct place places[2];
    struct stat directories[2];
    char copies[2][PATH_MAX];

    if (find_place(&places[0], a) != 0 || find_place(&places[1], b) != 0 || !places[0].regular ||
        !places[1].regular)
        return false;
    for (int i = 0; i < 2; i++) {
        memcpy(copies[i], places[i].path, sizeof copies[i]);
        if (stat(dirname(copies[i]), &directories[i]) != 0)
            return false;
    }
    return directories[0].st_dev == directories[1].st_dev &&
           directories[0].st_ino == directories[1].st_ino &&
           strcmp(strrchr(places[0].path, '/'), strrchr(places[1].path, '/')) == 0;
}

bool cli_npy_is_stdout(const char *path)
{
    struct stat named, output, null;

    if (stat(path, &named) != 0 || fstat(STDOUT_FILENO, &output) != 0)
        return false;
    if (stat("/dev/null", &null) == 0 && null.st_rdev == named.st_rdev && S_ISCHR(named.st_mode))
        return false;
    return named.st_dev == output.st_dev && named.st_ino == output.st_ino;
}

/* --- The temporary file ---------------------------------------------------------------------- */

/* Its path, empty for none. Static because a signal handler removes it; changed only while the
 * signals that lead there are blocked. */
static struct {
    char path[PATH_MAX];
    struct sigaction before[NSIG];
} temp;

static const int ending[] = {CLI_ENDING_SIGNALS};
#define ENDING_COUNT (sizeof ending / sizeof ending[0])

/* Removes the file, then lets the signal do what it did before. */
static void on_ending(int signal_number)
{
    sigset_t set;

    unlink(temp.path);
    sigaction(signal_number, &temp.before[signal_number], NULL);
    sigemptyset(&set);
    sigaddset(&set, signal_number);
    raise(signal_number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void block(sigset_t *set, sigset_t *mask)
{
    sigemptyset(set);
    for (size_t i = 0; i < ENDING_COUNT; i++)
        sigaddset(set, ending[i]);
    sigprocmask(SIG_BLOCK, set, mask);
}

/* Makes the file beside its place. Its descriptor, or -1 with errno set and no file made. */
static int make_temp(const struct place *place)
{
    struct sigaction action = {.sa_handler = on_ending};
    sigset_t mask;
    mode_t creation;
    int fd, saved;

    block(&action.sa_mask, &mask);
    errno = ENAMETOOLONG;
    fd = snprintf(temp.path, sizeof temp.path, "%s.XXXXXX", place->path) < (int)sizeof temp.path
             ? mkostemp(temp.path, O_CLOEXEC)
             : -1;
    saved = errno;
    for (size_t i = 0; fd >= 0 && i < ENDING_COUNT; i++) {
        struct sigaction *before = &temp.before[ending[i]];

        sigaction(ending[i], &action, before);
        if (before->sa_handler == SIG_IGN)
            sigaction(ending[i], before, NULL);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    if (fd >= 0) {
        creation = umask(0);
        umask(creation);
        fchmod(fd, 0666 & ~creation);
    }
    errno = saved;
    return fd;
}

/* Renames the file to its place, or removes it when there is none. False with errno set. */
static bool settle_temp(const char *place)
{
    sigset_t set, mask;
    bool settled;
    int saved;

    block(&set, &mask);
    settled = place && rename(temp.path, place) == 0;
    saved = errno;
    if (!settled)
        unlink(temp.path);
    for (size_t i = 0; i < ENDING_COUNT; i++)
        sigaction(ending[i], &temp.before[ending[i]], NULL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    errno = saved;
    return settled;
}

enum cli_exit cli_npy_writable(const char *path, struct cli_error *error)
{
    struct place place;
    int wrong = find_place(&place, path), fd;

    if (wrong == 0 && place.regular) {
        fd = make_temp(&place);
        if (fd < 0) {
            wrong = errno;
        } else {
            close(fd);
            settle_temp(NULL);
        }
    } else if (wrong == 0 && access(place.path, W_OK) != 0) {
        wrong = errno;
    }
    if (wrong != 0)
        return cli_fail(error, CLI_USAGE, "%s: cannot be written: %s", path, strerror(wrong));
    return CLI_OK;
}

/* --- The file -------------------------------------------------------------------------------- */

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
    memcpy(block, CLI_NPY_MAGIC "\x01", CLI_NPY_MAGIC_SIZE + 2);
    block[8] = (unsigned char)((total - PREFIX_SIZE) & 0xff);
    block[9] = (unsigned char)((total - PREFIX_SIZE) >> 8);
    return fwrite(block, 1, total, file) == total &&
           (count == 0 || fwrite(data, sizeof *data, count, file) == count) && fflush(file) == 0;
}

/* Writes a new file, which takes its place when it is whole. 0 or errno. */
static int write_regular(const struct place *place, const float *data, const uint64_t *shape,
                         unsigned dims)
{
    int fd = make_temp(place), wrong = 0;
    FILE *file;

    if (fd < 0)
        return errno;
    file = fdopen(fd, "wb");
    if (!file || !write_all(file, data, shape, dims))
        wrong = errno;
    if ((file ? fclose(file) : close(fd)) != 0 && wrong == 0)
        wrong = errno;
    if (!settle_temp(wrong == 0 ? place->path : NULL) && wrong == 0)
        wrong = errno;
    return wrong;
}

/* Writes to a device or a pipe. 0 or errno. */
static int write_other(const struct place *place, const float *data, const uint64_t *shape,
                       unsigned dims)
{
    FILE *file = fopen(place->path, "wbe");
    int wrong = 0;

    if (!file)
        return errno;
    if (!write_all(file, data, shape, dims))
        wrong = errno;
    if (fclose(file) != 0 && wrong == 0)
        wrong = errno;
    return wrong;
}

enum cli_exit cli_npy_write(const char *path, const float *data, const uint64_t *shape,
                            unsigned dims, struct cli_error *error)
{
    struct place place;
    int wrong = find_place(&place, path);

    if (wrong == 0)
        wrong = (place.regular ? write_regular : write_other)(&place, data, shape, dims);
    if (wrong != 0)
        return cli_fail(error, CLI_FAILED, "%s: could not be written: %s", path, strerror(wrong));
    return CLI_OK;
}
