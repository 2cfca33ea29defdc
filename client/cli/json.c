#include "client/cli/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

bool cli_json_real(cJSON *object, const char *name, double value)
{
    return isfinite(value) ? cJSON_AddNumberToObject(object, name, value) != NULL
                           : cJSON_AddNullToObject(object, name) != NULL;
}

bool cli_json_us(cJSON *object, const char *name, double us)
{
    return cli_json_real(object, name, rint(us * 1e3) / 1e3);
}

bool cli_json_integer(cJSON *object, const char *name, uint64_t value)
{
    char digits[24];

    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

bool cli_json_by_status(cJSON *object, const char *name, const uint64_t *counts, size_t size)
{
    cJSON *inner = cJSON_AddObjectToObject(object, name);
    bool built = inner != NULL;

    for (size_t i = 0; built && i < size; i++)
        if (counts[i] > 0)
            built = cli_json_integer(inner, fa_status_name((enum fa_status)i), counts[i]);
    return built;
}

bool cli_json_text(cJSON *object, const char *name, const char *value)
{
    return value ? cJSON_AddStringToObject(object, name, value) != NULL
                 : cJSON_AddNullToObject(object, name) != NULL;
}

enum cli_exit cli_json_print(cJSON *object, bool built, struct cli_error *error)
{
    char *text = built ? cJSON_PrintUnformatted(object) : NULL;
    bool printed = text && puts(text) >= 0 && fflush(stdout) == 0;

    cJSON_free(text);
    cJSON_Delete(object);
    if (!text)
        return cli_fail(error, CLI_FAILED, "no memory for the JSON output");
    if (!printed)
        return cli_fail(error, CLI_FAILED, "standard output could not be written");
    return CLI_OK;
}
