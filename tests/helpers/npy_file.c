#include "tests/helpers/npy_file.h"

#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct npy_file npy_file;

const char *const npy_spellings[NPY_SPELLINGS] = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3, 4)}",
    "{'shape': (1, 2, 3, 4), 'fortran_order': False, 'descr': '<f4', }",
    "{\"fortran_order\":False,\"descr\":\"<f4\",\"shape\":(1,2,3,4)}",
    "{ 'descr' : '<f4' ,\n 'fortran_order' :\tFalse ,\n 'shape' : ( 1 , 2 , 3 , 4 , ) , }",
};

void npy_setup(void)
{
    test_make_directory(npy_file.directory);
    snprintf(npy_file.path, sizeof npy_file.path, "%s/tensor.npy", npy_file.directory);
}

void npy_teardown(void)
{
    test_remove_directory(npy_file.directory);
}

void npy_put(const void *bytes, size_t length)
{
    ck_assert_uint_le(npy_file.length + length, sizeof npy_file.bytes);
    memcpy(npy_file.bytes + npy_file.length, bytes, length);
    npy_file.length += length;
}

void npy_save(void)
{
    FILE *out = fopen(npy_file.path, "wb");

    ck_assert_ptr_nonnull(out);
    ck_assert_uint_eq(fwrite(npy_file.bytes, 1, npy_file.length, out), npy_file.length);
    ck_assert_int_eq(fclose(out), 0);
}

void npy_begin(unsigned major, const char *header)
{
    size_t prefix = major == 1 ? 10 : 12, length = strlen(header);
    size_t total = (prefix + length + 1 + 63) / 64 * 64;
    uint32_t size = (uint32_t)(total - prefix);
    unsigned char version[2] = {(unsigned char)major, 0};

    npy_file.length = 0;
    npy_put("\x93NUMPY", 6);
    npy_put(version, 2);
    npy_put(&size, prefix - 8);
    npy_put(header, length);
    while (npy_file.length < total - 1)
        npy_put(" ", 1);
    npy_put("\n", 1);
}

void npy_put_data(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = (float)i;
        npy_put(&value, sizeof value);
    }
}

void npy_make(unsigned major, const char *header, size_t count)
{
    npy_begin(major, header);
    npy_put_data(count);
    npy_save();
}

float *npy_load(unsigned dims, uint64_t *shape, uint64_t *count, struct cli_error *error)
{
    struct cli_npy npy;
    float *data;

    *error = (struct cli_error){0};
    if (cli_npy_open(&npy, npy_file.path, dims, error) != CLI_OK)
        return NULL;
    memcpy(shape, npy.shape, dims * sizeof *shape);
    *count = npy.count;
    data = malloc(npy.count * sizeof *data + 1);
    ck_assert_ptr_nonnull(data);
    if (cli_npy_read(&npy, data, error) != CLI_OK) {
        free(data);
        data = NULL;
    }
    cli_npy_close(&npy);
    return data;
}

void npy_accept(unsigned dims, const uint64_t *shape)
{
    struct cli_error error;
    uint64_t got[CLI_NPY_DIMS], count, wanted = 1;
    float *data = npy_load(dims, got, &count, &error);

    ck_assert_msg(data != NULL, "refused: %s", error.text);
    for (unsigned i = 0; i < dims; i++) {
        ck_assert_uint_eq(got[i], shape[i]);
        wanted *= shape[i];
    }
    ck_assert_uint_eq(count, wanted);
    for (uint64_t i = 0; i < count; i++)
        ck_assert(data[i] == (float)i);
    free(data);
}

void npy_refuse(unsigned dims, const char *words)
{
    struct cli_error error;
    uint64_t got[CLI_NPY_DIMS], count;
    float *data = npy_load(dims, got, &count, &error);

    ck_assert_msg(data == NULL, "accepted instead of '%s'", words);
    ck_assert_int_eq(error.code, CLI_USAGE);
    ck_assert_msg(strncmp(error.text, npy_file.path, strlen(npy_file.path)) == 0,
                  "no file's name: %s", error.text);
    ck_assert_msg(strstr(error.text, words) != NULL, "'%s' lacks '%s'", error.text, words);
}

int npy_into_pipe(void)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], npy_file.bytes, npy_file.length), (ssize_t)npy_file.length);
    close(ends[1]);
    snprintf(npy_file.path, sizeof npy_file.path, "/dev/fd/%d", ends[0]);
    return ends[0];
}
