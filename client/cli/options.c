#include "client/cli/options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 26
#define HELP_WIDTH  96

/* --- Parsers --------------------------------------------------------------------------------- */

bool cli_is(const char *text, size_t length, const char *word)
{
    return strlen(word) == length && memcmp(text, word, length) == 0;
}

bool cli_parse_number(const char *text, size_t length, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;

    if (length == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value) || value > max)
            return false;
    }
    *out = value;
    return true;
}

const char *cli_parse_text(const char *text, void *value)
{
    if (!*text)
        return "must not be empty";
    *(const char **)value = text;
    return NULL;
}

const char *cli_parse_count(const char *text, void *value)
{
    uint64_t number;

    if (!cli_parse_number(text, strlen(text), 1000000, &number) || number == 0)
        return "must be a whole number from 1 to 1000000";
    *(uint32_t *)value = (uint32_t)number;
    return NULL;
}

const char *cli_parse_extent(const char *text, void *value)
{
    uint64_t number;

    if (!cli_parse_number(text, strlen(text), INT32_MAX, &number))
        return "must be a whole number from 0 to 2147483647";
    *(uint32_t *)value = (uint32_t)number;
    return NULL;
}

const char *cli_parse_u64(const char *text, void *value)
{
    if (!cli_parse_number(text, strlen(text), UINT64_MAX, value))
        return "must be a whole number from 0 to 18446744073709551615";
    return NULL;
}

/* strtod without what it allows too much: leading space, hexadecimal, "inf", "nan". */
static bool parse_double(const char *text, double *out)
{
    char *end;

    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return false;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

const char *cli_parse_real(const char *text, void *value)
{
    return parse_double(text, value) ? NULL : "must be a finite number";
}

const char *cli_parse_seconds(const char *text, void *value)
{
    double seconds;

    /* Rounded up to a millisecond, which must fit an int. */
    if (!parse_double(text, &seconds) || !(seconds > 0) || seconds > 2000000)
        return "must be a number of seconds over 0 and at most 2000000";
    *(int *)value = (int)ceil(seconds * 1e3);
    return NULL;
}

/* --- The command line ------------------------------------------------------------------------ */

static enum cli_exit set(const struct cli_option *option, const char *text, void *values,
                         struct cli_error *error)
{
    void *value = (char *)values + option->offset;
    const char *wrong;

    if (!option->argument) {
        *(bool *)value = true;
        return CLI_OK;
    }
    wrong = option->parse(text, value);
    if (wrong)
        return cli_fail(error, CLI_USAGE, "--%s '%s': %s", option->name, text, wrong);
    return CLI_OK;
}

static enum cli_exit unknown(const struct cli_command *command, const char *word,
                             struct cli_error *error)
{
    return cli_fail(error, CLI_USAGE,
                    "%s: no such option (names are given in full); `fa-cli help %s` lists them",
                    word, command->name);
}

/* Whether getopt_long may see the word: it would take "--vers" for "--version". */
static bool is_exact(const struct cli_command *command, const char *word)
{
    if (!word || strncmp(word, "--", 2) != 0 || !word[2])
        return true;
    for (size_t i = 0; i < command->option_count; i++)
        if (cli_is(word + 2, strcspn(word + 2, "="), command->options[i].name))
            return true;
    return false;
}

/* What getopt_long refused, in our words. */
static enum cli_exit refuse(const struct cli_command *command, int got, char **argv,
                            struct cli_error *error)
{
    const struct cli_option *option = command->options + (optopt >= 1 ? optopt - 1 : 0);

    if (optopt >= 1 && (size_t)optopt <= command->option_count)
        return cli_fail(error, CLI_USAGE,
                        got == ':' ? "--%s needs a value: %s" : "--%s takes no %s", option->name,
                        got == ':' ? option->argument : "value");
    return unknown(command, argv[optind > 1 ? optind - 1 : 1], error);
}

/* A word that is no option. */
static enum cli_exit take_operand(const struct cli_command *command, const char *word, void *values,
                                  struct cli_error *error)
{
    struct cli_operands *operands =
        command->operands ? (void *)((char *)values + command->operands_at) : NULL;

    if (!operands)
        return cli_fail(error, CLI_USAGE,
                        "'%s': %s takes options only; `fa-cli help %s` lists them", word,
                        command->name, command->name);
    if (operands->count == CLI_OPERAND_MAX)
        return cli_fail(error, CLI_USAGE, "'%s': %s takes at most %d such words", word,
                        command->name, CLI_OPERAND_MAX);
    operands->of[operands->count++] = word;
    return CLI_OK;
}

enum cli_exit cli_parse(const struct cli_command *command, int argc, char **argv, void *values,
                        size_t size, uint32_t *given, struct cli_error *error)
{
    struct option longs[CLI_OPTION_MAX + 1] = {0};
    int got;

    assert(command->option_count <= CLI_OPTION_MAX);
    memset(values, 0, size);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];

        longs[i] = (struct option){option->name, option->argument ? required_argument : no_argument,
                                   NULL, (int)i + 1};
        if (option->initial && set(option, option->initial, values, error) != CLI_OK)
            abort(); /* our own table is wrong */
    }
    *given = 0;
    opterr = 0;
    optind = 0; /* starts anew, whatever was parsed before */
    for (;;) {
        const char *word = argc > 1 ? argv[optind ? optind : 1] : NULL;

        if (!is_exact(command, word))
            return unknown(command, word, error);
        got = getopt_long(argc, argv, "+:", longs, NULL);
        if (got == -1 && optind >= argc)
            return CLI_OK;
        if (got == -1) {
            if (take_operand(command, argv[optind++], values, error) != CLI_OK)
                return error->code;
            continue;
        }
        if (got == '?' || got == ':')
            return refuse(command, got, argv, error);
        if (set(&command->options[got - 1], optarg, values, error) != CLI_OK)
            return error->code;
        *given |= UINT32_C(1) << (got - 1);
    }
}

/* --- Help ------------------------------------------------------------------------------------ */

/* Prints text from the given column on, broken at spaces; later lines start at HELP_COLUMN. */
static void print_wrapped(FILE *out, const char *text, int column)
{
    while (*text) {
        int length = (int)strcspn(text, " ");

        if (column > HELP_COLUMN && column + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += fprintf(out, "%s%.*s", column > HELP_COLUMN ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
}

static void print_fields(const struct cli_command *command, FILE *out)
{
    fprintf(out, "\nfields of --json:\n");
    for (size_t i = 0; i < command->field_count; i++) {
        int column = fprintf(out, "  %s", command->fields[i].name);

        fprintf(out, "%*s", column < HELP_COLUMN ? HELP_COLUMN - column : 1, "");
        print_wrapped(out, command->fields[i].help, HELP_COLUMN);
        fputc('\n', out);
    }
}

void cli_print_help(const struct cli_command *command, FILE *out)
{
    fprintf(out, "usage: fa-cli %s%s%s [option ...]\n\n%s.\n\noptions:\n", command->name,
            command->operands ? " " : "", command->operands ? command->operands : "",
            command->title);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];
        char text[512];
        int column = fprintf(out, "  --%s%s%s", option->name, option->argument ? " " : "",
                             option->argument ? option->argument : "");

        if (column >= HELP_COLUMN)
            column = fprintf(out, "\n") - 1;
        fprintf(out, "%*s", HELP_COLUMN - column, "");
        snprintf(text, sizeof text, option->initial ? "%s (default: %s)" : "%s", option->help,
                 option->initial);
        print_wrapped(out, text, HELP_COLUMN);
        fputc('\n', out);
    }
    if (command->notes)
        fprintf(out, "\n%s", command->notes);
    print_fields(command, out);
}
