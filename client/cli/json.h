/* json.h: parts of the objects that --json prints. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "client/cli/cli.h"

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

/* Adds what JSON can hold: null for NaN and the infinities; 64-bit integers to the last digit. */
bool cli_json_real(cJSON *object, const char *name, double value);
/* Microseconds, to the nanosecond that the clock has. */
bool cli_json_us(cJSON *object, const char *name, double us);
bool cli_json_integer(cJSON *object, const char *name, uint64_t value);
/* NULL becomes null. */
bool cli_json_text(cJSON *object, const char *name, const char *value);

/* An object: of counts, indexed by status, those that are not 0, by the status's name. */
bool cli_json_by_status(cJSON *object, const char *name, const uint64_t *counts, size_t size);

/* Prints the object on one line of stdout and deletes it. built false: the object lacks parts for
 * want of memory. */
enum cli_exit cli_json_print(cJSON *object, bool built, struct cli_error *error);

#endif
