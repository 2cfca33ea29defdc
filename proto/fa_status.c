#include "proto/fa_status.h"

#include <stdarg.h>
#include <stdio.h>

const char *fa_status_name(enum fa_status status)
{
    switch (status) {
#define FA_STATUS_CASE(name, number, text) \
    case FA_##name:                        \
        return #name;
        FA_STATUS_LIST(FA_STATUS_CASE)
#undef FA_STATUS_CASE
    }
    return "UNKNOWN";
}

const char *fa_status_text(enum fa_status status)
{
    switch (status) {
#define FA_STATUS_CASE(name, number, text) \
    case FA_##name:                        \
        return text;
        FA_STATUS_LIST(FA_STATUS_CASE)
#undef FA_STATUS_CASE
    }
    return "unknown status";
}

enum fa_status fa_error_set(struct fa_error *error, enum fa_status status, const char *field,
                            const char *format, ...)
{
    va_list args;
    error->status = status;
    snprintf(error->field, sizeof error->field, "%s", field ? field : "");
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return status;
}

int fa_error_format(const struct fa_error *error, char *out, size_t size)
{
    return snprintf(out, size, "%s: %s%s%s", fa_status_name(error->status), error->field,
                    error->field[0] ? ": " : "", error->text);
}
