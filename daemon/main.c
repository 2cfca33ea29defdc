/* fad: the attention daemon. Parses its options and runs a server; all else is in the library. */
#include "daemon/backend/backends.h"
#include "daemon/server/server.h"
#include "daemon/util/log.h"
#include "proto/fa_version.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int finish_stdout(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_SUCCESS;
    fad_log(FAD_LOG_ERROR, "cannot write to standard output: %s", strerror(errno));
    return EXIT_FAILURE;
}

int main(int argc, char *argv[])
{
    static struct fad_server server;
    struct fad_options options;
    struct fa_error error;
    char line[sizeof error + 64];
    int r;

    if (fad_options_parse(&options, argc, argv, &error) != FA_OK) {
        fad_log(FAD_LOG_ERROR, "%s%s%s%s", error.field[0] ? "--" : "", error.field,
                error.field[0] ? ": " : "", error.text);
        return 2;
    }
    if (options.help) {
        fad_options_help(stdout);
        return finish_stdout();
    }
    if (options.version) {
        printf("fad %s\n", FA_VERSION);
        return finish_stdout();
    }
    signal(SIGPIPE, SIG_IGN); /* a log that nobody reads any more is no reason to end */
    if (options.quiet)
        fad_log_set_level(FAD_LOG_ERROR);
    if (fad_server_init(&server, &options, fad_backend_named(options.backend), &error) != 0) {
        fa_error_format(&error, line, sizeof line);
        fad_log(FAD_LOG_ERROR, "cannot start: %s", line);
        return EXIT_FAILURE;
    }
    r = fad_server_run(&server);
    fad_server_deinit(&server);
    r = r == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    if (server.stuck)
        _exit(r); /* a normal end would wait for libuv's threads */
    return r;
}
