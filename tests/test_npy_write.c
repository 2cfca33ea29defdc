/* .npy files that fa-cli writes, and headers and files that somebody damaged. */
#include "tests/helpers/npy_file.h"
#include "tests/helpers/proc.h"
#include "tests/helpers/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- Written --------------------------------------------------------------------------------- */

/* What NumPy 1.26 wrote for numpy.zeros((2, 3, 32, 64), numpy.float32). */
START_TEST(writes_what_numpy_writes)
{
    static const char header[] =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 32, 64), }";
    const uint64_t shape[] = {2, 3, 32, 64};
    float *zeroes = calloc(2 * 3 * 32 * 64, sizeof *zeroes);
    struct cli_error error = {0};
    size_t length;
    char *written;

    ck_assert_int_eq(cli_npy_write(npy_file.path, zeroes, shape, 4, &error), CLI_OK);
    written = test_read_file(npy_file.path, &length);
    ck_assert_uint_eq(length, 128 + 2 * 3 * 32 * 64 * sizeof(float));
    ck_assert_mem_eq(written, "\x93NUMPY\x01\x00\x76\x00", 10);
    ck_assert_mem_eq(written + 10, header, sizeof header - 1);
    for (size_t i = 10 + sizeof header - 1; i < 127; i++)
        ck_assert_int_eq(written[i], ' ');
    ck_assert_int_eq(written[127], '\n');
    free(written);
    free(zeroes);
}
END_TEST

START_TEST(reads_what_it_writes)
{
    static const uint64_t shapes[][4] = {{1, 1, 1, 1}, {2, 3, 4, 5}, {0, 3, 4, 5}, {1, 1, 1, 1000}};
    struct cli_error error = {0};
    float data[1000];

    for (size_t i = 0; i < 1000; i++)
        data[i] = (float)i;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (unsigned dims = 0; dims <= 4; dims++) {
            ck_assert_int_eq(cli_npy_write(npy_file.path, data, shapes[i], dims, &error), CLI_OK);
            npy_accept(dims, shapes[i]);
        }
    }
}
END_TEST

/* The longest header there can be still fits; only the header is looked at. */
START_TEST(writes_the_longest_header)
{
    const uint64_t shape[] = {0, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    struct cli_error error = {0};
    size_t length;

    ck_assert_int_eq(cli_npy_write(npy_file.path, NULL, shape, 4, &error), CLI_OK);
    free(test_read_file(npy_file.path, &length));
    ck_assert_uint_eq(length % 64, 0);
}
END_TEST

START_TEST(writing_replaces_whole_and_keeps_links)
{
    const uint64_t shape[] = {1, 1, 1, 2};
    const float data[] = {0, 1};
    struct cli_error error = {0};
    char link_path[96];
    struct stat info;

    umask(022);
    npy_make(1, NPY_HEADER("(1, 1, 1, 1)"), 1);
    snprintf(link_path, sizeof link_path, "%s/link", npy_file.directory);
    ck_assert_int_eq(symlink(npy_file.path, link_path), 0);
    ck_assert_int_eq(cli_npy_writable(link_path, &error), CLI_OK);
    ck_assert_int_eq(cli_npy_write(link_path, data, shape, 4, &error), CLI_OK);
    ck_assert_int_eq(lstat(link_path, &info), 0);
    ck_assert(S_ISLNK(info.st_mode));
    npy_accept(4, shape);
    ck_assert_int_eq(stat(npy_file.path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0644);
    ck_assert_int_eq(unlink(link_path), 0);
}
END_TEST

/* What is no regular file is written to, not replaced. A pipe stands for all of them: were the code
 * wrong, a test as root would replace a device. */
START_TEST(writing_to_a_pipe_leaves_it_one)
{
    const uint64_t shape[] = {1, 1, 1, 2};
    const float data[] = {0, 1};
    struct cli_error error = {0};
    unsigned char bytes[256];
    struct stat info;
    int fd;

    ck_assert_int_eq(mkfifo(npy_file.path, 0600), 0);
    fd = open(npy_file.path, O_RDONLY | O_NONBLOCK);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(cli_npy_writable(npy_file.path, &error), CLI_OK);
    ck_assert_int_eq(cli_npy_write(npy_file.path, data, shape, 4, &error), CLI_OK);
    ck_assert_int_eq(stat(npy_file.path, &info), 0);
    ck_assert(S_ISFIFO(info.st_mode));
    ck_assert_int_eq(read(fd, bytes, sizeof bytes), 128 + sizeof data);
    close(fd);
    ck_assert_int_eq(unlink(npy_file.path), 0);
}
END_TEST

/* A write that fails half way, at the size that a file may have, leaves nothing at all. */
START_TEST(half_a_file_is_none)
{
    const uint64_t shape[] = {1, 1, 1, 1024};
    const struct rlimit limit = {1024, RLIM_INFINITY};
    float data[1024] = {0};
    struct cli_error error = {0};

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(cli_npy_write(npy_file.path, data, shape, 4, &error), CLI_FAILED);
    ck_assert_ptr_nonnull(strstr(error.text, "File too large"));
    ck_assert_int_eq(rmdir(npy_file.directory), 0);
    ck_assert_int_eq(mkdir(npy_file.directory, 0700), 0);
}
END_TEST

START_TEST(writing_fails_by_name)
{
    const uint64_t shape[] = {1, 1, 1, 2};
    const float data[] = {0, 1};
    struct cli_error error = {0};
    char missing[128];

    snprintf(missing, sizeof missing, "%s/none/o.npy", npy_file.directory);
    ck_assert_int_eq(cli_npy_writable(missing, &error), CLI_USAGE);
    ck_assert_ptr_nonnull(strstr(error.text, missing));
    ck_assert_int_eq(cli_npy_write(missing, data, shape, 4, &error), CLI_FAILED);
    ck_assert_ptr_nonnull(strstr(error.text, missing));
    ck_assert_int_eq(cli_npy_writable(npy_file.directory, &error), CLI_USAGE);
    ck_assert_ptr_nonnull(strstr(error.text, npy_file.directory));
    ck_assert_int_eq(cli_npy_write(npy_file.directory, data, shape, 4, &error), CLI_FAILED);
}
END_TEST

/* What the write would find is found before. */
START_TEST(writable_is_tried)
{
    char path[400];
    struct cli_error error = {0};

    snprintf(path, sizeof path, "%s/%0250d", npy_file.directory, 0);
    ck_assert_int_eq(cli_npy_writable(path, &error), CLI_USAGE); /* no room for a suffix */
    ck_assert_ptr_nonnull(strstr(error.text, "File name too long"));
    ck_assert_int_eq(cli_npy_writable(npy_file.path, &error), CLI_OK);
    ck_assert_int_eq(rmdir(npy_file.directory), 0); /* nothing is left */
    ck_assert_int_eq(mkdir(npy_file.directory, 0700), 0);
}
END_TEST

/* As open() does: what a link leads to is made, and the link stays. */
START_TEST(writes_through_a_link_to_nothing)
{
    const uint64_t shape[] = {1, 1, 1, 2};
    const float data[] = {0, 1};
    struct cli_error error = {0};
    char links[2][128], name[64];
    struct stat info;

    for (int i = 0; i < 2; i++)
        snprintf(links[i], sizeof links[i], "%s/link%d", npy_file.directory, i);
    snprintf(name, sizeof name, "%s", strrchr(npy_file.path, '/') + 1);
    ck_assert_int_eq(symlink(name, links[0]), 0); /* relative */
    ck_assert_int_eq(symlink(links[0], links[1]), 0);
    ck_assert(cli_npy_same_file(links[1], npy_file.path));
    ck_assert_int_eq(cli_npy_writable(links[1], &error), CLI_OK);
    ck_assert_int_eq(cli_npy_write(links[1], data, shape, 4, &error), CLI_OK);
    npy_accept(4, shape);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(lstat(links[i], &info), 0);
        ck_assert(S_ISLNK(info.st_mode));
        ck_assert_int_eq(unlink(links[i]), 0);
    }
    ck_assert_int_eq(symlink(links[0], links[0]), 0);
    ck_assert_int_eq(cli_npy_writable(links[0], &error), CLI_USAGE);
    ck_assert_ptr_nonnull(strstr(error.text, "symbolic links"));
    ck_assert_int_eq(unlink(links[0]), 0);
}
END_TEST

START_TEST(knows_the_same_file)
{
    char other[160];

    for (int there = 0; there < 2; there++) {
        snprintf(other, sizeof other, "%s/./%s", npy_file.directory,
                 strrchr(npy_file.path, '/') + 1);
        ck_assert(cli_npy_same_file(npy_file.path, other));
        snprintf(other, sizeof other, "%s/other", npy_file.directory);
        ck_assert(!cli_npy_same_file(npy_file.path, other));
        npy_make(1, NPY_HEADER("(1, 1, 1, 1)"), 1);
    }
    ck_assert(!cli_npy_same_file("/dev/null", "/dev/null"));
    ck_assert(!cli_npy_same_file("/none/x", "/none/x"));
}
END_TEST

static void end_by_sigterm(int signal_number)
{
    (void)signal_number;
    raise(SIGTERM);
}

/* A signal in the midst of a write: the system tells, by another one, when we are there. */
START_TEST(a_signal_leaves_no_file)
{
    const uint64_t shape[] = {1, 1, 1, 1024};
    const struct rlimit limit = {1024, RLIM_INFINITY};
    float data[1024] = {0};
    struct cli_error error = {0};
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGXFSZ, end_by_sigterm);
        setrlimit(RLIMIT_FSIZE, &limit);
        cli_npy_write(npy_file.path, data, shape, 4, &error);
        _exit(1);
    }
    status = test_wait(pid, TEST_PROGRAM_SECONDS);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    ck_assert_int_eq(rmdir(npy_file.directory), 0);
    ck_assert_int_eq(mkdir(npy_file.directory, 0700), 0);
}
END_TEST

/* --- Fuzz ------------------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Changes, drops or repeats some bytes. */
static size_t mutate(char *text, size_t length, size_t room, uint64_t *state)
{
    static const char alphabet[] = "{}()[]'\",:\\<>|fOL0123456789 -\n\0descrTrueFalse";

    for (uint64_t edits = 1 + next_random(state) % 4; edits > 0 && length > 0; edits--) {
        size_t at = next_random(state) % length;
        size_t span = 1 + next_random(state) % (length - at < 8 ? length - at : 8);

        switch (next_random(state) % 4) {
        case 0:
            text[at] = alphabet[next_random(state) % (sizeof alphabet - 1)];
            break;
        case 1:
            text[at] = (char)next_random(state);
            break;
        case 2:
            memmove(text + at, text + at + span, length - at - span);
            length -= span;
            break;
        default:
            if (length + span <= room) {
                memmove(text + at + span, text + at, length - at);
                length += span;
            }
        }
    }
    return length;
}

/* The text lies at the end of its own block, so that a sanitizer sees a read past it. */
START_TEST(survives_mutated_headers)
{
    const size_t count = NPY_SPELLINGS;
    uint64_t state = 1, accepted = 0;

    for (int i = 0; i < 200000; i++) {
        const char *seed = npy_spellings[next_random(&state) % count];
        char text[256], wrong[160] = "";
        uint64_t shape[CLI_NPY_DIMS];
        size_t length = (size_t)snprintf(text, sizeof text, "%s", seed);
        char *copy;

        length = mutate(text, length, sizeof text, &state);
        copy = malloc(length + !length);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, text, length);
        if (cli_npy_parse_header(copy, length, 4, shape, wrong, sizeof wrong))
            accepted++;
        else
            ck_assert_msg(wrong[0] != '\0', "refused without a reason: %.*s", (int)length, text);
        free(copy);
    }
    /* Some edits (a digit, a space) leave a header sound: the loop reaches the far side too. */
    ck_assert_uint_gt(accepted, 1000);
    ck_assert_uint_lt(accepted, 150000);
}
END_TEST

/* Whole files: whatever is cut or changed, an answer comes. */
START_TEST(survives_mutated_files)
{
    uint64_t state = 2;

    for (int i = 0; i < 3000; i++) {
        struct cli_error error;
        uint64_t shape[CLI_NPY_DIMS], count;
        float *data;

        npy_begin(1 + (unsigned)(next_random(&state) % 3), NPY_HEADER("(1, 2, 2, 2)"));
        npy_put_data(8);
        npy_file.length =
            mutate((char *)npy_file.bytes, npy_file.length, sizeof npy_file.bytes, &state);
        npy_save();
        data = npy_load(4, shape, &count, &error);
        ck_assert(data != NULL || error.text[0] != '\0');
        free(data);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("npy-write");
    TCase *tcase = tcase_create("npy-write");

    tcase_set_timeout(tcase, TEST_CASE_SECONDS);
    tcase_add_checked_fixture(tcase, npy_setup, npy_teardown);
    tcase_add_test(tcase, writes_what_numpy_writes);
    tcase_add_test(tcase, reads_what_it_writes);
    tcase_add_test(tcase, writes_the_longest_header);
    tcase_add_test(tcase, writing_replaces_whole_and_keeps_links);
    tcase_add_test(tcase, writing_to_a_pipe_leaves_it_one);
    tcase_add_test(tcase, half_a_file_is_none);
    tcase_add_test(tcase, writing_fails_by_name);
    tcase_add_test(tcase, writable_is_tried);
    tcase_add_test(tcase, writes_through_a_link_to_nothing);
    tcase_add_test(tcase, knows_the_same_file);
    tcase_add_test(tcase, a_signal_leaves_no_file);
    tcase_add_test(tcase, survives_mutated_headers);
    tcase_add_test(tcase, survives_mutated_files);
    suite_add_tcase(suite, tcase);
    return suite;
}
