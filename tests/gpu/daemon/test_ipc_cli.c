/* test_ipc_cli.c: fa-cli, and so libfa, with tensors in its own GPU's memory, against the real
 * daemon: tests/test_cli_ipc.c has all that needs no GPU. */
#include "tests/helpers/cli.h"
#include "tests/helpers/test.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static struct test_daemon daemon_;

/* One for all the tests, which only ask it. */
static void start(void)
{
    test_daemon_start(&daemon_, NULL);
}

static void stop(void)
{
    test_daemon_stop(&daemon_);
}

static const char *const versions[] = {"auto", "v0", "v1", "v2", "v3", "v4"};
static const char *const ways[] = {"ipc", "q=ipc,k=region,v=memfd", "o=ipc,lse=ipc"};

START_TEST(passes_for_each_version)
{
    const char *version = versions[_i % (int)COUNT(versions)];
    const char *way = ways[_i / (int)COUNT(versions)];
    struct test_output output =
        CLI("run", "--socket", daemon_.socket, "--check", "--shape", "2,4,65,64", "--kv-len", "70",
            "--kv-heads", "2", "--mask", "causal-bottom-right", "--version", version, "--transport",
            way, "--repeat", "3");

    cli_expect_output(&output, "PASS");
}
END_TEST

/* Clients of one process and of several, all bits those of a pass alone. */
START_TEST(load_gives_the_same_bits)
{
    struct test_process processes[3];

    for (size_t i = 0; i < COUNT(processes); i++)
        test_begin(&processes[i],
                   (const char *const[]){test_program("fa-cli"), "load", "--socket", daemon_.socket,
                                         "--transport", "ipc", "--clients", "2", "--inflight", "4",
                                         "--shape", "1,4,130,64", "--duration", "1", NULL});
    for (size_t i = 0; i < COUNT(processes); i++) {
        struct test_output output = test_finish(&processes[i]);

        cli_expect_output(&output, "2 of 2 clients: the bits of a pass alone");
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("ipc_cli");
    TCase *tcase = tcase_create("ipc_cli");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_unchecked_fixture(tcase, start, stop);
    tcase_add_checked_fixture(tcase, cli_setup, cli_teardown);
    tcase_add_loop_test(tcase, passes_for_each_version, 0, (int)(COUNT(versions) * COUNT(ways)));
    tcase_add_test(tcase, load_gives_the_same_bits);
    suite_add_tcase(suite, tcase);
    return suite;
}
