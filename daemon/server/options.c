#include "daemon/server/options.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, NUMBER, TEXT, CHOICE, LIMITS };

/* More than any memory. */
#define BYTES_MOST ((uint64_t)1 << 50)

#define FIELD(field)    .offset = offsetof(struct fad_options, field)
#define LIMIT(resource) .kind = LIMITS, FIELD(limits[0].of[resource]), .least = 1

static const struct option_row {
    const char *name;
    const char *argument;
    enum kind kind;
    bool bytes;    /* a suffix K, M or G may follow */
    size_t offset; /* LIMITS: of the one of a connection */
    uint64_t least, most, initial;
    uint64_t limits[FAD_LEVELS]; /* LIMITS: the defaults; 0: as defaults says */
    const char *defaults;        /* LIMITS: in words, where some are 0 */
    const char *choices[4];      /* CHOICE: the first is the default */
    const char *help;
} rows[] = {
    {.name = "socket",
     .argument = "PATH",
     .kind = TEXT,
     FIELD(socket),
     .help =
         "listen here (else $FAD_SOCKET, /run/fad/fad.sock, $XDG_RUNTIME_DIR/fad/fad.sock); not "
         "with a socket handed over by LISTEN_FDS"},
    {.name = "backend",
     .argument = "auto|cuda|cpu",
     .kind = CHOICE,
     FIELD(backend),
     .choices = {"auto", "cuda", "cpu"},
     .help = "what computes; auto: CUDA where there is a GPU that can serve, else the CPU"},
    {.name = "device",
     .argument = "LIST",
     .kind = TEXT,
     FIELD(devices),
     .help = "the GPUs to serve on: numbers or UUIDs, separated by commas (default: all that can "
             "serve; CUDA_VISIBLE_DEVICES narrows the choice)"},
    {.name = "streams",
     .argument = "N",
     .kind = NUMBER,
     FIELD(streams),
     .least = 1,
     .most = 64,
     .initial = 8,
     .help = "CUDA streams of each GPU; half of them are kept for short work, of high priority"},
    {.name = "pinned",
     .argument = "BYTES",
     .kind = NUMBER,
     .bytes = true,
     FIELD(pinned),
     .least = (uint64_t)32 << 20,
     .most = (uint64_t)1 << 40,
     .initial = (uint64_t)512 << 20,
     .help =
         "pinned memory for payloads and inline outputs on their way to and from GPUs, taken at "
         "start; what finds no room there is copied twice"},
    {.name = "workers",
     .argument = "N",
     .kind = NUMBER,
     FIELD(workers),
     .most = 256,
     .help = "CPU worker threads; 0: one for each processor"},
    {.name = "payload-max",
     .argument = "BYTES",
     .kind = NUMBER,
     .bytes = true,
     FIELD(payload_max),
     .least = 4096,
     .most = (uint64_t)1 << 40,
     .initial = (uint64_t)512 << 20,
     .help = "largest payload of one request"},
    {.name = "connections",
     .argument = "UID,ALL",
     LIMIT(FAD_CONNECTIONS),
     .most = 65536,
     .limits = {1, 128, 512},
     .help = "clients at once"},
    {.name = "jobs",
     .argument = "CONN,UID,ALL",
     LIMIT(FAD_JOBS),
     .most = 1 << 20,
     .limits = {64, 256, 1024},
     .help = "requests in flight"},
    {.name = "staged",
     .argument = "CONN,UID,ALL",
     LIMIT(FAD_STAGED),
     .bytes = true,
     .most = BYTES_MOST,
     .defaults = "payload-max + 512M, twice that, a quarter of the memory",
     .help = "bytes of payloads, inline outputs and scratch"},
    {.name = "mapped",
     .argument = "CONN,UID,ALL",
     LIMIT(FAD_MAPPED),
     .bytes = true,
     .most = BYTES_MOST,
     .limits = {(uint64_t)8 << 30, (uint64_t)16 << 30},
     .defaults = "8G, 16G, half of the memory",
     .help = "bytes of shared memory and regions"},
    {.name = "regions",
     .argument = "CONN,UID,ALL",
     LIMIT(FAD_REGIONS),
     .most = 1 << 20,
     .limits = {64, 256, 1024},
     .help = "regions"},
    {.name = "stall-seconds",
     .argument = "N",
     .kind = NUMBER,
     FIELD(stall_seconds),
     .least = 1,
     .most = 86400,
     .initial = 30,
     .help = "close a client that makes no progress for so long inside a request or with replies "
             "unread"},
    {.name = "drain-seconds",
     .argument = "N",
     .kind = NUMBER,
     FIELD(drain_seconds),
     .most = 86400,
     .initial = 10,
     .help = "after SIGTERM let requests in flight run for at most so long"},
    {.name = "quiet",
     .kind = FLAG,
     FIELD(quiet),
     .help = "log errors only, not refusals and disconnects"},
    {.name = "help", .kind = FLAG, FIELD(help), .help = "print this and exit"},
    {.name = "version", .kind = FLAG, FIELD(version), .help = "print the version and exit"},
};

#define ROWS (sizeof rows / sizeof rows[0])

static void *place(struct fad_options *options, const struct option_row *row)
{
    return (char *)options + row->offset;
}

/* A number of length characters, with a suffix where the row has bytes. False when it is none, or
 * not within the row's bounds. */
static bool parse_number(const struct option_row *row, const char *text, size_t length,
                         uint64_t *out)
{
    static const char suffixes[] = "KMG";
    const char *suffix = length > 0 ? strchr(suffixes, text[length - 1]) : NULL;
    const unsigned shift = row->bytes && suffix ? 10 * (unsigned)(suffix - suffixes + 1) : 0;
    const size_t digits = length - (shift > 0);
    uint64_t value = 0;

    for (size_t i = 0; i < digits; i++) {
        if (text[i] < '0' || text[i] > '9' || value > row->most / 10)
            return false;
        value = 10 * value + (uint64_t)(text[i] - '0');
    }
    if (digits == 0 || value > row->most >> shift || value << shift < row->least)
        return false;
    *out = value << shift;
    return true;
}

static enum fa_status set_number(struct fad_options *options, const struct option_row *row,
                                 const char *text, struct fa_error *error)
{
    if (parse_number(row, text, strlen(text), place(options, row)))
        return FA_OK;
    return fa_error_set(error, FA_INVALID_ARGUMENT, row->name,
                        "'%.40s' must be a number from %" PRIu64 " to %" PRIu64 "%s", text,
                        row->least, row->most, row->bytes ? ", K, M or G may follow" : "");
}

static enum fa_status set_choice(struct fad_options *options, const struct option_row *row,
                                 const char *text, struct fa_error *error)
{
    for (size_t i = 0; i < sizeof row->choices / sizeof row->choices[0] && row->choices[i]; i++) {
        if (strcmp(row->choices[i], text) == 0) {
            *(const char **)place(options, row) = row->choices[i];
            return FA_OK;
        }
    }
    return fa_error_set(error, FA_INVALID_ARGUMENT, row->name, "'%.40s' must be one of %s", text,
                        row->argument);
}

/* The level that the first of a row's comma-separated numbers is for. */
static int first_level(const struct option_row *row)
{
    assert(row->argument);
    return strncmp(row->argument, "CONN,", 5) == 0 ? FAD_LEVEL_CONNECTION : FAD_LEVEL_USER;
}

static uint64_t *limit_of(struct fad_options *options, const struct option_row *row, int level)
{
    return (uint64_t *)((char *)place(options, row) + (size_t)level * sizeof options->limits[0]);
}

static enum fa_status set_limits(struct fad_options *options, const struct option_row *row,
                                 const char *text, struct fa_error *error)
{
    const char *next = text;

    for (int level = first_level(row); level < FAD_LEVELS; level++) {
        const size_t length = strcspn(next, ",");
        const bool last = level == FAD_LEVELS - 1;

        if ((length > 0 && !parse_number(row, next, length, limit_of(options, row, level))) ||
            (next[length] == ',') == last)
            return fa_error_set(error, FA_INVALID_ARGUMENT, row->name,
                                "'%.40s' must be %s: numbers from %" PRIu64 " to %" PRIu64
                                "%s; one left empty keeps its default",
                                text, row->argument, row->least, row->most,
                                row->bytes ? ", K, M or G may follow" : "");
        next += length + 1;
    }
    return FA_OK;
}

/* The row that an argument names in full, as --name or --name=value; else NULL. */
static const struct option_row *find_row(const char *argument)
{
    const char *name = argument + 2;
    size_t length = strcspn(name, "=");

    for (size_t i = 0; i < ROWS; i++)
        if (strlen(rows[i].name) == length && strncmp(rows[i].name, name, length) == 0)
            return &rows[i];
    return NULL;
}

static enum fa_status set(struct fad_options *options, const struct option_row *row,
                          const char *value, struct fa_error *error)
{
    if ((row->kind == FLAG) != (value == NULL))
        return fa_error_set(error, FA_INVALID_ARGUMENT, row->name, "%s; see fad --help",
                            value ? "takes no value" : "needs a value");
    if (row->kind == NUMBER)
        return set_number(options, row, value, error);
    if (row->kind == LIMITS)
        return set_limits(options, row, value, error);
    if (row->kind == CHOICE)
        return set_choice(options, row, value, error);
    if (row->kind == FLAG)
        *(bool *)place(options, row) = true;
    else
        *(const char **)place(options, row) = value;
    return FA_OK;
}

enum fa_status fad_options_parse(struct fad_options *options, int argc, char *argv[],
                                 struct fa_error *error)
{
    memset(options, 0, sizeof *options);
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].kind == NUMBER)
            *(uint64_t *)place(options, &rows[i]) = rows[i].initial;
        if (rows[i].kind == CHOICE)
            *(const char **)place(options, &rows[i]) = rows[i].choices[0];
        for (int level = 0; rows[i].kind == LIMITS && level < FAD_LEVELS; level++)
            *limit_of(options, &rows[i], level) = rows[i].limits[level];
    }
    for (int i = 1; i < argc; i++) {
        const struct option_row *row = strncmp(argv[i], "--", 2) == 0 ? find_row(argv[i]) : NULL;
        const char *value = strchr(argv[i], '=');
        enum fa_status status;

        if (!row)
            return fa_error_set(error, FA_INVALID_ARGUMENT, "",
                                "there is no option '%.80s'; see fad --help", argv[i]);
        if (value)
            value++;
        else if (row->kind != FLAG && i + 1 < argc)
            value = argv[++i];
        if ((status = set(options, row, value, error)) != FA_OK)
            return status;
    }
    return FA_OK;
}

static void print_defaults(const struct option_row *row, FILE *out)
{
    if (row->kind == NUMBER && row->bytes)
        fprintf(out, " (default %" PRIu64 "M)", row->initial >> 20);
    else if (row->kind == NUMBER)
        fprintf(out, " (default %" PRIu64 ")", row->initial);
    else if (row->kind == CHOICE)
        fprintf(out, " (default %s)", row->choices[0]);
    if (row->kind != LIMITS)
        return;
    fputs(" (default ", out);
    if (row->defaults)
        fputs(row->defaults, out);
    for (int level = first_level(row); !row->defaults && level < FAD_LEVELS; level++)
        fprintf(out, "%" PRIu64 "%s", row->limits[level], level < FAD_LEVELS - 1 ? "," : "");
    fputc(')', out);
}

void fad_options_help(FILE *out)
{
    fputs("usage: fad [options]\n"
          "Serves attention forward passes to local clients over a Unix socket.\n\n",
          out);
    for (size_t i = 0; i < ROWS; i++) {
        int width =
            fprintf(out, "  --%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        fprintf(out, "%*s%s", width < 28 ? 28 - width : 1, "", rows[i].help);
        print_defaults(&rows[i], out);
        fputc('\n', out);
    }
    fputs("\nLimits hold for a connection, for all of a uid, and for all; an empty field keeps its "
          "defaults.\nBYTES and bytes may end with K, M or G. Over a limit a request is refused at "
          "once.\n",
          out);
    fputs("\nExit codes: 0 stopped by SIGTERM or SIGINT; 1 cannot start or go on; 2 wrong usage.\n",
          out);
}
