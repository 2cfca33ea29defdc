#include "daemon/connection/carried.h"

#include "daemon/util/log.h"
#include "proto/fa_version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "fad carries"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* The same program writes and reads it. */
struct carried {
    char magic[16];
    char version[32];
    uint64_t started_ns;
    uint64_t lines_held;
    uint64_t lost;
    uint64_t row_count;
    struct fad_statistics_row rows[FAD_STATISTICS_ROWS_MAX]; /* their versions mean nothing */
    uint64_t user_count;
    struct carried_user {
        uid_t uid;
        struct fad_tally tally;
    } users[FAD_USERS_IDLE_MAX]; /* seen last, first */
};

static void fill(struct carried *carried, const struct fad_statistics *statistics,
                 const struct fad_users *users)
{
    const struct fad_user *user;

    snprintf(carried->magic, sizeof carried->magic, "%s", MAGIC);
    snprintf(carried->version, sizeof carried->version, "%s", FA_VERSION);
    carried->started_ns = statistics->started_ns;
    carried->lines_held = fad_log_held();
    carried->lost = statistics->lost;
    carried->row_count = statistics->row_count;
    memcpy(carried->rows, statistics->rows, statistics->row_count * sizeof carried->rows[0]);
    TAILQ_FOREACH (user, &users->list, link) {
        struct carried_user *to = &carried->users[carried->user_count];
        if (carried->user_count == FAD_USERS_IDLE_MAX)
            break;
        to->uid = user->uid;
        to->tally = user->tally;
        carried->user_count++;
    }
}

int fad_carried_write(const struct fad_statistics *statistics, const struct fad_users *users)
{
    const int fd = memfd_create("fad-carried", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct carried *carried = MAP_FAILED;
    int r;

    if (fd < 0)
        return -errno;
    if (ftruncate(fd, sizeof *carried) == 0)
        carried = mmap(NULL, sizeof *carried, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (carried == MAP_FAILED)
        goto fail;
    fill(carried, statistics, users);
    munmap(carried, sizeof *carried);
    if (fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
fail:
    r = -errno;
    close(fd);
    return r;
}

/* --- Reading --------------------------------------------------------------------------------- */

static bool is_sound(const struct carried *carried, const struct fad_statistics *statistics)
{
    return strncmp(carried->magic, MAGIC, sizeof carried->magic) == 0 &&
           strncmp(carried->version, FA_VERSION, sizeof carried->version) == 0 &&
           carried->row_count == statistics->row_count && carried->user_count <= FAD_USERS_IDLE_MAX;
}

static void take_rows(const struct carried *carried, struct fad_statistics *statistics)
{
    for (size_t i = 0; i < statistics->row_count; i++) {
        struct fad_statistics_row *row = &statistics->rows[i];
        const struct fa_version *version = row->version;
        const enum fa_dtype dtype = row->dtype;

        *row = carried->rows[i];
        row->version = version;
        row->dtype = dtype;
    }
}

enum fa_status fad_carried_read(int fd, struct fad_statistics *statistics, struct fad_users *users,
                                struct fa_error *error)
{
    const int seals = fcntl(fd, F_GET_SEALS); /* without them it could be cut off under the map */
    const struct carried *carried = MAP_FAILED;
    struct stat info;
    bool sound;

    if (seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &info) == 0 &&
        info.st_size == sizeof *carried)
        carried = mmap(NULL, sizeof *carried, PROT_READ, MAP_PRIVATE, fd, 0);
    if (carried == MAP_FAILED)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "", "it is no memory of its size");
    sound = is_sound(carried, statistics);
    if (sound) {
        statistics->started_ns = carried->started_ns;
        statistics->lost = carried->lost;
        fad_log_add_held(carried->lines_held);
        take_rows(carried, statistics);
        for (size_t i = carried->user_count; i-- > 0;)
            (void)fad_user_remember(users, carried->users[i].uid, &carried->users[i].tally);
    }
    munmap((void *)(uintptr_t)carried, sizeof *carried);
    if (!sound)
        return fa_error_set(error, FA_INVALID_ARGUMENT, "", "another version has written it");
    return FA_OK;
}
