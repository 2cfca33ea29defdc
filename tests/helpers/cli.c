#include "tests/helpers/cli.h"

#include "tests/helpers/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char cli_directory[64];

struct test_output cli_run_on(fake_script *script, void *data, const char *const argv[],
                              size_t count)
{
    struct fake_daemon fake;
    const char *whole[24] = {0};
    struct test_output output;

    ck_assert_uint_lt(count + 2, sizeof whole / sizeof whole[0]);
    memcpy(whole, argv, count * sizeof *argv);
    fake_start(&fake, script, data, 1);
    whole[count] = "--socket";
    whole[count + 1] = fake.path;
    output = test_run_vector(whole);
    fake_stop(&fake);
    return output;
}

void cli_setup(void)
{
    unsetenv("FAD_SOCKET");
    ck_assert_int_eq(setenv("FAD_DAEMON", test_program("fad"), 1), 0);
    test_make_directory(cli_directory);
    ck_assert_int_eq(setenv("TMPDIR", cli_directory, 1), 0);
}

bool cli_daemon_runs(void)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    bool found = false;

    ck_assert_ptr_nonnull(proc);
    while (!found && (entry = readdir(proc))) {
        char path[300], line[1024];
        int fd;
        ssize_t got;

        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || (fd = open(path, O_RDONLY)) < 0)
            continue;
        got = read(fd, line, sizeof line);
        close(fd);
        found = got > 0 && memmem(line, (size_t)got, cli_directory, strlen(cli_directory)) != NULL;
    }
    closedir(proc);
    return found;
}

void cli_teardown(void)
{
    ck_assert_msg(!cli_daemon_runs(), "a spawned daemon still runs");
    test_remove_directory(cli_directory);
}

void cli_expect_error(struct test_output *output, int code, const char *words)
{
    char *end = strchr(output->err, '\n');

    ck_assert_msg(output->code == code, "exit code %d instead of %d: %s", output->code, code,
                  output->err);
    ck_assert_msg(strncmp(output->err, "fa-cli: ", 8) == 0, "stderr: %s", output->err);
    ck_assert_msg(end && end[1] == '\0', "not one line: %s", output->err);
    ck_assert_msg(strstr(output->err, words) != NULL, "'%s' lacks '%s'", output->err, words);
    test_output_release(output);
}

void cli_expect_output(struct test_output *output, const char *words)
{
    ck_assert_msg(output->code == 0, "exit code %d: %s", output->code, output->err);
    ck_assert_msg(strstr(output->out, words) != NULL, "'%s' lacks '%s'", output->out, words);
    test_output_release(output);
}

size_t cli_lines(char *text, char *lines[], size_t room)
{
    size_t count = 0;
    char *end;

    for (; (end = strchr(text, '\n')); text = end + 1) {
        ck_assert_uint_lt(count, room);
        lines[count++] = text;
        *end = '\0';
    }
    return count;
}

double cli_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);

    ck_assert_msg(cJSON_IsNumber(item), "%s is no number", name);
    return item->valuedouble;
}

const char *cli_text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);

    ck_assert_msg(cJSON_IsString(item), "%s is no string", name);
    return item->valuestring;
}
