/* loss.h: what the daemon does when its device is lost (a sticky CUDA error; any negative status
 * of the backend's).
 *
 *     SERVING or DRAINING -> LOST -> fad_server_run returns
 *
 * LOST: no client is accepted; they wait in the socket's backlog. What is in flight, and what still
 * comes, is answered DEVICE_LOST, and there are 200 ms for the answers to go out. Then every
 * connection is closed, and the program is to be executed anew (handover.h) in the same process,
 * with the same socket and lock, so that nobody who connects notices. What the backend holds up is
 * not waited for, and the backend is not ended: its threads are gone with the exec. Where that is
 * one loss too many, or the daemon was to stop anyhow, it ends instead. */
#ifndef FAD_LOSS_H
#define FAD_LOSS_H

#include "daemon/server/server.h"

/* The device is lost, if it is not already; error < 0 is what the backend said. May be called from
 * the midst of the engine's work; what is to be done is done from the loop. */
void fad_loss_note(struct fad_server *server, int error);

/* Does it, once. Not from inside the engine's work. */
void fad_loss_begin(struct fad_server *server);

/* What the phase came to, once the loop has stopped. */
enum fad_end fad_loss_conclude(struct fad_server *server);

/* Fills in what is left to the successor, and tells the service manager. After fad_server_run has
 * said FAD_END_LOST. */
void fad_loss_hand_over(struct fad_server *server, struct fad_handover *handover);

#endif
