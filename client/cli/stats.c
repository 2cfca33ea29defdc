#include "client/cli/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The smallest value that at least percent of them do not exceed. */
static double rank(const double *sorted, size_t count, size_t percent)
{
    return sorted[(count * percent + 99) / 100 - 1];
}

struct cli_spread cli_spread_of(double *values, size_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return (struct cli_spread){values[0], rank(values, count, 50), rank(values, count, 99),
                               values[count - 1]};
}

double cli_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

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
