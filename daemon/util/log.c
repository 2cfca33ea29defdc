#include "daemon/util/log.h"

#include <assert.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* For one client, then for all of them together. */
#define CLIENT_BURST      20
#define CLIENT_PER_SECOND 1
#define ALL_BURST         200
#define ALL_PER_SECOND    50

/* No longer than PIPE_BUF: a pipe that polls writable then takes a line without blocking. */
#define LINE_MAX_BYTES 1024

static enum fad_log_level threshold = FAD_LOG_INFO;
static struct fad_bucket of_all = {.burst = ALL_BURST, .interval_ns = 1000000000u / ALL_PER_SECOND};
static uint64_t held, said;

/* --- The bucket ------------------------------------------------------------------------------ */

void fad_bucket_init(struct fad_bucket *bucket, uint32_t burst, uint32_t per_second)
{
    *bucket = (struct fad_bucket){.burst = burst, .interval_ns = 1000000000u / per_second};
}

bool fad_bucket_has(const struct fad_bucket *bucket, uint64_t now_ns)
{
    return bucket->full_ns <= now_ns ||
           bucket->full_ns - now_ns <= (bucket->burst - 1) * bucket->interval_ns;
}

void fad_bucket_take(struct fad_bucket *bucket, uint64_t now_ns)
{
    assert(fad_bucket_has(bucket, now_ns));
    if (bucket->full_ns < now_ns)
        bucket->full_ns = now_ns;
    bucket->full_ns += bucket->interval_ns;
}

void fad_log_client_init(struct fad_log_client *client)
{
    client->held = 0;
    fad_bucket_init(&client->bucket, CLIENT_BURST, CLIENT_PER_SECOND);
}

/* --- Writing --------------------------------------------------------------------------------- */

void fad_log_set_level(enum fad_log_level level)
{
    threshold = level;
}

/* False when standard error does not take it now. */
static bool write_line(const char *format, va_list args)
{
    static const char prefix[] = "fad: ";
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    char line[LINE_MAX_BYTES] = "fad: ";
    size_t start = sizeof prefix - 1, length;

    vsnprintf(line + start, sizeof line - start - 1, format, args);
    length = strlen(line);
    for (size_t i = start; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[length++] = '\n';
    return poll(&out, 1, 0) == 1 && write(STDERR_FILENO, line, length) == (ssize_t)length;
}

void fad_log(enum fad_log_level level, const char *format, ...)
{
    va_list args;

    if (level > threshold)
        return;
    va_start(args, format);
    if (!write_line(format, args))
        held++;
    va_end(args);
}

static bool take_tokens(struct fad_log_client *client, uint64_t now_ns)
{
    if (client && !fad_bucket_has(&client->bucket, now_ns)) {
        client->held++;
        return false;
    }
    if (!fad_bucket_has(&of_all, now_ns))
        return false;
    if (client)
        fad_bucket_take(&client->bucket, now_ns);
    fad_bucket_take(&of_all, now_ns);
    return true;
}

void fad_log_of_client(struct fad_log_client *client, uint64_t now_ns, const char *format, ...)
{
    va_list args;

    if (FAD_LOG_INFO > threshold)
        return;
    va_start(args, format);
    if (!take_tokens(client, now_ns) || !write_line(format, args))
        held++;
    va_end(args);
}

static bool write_held(const char *format, ...)
{
    va_list args;
    bool written;

    va_start(args, format);
    written = write_line(format, args);
    va_end(args);
    return written;
}

void fad_log_say_held(void)
{
    if (held > said &&
        write_held("%" PRIu64 " lines held back: more came than may be written", held - said))
        said = held;
}

uint64_t fad_log_held(void)
{
    return held;
}

void fad_log_add_held(uint64_t lines)
{
    held += lines;
    said += lines;
}
