#include "client/cli/cli.h"

#include <stdarg.h>
#include <stdio.h>

enum cli_exit cli_fail(struct cli_error *error, enum cli_exit code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    /* One line, whatever a file's name holds. */
    for (char *c = error->text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
    error->code = code;
    return code;
}
