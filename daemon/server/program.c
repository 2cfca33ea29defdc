#include "daemon/server/program.h"

#include "daemon/server/loss.h"
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

/* Returns only when it failed. */
static void start_anew(struct fad_server *server, char *argv[])
{
    struct fad_handover handover;

    fad_loss_hand_over(server, &handover);
    fad_log(FAD_LOG_ERROR, "cannot start anew: %s", strerror(-fad_handover_exec(&handover, argv)));
}

static int serve(const struct fad_options *options, const struct fad_backend_ops *backend,
                 const struct fad_handover *handover, char *argv[])
{
    static struct fad_server server;
    struct fa_error error;
    char line[sizeof error + 64];
    enum fad_end end;

    if (fad_server_init(&server, options, backend, handover, &error) != 0) {
        fa_error_format(&error, line, sizeof line);
        fad_log(FAD_LOG_ERROR, "cannot start: %s", line);
        return EXIT_FAILURE;
    }
    end = fad_server_run(&server);
    if (end == FAD_END_LOST)
        start_anew(&server, argv);
    fad_server_deinit(&server);
    if (server.stuck)
        _exit(end == FAD_END_STOPPED ? EXIT_SUCCESS : EXIT_FAILURE); /* threads may never end */
    return EXIT_SUCCESS;
}

int fad_program(int argc, char *argv[],
                const struct fad_backend_ops *(*backend_named)(const char *name))
{
    const struct fad_backend_ops *backend;
    struct fad_handover handover;
    struct fad_options options;
    struct fa_error error;

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
    fad_handover_take(&handover);
    /* Clients of a GPU's are not to find themselves on a CPU: what it was it is again, or none. */
    backend = backend_named(handover.taken ? handover.backend : options.backend);
    if (!backend) {
        fad_log(FAD_LOG_ERROR, "cannot start: there is no backend '%s'", handover.backend);
        return EXIT_FAILURE;
    }
    return serve(&options, backend, &handover, argv);
}
