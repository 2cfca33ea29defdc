/* spawn.h: the daemon that a command talks to: one that runs, or with --spawn a private one. */
#ifndef CLI_SPAWN_H
#define CLI_SPAWN_H

#include "client/cli/cli.h"
#include "client/cli/options.h"

/* Connects as the options say. With --spawn, starts a daemon on a socket in a directory of its own
 * and waits until it answers. It ends with this process, whichever way that ends; its directory
 * too, but for SIGKILL. At most one at a time. CLI_NO_DAEMON when nobody answers. */
enum cli_exit cli_connect(struct fa_client **out, const struct cli_target *target,
                          struct cli_error *error);

/* Connects once more to the daemon that cli_connect found or started. */
enum cli_exit cli_connect_again(struct fa_client **out, const struct cli_target *target,
                                struct cli_error *error);

/* Closes the client (NULL is legal), stops a spawned daemon and removes its directory. CLI_FAILED
 * when that daemon did not end with exit code 0; an error that is there already stays. */
enum cli_exit cli_disconnect(struct fa_client *client, enum cli_exit code, struct cli_error *error);

#endif
