/* loopback_forward.h: the raw client's forwards and regions (wire_forward.h), over a loopback. */
#ifndef LOOPBACK_FORWARD_H
#define LOOPBACK_FORWARD_H

#include "tests/helpers/loopback.h"
#include "tests/helpers/wire_region.h"

/* Sends bytes as fast as the loop takes them, with a descriptor (-1: none) on the first. */
void loopback_send_bytes(int client, const uint8_t *bytes, size_t size, int fd);

void loopback_send_forward(int client, const struct wire_forward *forward, uint64_t id);

/* The next reply; release it with wire_release. Asserts that there is one. */
void loopback_receive_reply(int client, struct wire_reply *reply);

/* Sends a request for a region, and takes its id from the reply. */
uint64_t loopback_register(int client, int memfd, bool writable);
uint64_t loopback_alloc(int client, uint64_t size, uint8_t device);

/* As wire_region_register. End it with wire_region_free. */
void loopback_region(struct wire_region *region, int client, size_t size, bool writable);

/* Moves a tensor that lies in the shared memory behind all else there, spread out by the strides.
 * What is between its elements is NaN. */
void loopback_spread(struct wire_forward *forward, enum fad_tensor tensor, int64_t batch,
                     int64_t head, int64_t row);

void loopback_cancel(int client, uint64_t id, uint64_t request);

/* Held calls of the kind. */
unsigned loopback_held(enum scripted_call call);

/* Finishes the first held call of the kind, which must be there, and lets the loop turn. */
void loopback_finish(enum scripted_call call);

#endif
