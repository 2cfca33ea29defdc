#include "daemon/util/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum fad_log_level threshold = FAD_LOG_INFO;

void fad_log_set_level(enum fad_log_level level)
{
    threshold = level;
}

void fad_log(enum fad_log_level level, const char *format, ...)
{
    static const char prefix[] = "fad: ";
    char line[1024] = "fad: ";
    size_t start = sizeof prefix - 1, length;
    va_list args;

    if (level > threshold)
        return;
    va_start(args, format);
    vsnprintf(line + start, sizeof line - start - 1, format, args);
    va_end(args);
    length = strlen(line);
    for (size_t i = start; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[length++] = '\n';
    /* A log that cannot be written has nobody to tell. */
    if (write(STDERR_FILENO, line, length) < 0)
        return;
}
