/* stop.h: how the daemon ends.
 *
 *     SERVING -> DRAINING -> ABANDONING -> fad_server_run returns
 *
 * DRAINING: no client is accepted and no request taken; those in flight run to their end.
 * ABANDONING: what is left is answered SHUTTING_DOWN, and then there is a second for the answers to
 * go out. Either ends as soon as no connection is left. */
#ifndef FAD_STOP_H
#define FAD_STOP_H

struct fad_server;

/* The first call begins to drain, for at most server->drain_ms; the next one abandons. Where
 * the device is lost, it ends instead of starting anew. why is for the log. */
void fad_stop(struct fad_server *server, const char *why);

/* To be called when a connection is gone, not from inside the engine's work. */
void fad_stop_if_done(struct fad_server *server);

#endif
