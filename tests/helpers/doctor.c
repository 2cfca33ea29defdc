#include "tests/helpers/doctor.h"

#include "tests/helpers/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void doctor_play(const char *machine)
{
    char directory[PATH_MAX];

    snprintf(directory, sizeof directory, "%s/tests/fakes", test_build_dir());
    setenv("LD_LIBRARY_PATH", directory, 1);
    setenv("FAKE_CUDA", machine, 1);
}

/* What is found first is no library. */
static void play_none(void)
{
    char path[96];
    FILE *file;

    snprintf(path, sizeof path, "%s/libcuda.so.1", cli_directory);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fclose(file), 0);
    setenv("LD_LIBRARY_PATH", cli_directory, 1);
}

void doctor_setup(void)
{
    cli_setup();
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("XDG_RUNTIME_DIR");
    play_none();
}

const char *doctor_no_socket(void)
{
    static char path[96];

    snprintf(path, sizeof path, "%s/none.sock", cli_directory);
    return path;
}

cJSON *doctor_examine_by(const char *const argv[], int code)
{
    struct test_output output = test_run_vector(argv);
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_msg(output.code == code, "exit code %d: %s%s", output.code, output.out, output.err);
    ck_assert_msg(cJSON_IsObject(object), "no JSON: %s", output.out);
    ck_assert_str_eq(output.err, "");
    ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(object, "works")), code == 0);
    test_output_release(&output);
    return object;
}

cJSON *doctor_examine(const char *socket, int code)
{
    const char *const argv[] = {
        test_program("fa-cli"), "doctor", "--json", "--socket", socket, NULL};

    return doctor_examine_by(argv, code);
}

/* The first of the object's findings. */
static const cJSON *findings(const cJSON *object)
{
    const cJSON *array = cJSON_GetObjectItem(object, "findings");

    ck_assert(cJSON_IsArray(array));
    return array->child;
}

static bool is(const cJSON *object, const char *name, const char *value)
{
    return strcmp(cli_text(object, name), value) == 0;
}

void doctor_expect(const cJSON *object, const char *area, const char *state, const char *text,
                   const char *advice)
{
    const cJSON *finding = findings(object);

    while (finding && !(is(finding, "area", area) && is(finding, "state", state)))
        finding = finding->next;
    ck_assert_msg(finding != NULL, "nothing of %s is %s", area, state);
    ck_assert_msg(strstr(cli_text(finding, "text"), text) != NULL, "'%s' lacks '%s'",
                  cli_text(finding, "text"), text);
    ck_assert_msg(!advice || strstr(cli_text(finding, "advice"), advice) != NULL, "'%s' lacks '%s'",
                  cli_text(finding, "advice"), advice);
}

void doctor_expect_sound(const cJSON *object, const char *area)
{
    for (const cJSON *finding = findings(object); finding; finding = finding->next)
        ck_assert_msg(!(is(finding, "area", area) && is(finding, "state", "lack")), "%s: %s", area,
                      cli_text(finding, "text"));
}

const char *doctor_outcome(const cJSON *object, const char *name)
{
    const cJSON *way = cJSON_GetObjectItem(object, "transports");

    ck_assert(cJSON_IsArray(way));
    way = way->child;
    while (way && !is(way, "name", name))
        way = way->next;
    ck_assert_msg(way != NULL, "no transport %s", name);
    return cli_text(way, "outcome");
}
