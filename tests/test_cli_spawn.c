/* fa-cli --spawn: private daemons, and what they leave: nothing. */
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- With a private daemon -------------------------------------------------------------------- */

START_TEST(spawns_for_every_command)
{
    struct test_output output = CLI("ping", "--spawn", "--count", "3");

    cli_expect_output(&output, "3 round trips: min ");
    output = CLI("info", "--spawn");
    cli_expect_output(&output, "protocol 1.");
    output = CLI("run", "--spawn", "--check");
    ck_assert_ptr_nonnull(strstr(output.out, "latency   queue "));
    ck_assert_ptr_nonnull(strstr(output.out, "TFLOP/s"));
    ck_assert_ptr_nonnull(strstr(output.out, "all 1536 rows"));
    cli_expect_output(&output, "PASS: relative L2");
}
END_TEST

/* Without $FAD_DAEMON it is the one beside fa-cli, on whatever backend that finds here. */
START_TEST(finds_the_daemon_beside_it)
{
    struct test_output output;

    ck_assert_int_eq(unsetenv("FAD_DAEMON"), 0);
    ck_assert_int_eq(setenv("PATH", "/none", 1), 0);
    output = CLI("ping", "--spawn", "--count", "3");
    cli_expect_output(&output, "3 round trips: min ");
}
END_TEST

START_TEST(prints_nothing_but_json)
{
    struct test_output output = CLI("ping", "--spawn", "--count", "3", "--json");
    static const char *const names[] = {"count", "min_us", "p50_us", "p99_us", "max_us"};
    static const char *const texts[] = {"daemon_version", "protocol", "backend"};
    static const char *const limits[] = {"message_bytes", "payload_bytes", "jobs", "staged_bytes",
                                         "mapped_bytes"};
    cJSON *object = cJSON_Parse(output.out);

    ck_assert_int_eq(output.code, 0);
    ck_assert_str_eq(output.err, "");
    for (int i = 0; i < 5; i++)
        ck_assert(cJSON_IsNumber(cJSON_GetObjectItem(object, names[i])));
    ck_assert_int_eq(cJSON_GetObjectItem(object, "count")->valueint, 3);
    cJSON_Delete(object);
    test_output_release(&output);

    output = CLI("info", "--spawn", "--json");
    ck_assert_int_eq(output.code, 0);
    ck_assert_str_eq(output.err, "");
    object = cJSON_Parse(output.out);
    for (int i = 0; i < 3; i++)
        ck_assert(cJSON_IsString(cJSON_GetObjectItem(object, texts[i])));
    for (int i = 0; i < 5; i++)
        ck_assert(
            cJSON_IsNumber(cJSON_GetObjectItem(cJSON_GetObjectItem(object, "limits"), limits[i])));
    ck_assert_str_eq(cJSON_GetArrayItem(cJSON_GetObjectItem(object, "transports"), 0)->valuestring,
                     "inline");
    ck_assert_str_eq(cJSON_GetArrayItem(cJSON_GetObjectItem(object, "transports"), 1)->valuestring,
                     "memfd");
    ck_assert_int_ge(cJSON_GetArraySize(cJSON_GetObjectItem(object, "devices")), 1);
    ck_assert_int_ge(cJSON_GetArraySize(cJSON_GetObjectItem(object, "versions")), 5);
    cJSON_Delete(object);
    test_output_release(&output);
}
END_TEST

/* An executable script in our directory, as $FAD_DAEMON. */
static void use_script(const char *text)
{
    char path[96];
    FILE *file;

    snprintf(path, sizeof path, "%s/script", cli_directory);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, 0700), 0);
    ck_assert_int_eq(setenv("FAD_DAEMON", path, 1), 0);
}

START_TEST(says_why_a_daemon_did_not_start)
{
    struct test_output output;

    ck_assert_int_eq(setenv("FAD_DAEMON", "/none/fad", 1), 0);
    output = CLI("ping", "--spawn");
    cli_expect_error(&output, 3, "/none/fad cannot be started: No such file");
    use_script("#!/bin/sh\nexit 7\n");
    output = CLI("ping", "--spawn");
    cli_expect_error(&output, 3, "exit code 7");
    use_script("#!/bin/sh\nkill -KILL $$\n");
    output = CLI("ping", "--spawn", "--json");
    cli_expect_error(&output, 3, "signal 9");
}
END_TEST

START_TEST(says_when_a_daemon_ends_badly)
{
    char script[4400];
    struct test_output output;

    snprintf(script, sizeof script,
             "#!/bin/sh\n'%s' --quiet \"$@\" & trap 'kill $!; wait $!; exit 5' TERM\nwait\n",
             test_program("fad"));
    use_script(script);
    output = CLI("ping", "--spawn", "--json");
    ck_assert_ptr_nonnull(strstr(output.out, "p50_us"));
    cli_expect_error(&output, 1, "the daemon ended with exit code 5");
}
END_TEST

/* The socket of a daemon that fa-cli spawned, once it is there. */
static void await_socket(char path[400])
{
    for (long long until = test_now_ms() + TEST_PROGRAM_SECONDS * 1000LL;; test_sleep_ms(2)) {
        DIR *opened = opendir(cli_directory);
        struct dirent *entry;

        ck_assert_ptr_nonnull(opened);
        while ((entry = readdir(opened))) {
            snprintf(path, 400, "%s/%s/fad.sock", cli_directory, entry->d_name);
            if (strncmp(entry->d_name, "fa-cli-", 7) == 0 && access(path, F_OK) == 0) {
                closedir(opened);
                return;
            }
        }
        closedir(opened);
        ck_assert_msg(test_now_ms() < until, "no spawned daemon listens");
    }
}

/* More pings than end before the signal comes. */
static void begin_pings(struct test_process *process)
{
    test_begin(process, (const char *const[]){test_program("fa-cli"), "ping", "--spawn", "--count",
                                              "1000000", NULL});
}

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

START_TEST(a_signal_leaves_nothing)
{
    struct test_process process;
    struct test_output output;
    char socket[400];

    begin_pings(&process);
    await_socket(socket);
    ck_assert_int_eq(kill(process.pid, signals[_i]), 0);
    output = test_finish(&process);
    ck_assert_int_eq(output.code, 128 + signals[_i]);
    ck_assert_str_eq(output.out, "");
    test_output_release(&output);
}
END_TEST

/* While the daemon does not answer yet: a script that never will. Its file says that it runs. */
START_TEST(a_signal_while_waiting_leaves_nothing)
{
    struct test_process process;
    struct test_output output;
    char socket[400];

    use_script("#!/bin/bash\n: >\"$2\"\nexec -a \"$2\" sleep 1000\n");
    begin_pings(&process);
    await_socket(socket);
    ck_assert_int_eq(kill(process.pid, SIGINT), 0);
    output = test_finish(&process);
    ck_assert_int_eq(output.code, 128 + SIGINT);
    test_output_release(&output);
}
END_TEST

/* Nothing can be done at SIGKILL, but the daemon ends with its parent all the same. */
START_TEST(a_kill_ends_the_daemon)
{
    long long until = test_now_ms() + TEST_PROGRAM_SECONDS * 1000LL;
    struct test_process process;
    struct test_output output;
    char socket[400];

    begin_pings(&process);
    await_socket(socket);
    while (!test_daemon_serves(socket)) { /* then it heeds signals */
        ck_assert_msg(test_now_ms() < until, "the daemon does not serve");
        test_sleep_ms(2);
    }
    ck_assert(cli_daemon_runs());
    ck_assert_int_eq(kill(process.pid, SIGKILL), 0);
    output = test_finish(&process);
    ck_assert_int_eq(output.code, 128 + SIGKILL);
    test_output_release(&output);
    while (cli_daemon_runs()) {
        ck_assert_msg(test_now_ms() < until, "the daemon outlives fa-cli");
        test_sleep_ms(2);
    }
    *strrchr(socket, '/') = '\0';
    test_remove_directory(socket);
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("cli-spawn");
    TCase *tcase = tcase_create("cli-spawn");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_test(tcase, spawns_for_every_command);
    tcase_add_test(tcase, finds_the_daemon_beside_it);
    tcase_add_test(tcase, prints_nothing_but_json);
    tcase_add_test(tcase, says_why_a_daemon_did_not_start);
    tcase_add_test(tcase, says_when_a_daemon_ends_badly);
    tcase_add_loop_test(tcase, a_signal_leaves_nothing, 0, sizeof signals / sizeof signals[0]);
    tcase_add_test(tcase, a_signal_while_waiting_leaves_nothing);
    tcase_add_test(tcase, a_kill_ends_the_daemon);
    suite_add_tcase(suite, tcase);
    return suite;
}
