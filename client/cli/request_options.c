#include "client/cli/request.h"

#include <stdio.h>
#include <string.h>

const char *const request_tensor_names[REQUEST_TENSORS] = {"q", "k", "v", "o", "lse"};

static const char *const way_names[] = {
    [REQUEST_INLINE] = "inline",
    [REQUEST_MEMFD] = "memfd",
    [REQUEST_REGION] = "region",
    [REQUEST_IPC] = "ipc",
};
#define WAY_COUNT (sizeof way_names / sizeof way_names[0])

/* --- Parsers --------------------------------------------------------------------------------- */

const char *request_parse_shape(const char *text, void *value)
{
    struct request_shape shape = {0};
    uint32_t *fields[] = {&shape.batch, &shape.heads, &shape.length, &shape.dim};

    for (size_t i = 0; i < 4; i++) {
        size_t length = strcspn(text, ",");
        uint64_t number;

        if (!cli_parse_number(text, length, INT32_MAX, &number) || (text[length] == ',') != (i < 3))
            return "must be four whole numbers B,H,S,D, as in 4,12,2048,64";
        *fields[i] = (uint32_t)number;
        text += length + 1;
    }
    *(struct request_shape *)value = shape;
    return NULL;
}

const char *request_parse_mask(const char *text, void *value)
{
    return fa_mask_parse(text, value) ? NULL
                                      : "must be none, causal-bottom-right or causal-top-left";
}

const char *request_parse_priority(const char *text, void *value)
{
    return fa_priority_parse(text, value) ? NULL : "must be low, normal or high";
}

/* One item: "memfd" sets all tensors, "q=memfd" one. */
static bool parse_way(const char *text, size_t length, struct request_ways *out)
{
    const char *sign = memchr(text, '=', length);
    const char *name = sign ? sign + 1 : text;
    size_t name_length = length - (size_t)(name - text), way = 0;
    bool found = false;

    while (way < WAY_COUNT && !cli_is(name, name_length, way_names[way]))
        way++;
    if (way == WAY_COUNT)
        return false;
    for (size_t i = 0; i < REQUEST_TENSORS; i++) {
        if (!sign || cli_is(text, (size_t)(sign - text), request_tensor_names[i])) {
            out->of[i] = (enum request_way)way;
            found = true;
        }
    }
    return found;
}

const char *request_parse_ways(const char *text, void *value)
{
    struct request_ways ways = {0};

    for (;;) {
        size_t length = strcspn(text, ",");

        if (!parse_way(text, length, &ways))
            return "must be inline, memfd, region, ipc, or a list such as q=memfd,o=inline (of q, "
                   "k, v, o, lse)";
        if (!text[length])
            break;
        text += length + 1;
    }
    *(struct request_ways *)value = ways;
    return NULL;
}

/* --- What was given -------------------------------------------------------------------------- */

enum cli_exit request_check_inputs(const struct request_options *options, const char *random,
                                   struct cli_error *error)
{
    size_t count = 0;

    for (size_t i = 0; i < 3; i++)
        count += options->inputs[i] != NULL;
    for (size_t i = 0; i < 3 && count > 0; i++)
        if (!options->inputs[i])
            return cli_fail(error, CLI_USAGE, "--%s is missing: --q, --k and --v go together",
                            request_tensor_names[i]);
    if (count > 0 && random)
        return cli_fail(error, CLI_USAGE,
                        "--%s is of random input, and --q, --k and --v are given: leave one out",
                        random);
    return CLI_OK;
}

void request_set_given(struct request_options *options, uint32_t given)
{
    options->shape_given = given & 1u << REQUEST_SHAPE;
    options->kv_len_given = given & 1u << REQUEST_KV_LEN;
    options->kv_heads_given = given & 1u << REQUEST_KV_HEADS;
    options->scale_given = given & 1u << REQUEST_SCALE;
}

void request_ways_text(const struct request_options *options, char *out, size_t size)
{
    const enum request_way *of = options->ways.of;
    const size_t count = options->wants_lse ? REQUEST_TENSORS : REQUEST_LSE;
    size_t length = 0;
    bool same = true;

    for (size_t i = 1; i < count; i++)
        same &= of[i] == of[0];
    if (same) {
        snprintf(out, size, "%s", way_names[of[0]]);
        return;
    }
    for (size_t i = 0; i < count && length < size; i++)
        length += (size_t)snprintf(out + length, size - length, "%s%s=%s", i ? "," : "",
                                   request_tensor_names[i], way_names[of[i]]);
}
