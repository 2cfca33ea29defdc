#include "daemon/server/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, NUMBER, TEXT };

static const struct option_row {
    const char *name;
    const char *argument;
    enum kind kind;
    size_t offset;
    uint64_t least, most, initial;
    const char *help;
} rows[] = {
    {"socket", "PATH", TEXT, offsetof(struct fad_options, socket), 0, 0, 0,
     "listen here (else $FAD_SOCKET, /run/fad/fad.sock, $XDG_RUNTIME_DIR/fad/fad.sock)"},
    {"workers", "N", NUMBER, offsetof(struct fad_options, workers), 0, 256, 0,
     "CPU worker threads; 0: one for each processor"},
    {"connections", "N", NUMBER, offsetof(struct fad_options, connections), 1, 65536, 512,
     "clients at once; one more is refused"},
    {"payload-max", "BYTES", NUMBER, offsetof(struct fad_options, payload_max), 4096,
     (uint64_t)1 << 40, (uint64_t)512 << 20, "largest payload of one request"},
    {"stall-seconds", "N", NUMBER, offsetof(struct fad_options, stall_seconds), 1, 86400, 30,
     "close a client that makes no progress for so long inside a request or with replies unread"},
    {"quiet", NULL, FLAG, offsetof(struct fad_options, quiet), 0, 0, 0,
     "log errors only, not refusals and disconnects"},
    {"help", NULL, FLAG, offsetof(struct fad_options, help), 0, 0, 0, "print this and exit"},
    {"version", NULL, FLAG, offsetof(struct fad_options, version), 0, 0, 0,
     "print the version and exit"},
};

#define ROWS (sizeof rows / sizeof rows[0])

static void *place(struct fad_options *options, const struct option_row *row)
{
    return (char *)options + row->offset;
}

static enum fa_status set_number(struct fad_options *options, const struct option_row *row,
                                 const char *text, struct fa_error *error)
{
    char *end;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || value < row->least || value > row->most)
        return fa_error_set(error, FA_INVALID_ARGUMENT, row->name,
                            "'%.40s' must be a number from %" PRIu64 " to %" PRIu64, text,
                            row->least, row->most);
    *(uint64_t *)place(options, row) = value;
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
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].kind == NUMBER)
            *(uint64_t *)place(options, &rows[i]) = rows[i].initial;
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

void fad_options_help(FILE *out)
{
    fputs("usage: fad [options]\n"
          "Serves attention forward passes to local clients over a Unix socket.\n\n",
          out);
    for (size_t i = 0; i < ROWS; i++) {
        int width =
            fprintf(out, "  --%s %s", rows[i].name, rows[i].argument ? rows[i].argument : "");
        fprintf(out, "%*s%s", width < 26 ? 26 - width : 1, "", rows[i].help);
        if (rows[i].kind == NUMBER)
            fprintf(out, " (default %" PRIu64 ")", rows[i].initial);
        fputc('\n', out);
    }
    fputs("\nExit codes: 0 stopped by SIGTERM or SIGINT; 1 cannot start or go on; 2 wrong usage.\n",
          out);
}
