#include "tests/helpers/cases.h"

#include "tests/helpers/test.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole file, with a NUL behind it. */
static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *bytes;
    long length;

    ck_assert_msg(file != NULL, "%s cannot be opened", path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    length = ftell(file);
    ck_assert_int_ge(length, 0);
    rewind(file);
    bytes = malloc((size_t)length + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, (size_t)length, file), (size_t)length);
    bytes[length] = '\0';
    fclose(file);
    *size = (size_t)length;
    return bytes;
}

/* The elements of DIR/case/tensor.npy, which must be `count` of the type that numpy calls `type`.
 * Format 1.0: magic, version, u16 length of a header that is a Python dictionary, header, data. */
static void *read_tensor(const char *name, const char *tensor, const char *type, size_t width,
                         size_t count)
{
    const size_t prefix = 10;
    char path[PATH_MAX], expected[32];
    size_t size, header;
    char *bytes;

    snprintf(path, sizeof path, "%s/%s/%s.npy", test_data_dir(), name, tensor);
    bytes = read_file(path, &size);
    ck_assert_msg(size > prefix && memcmp(bytes, "\x93NUMPY\x01", 7) == 0, "%s is no npy", path);
    header = (unsigned char)bytes[8] | (size_t)(unsigned char)bytes[9] << 8;
    ck_assert_msg(size == prefix + header + width * count, "%s has %zu bytes", path, size);
    bytes[prefix + header - 1] = '\0'; /* in place of the newline that ends the header */
    snprintf(expected, sizeof expected, "'descr': '%s'", type);
    ck_assert_msg(strstr(bytes + prefix, expected) != NULL, "%s is not %s", path, type);
    ck_assert_msg(strstr(bytes + prefix, "'fortran_order': False") != NULL, "%s: order", path);
    memmove(bytes, bytes + prefix + header, width * count);
    return bytes;
}

static uint32_t extent(const cJSON *json, const char *tensor, int index)
{
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItem(json, tensor), index);

    ck_assert_msg(cJSON_IsNumber(item), "%s[%d] of a case is missing", tensor, index);
    return (uint32_t)item->valueint;
}

static void load_case(const cJSON *json, struct test_case *out)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(json, "name"));
    const char *mask = cJSON_GetStringValue(cJSON_GetObjectItem(json, "mask"));
    const cJSON *scale = cJSON_GetObjectItem(json, "scale");
    size_t rows, keys;

    ck_assert_msg(name && mask, "a case without name or mask");
    snprintf(out->name, sizeof out->name, "%s", name);
    ck_assert_msg(fa_mask_parse(mask, &out->mask), "%s: mask %s", name, mask);
    out->batch = extent(json, "q", 0);
    out->heads = extent(json, "q", 1);
    out->q_len = extent(json, "q", 2);
    out->head_dim = extent(json, "q", 3);
    out->kv_heads = extent(json, "k", 1);
    out->kv_len = extent(json, "k", 2);
    out->has_scale = cJSON_IsNumber(scale);
    out->scale = out->has_scale ? scale->valuedouble : 0;
    rows = (size_t)out->batch * out->heads * out->q_len;
    keys = (size_t)out->batch * out->kv_heads * out->kv_len;
    out->q = read_tensor(name, "q", "<f4", sizeof(float), rows * out->head_dim);
    out->k = read_tensor(name, "k", "<f4", sizeof(float), keys * out->head_dim);
    out->v = read_tensor(name, "v", "<f4", sizeof(float), keys * out->head_dim);
    out->o = read_tensor(name, "o", "<f8", sizeof(double), rows * out->head_dim);
    out->lse = read_tensor(name, "lse", "<f8", sizeof(double), rows);
}

struct test_case *test_cases_load(size_t *count)
{
    char path[PATH_MAX];
    struct test_case *cases;
    size_t size;
    char *text;
    cJSON *json;

    snprintf(path, sizeof path, "%s/cases.json", test_data_dir());
    text = read_file(path, &size);
    json = cJSON_Parse(text);
    ck_assert_msg(cJSON_IsArray(json), "%s is no JSON array", path);
    *count = (size_t)cJSON_GetArraySize(json);
    cases = calloc(*count, sizeof *cases);
    ck_assert_ptr_nonnull(cases);
    for (size_t i = 0; i < *count; i++)
        load_case(cJSON_GetArrayItem(json, (int)i), &cases[i]);
    cJSON_Delete(json);
    free(text);
    return cases;
}

void test_cases_free(struct test_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(cases[i].q);
        free(cases[i].k);
        free(cases[i].v);
        free(cases[i].o);
        free(cases[i].lse);
    }
    free(cases);
}
