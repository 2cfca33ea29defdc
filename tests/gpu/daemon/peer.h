/* peer.h: a process of its own with memory on the GPU (exporter.cu), as the daemon's clients have:
 * tests of the daemon use no CUDA themselves, so that they can fork. Everything here fails the test
 * itself when the process does not do what it is told within PEER_SECONDS; it dies with the test.
 *
 *     struct peer peer;
 *     struct peer_memory memory;
 *     peer_start(&peer, 0);
 *     peer_alloc(&peer, &memory, 1 << 20);
 *     peer_use(&f, FAD_Q, &memory, 64);   by its handle, in a Forward of wire_forward.h
 *     peer_push(&memory, 0);
 *     wire_forward_run(...)               after which an output is to be pulled, see peer_run
 *     peer_free(&memory);
 *     peer_stop(&peer); */
#ifndef TEST_PEER_H
#define TEST_PEER_H

#include "tests/helpers/wire_region.h"

#include <sys/types.h>

#define PEER_SECONDS 60

/* --- The process ----------------------------------------------------------------------------- */

struct peer {
    pid_t pid;
    int to, from;   /* pipes */
    unsigned slots; /* bit: taken */
};

/* Starts one, of a user other than the test's where uid is not 0. */
void peer_start(struct peer *peer, uid_t uid);

/* Ends it, or kills it; and reaps it. */
void peer_stop(struct peer *peer);
void peer_kill(struct peer *peer);

/* Sends a line and returns what is answered, without the line's end. Static. */
const char *peer_ask(struct peer *peer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same; it must be answered with "ok", and what follows that is returned. */
const char *peer_tell(struct peer *peer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Free bytes of the GPU. */
uint64_t peer_gpu_free(struct peer *peer);

/* Waits until the GPU has so much free again as it had, but for a few MiB that drivers keep. */
void peer_expect_freed(struct peer *peer, uint64_t before);

/* An interprocess event of the peer's, 0 to 15; its handle. */
void peer_event(struct peer *peer, unsigned number, uint8_t handle[64]);

/* --- Its memory ------------------------------------------------------------------------------ */

/* An allocation, and the test's copy of its bytes, NaN at first on both sides. */
struct peer_memory {
    struct peer *peer;
    unsigned slot;
    size_t allocated;          /* bytes */
    struct wire_region region; /* its id is 0 until it is registered, its memory the copy */
    uint8_t handle[64], uuid[16];
    uint64_t buffer_id;
    uint64_t offset; /* of the memory in what the handle names */
    uint64_t whole;  /* bytes of that */
};

/* peer_alloc makes it of whole 2 MiB, which the driver takes from no larger block; peer_alloc_exact
 * of the size. */
void peer_alloc(struct peer *peer, struct peer_memory *memory, size_t size);
void peer_alloc_exact(struct peer *peer, struct peer_memory *memory, size_t size);
void peer_free(struct peer_memory *memory);

/* Frees and allocates as much again; the copy's bytes stay, the memory's are whatever they are. */
void peer_renew(struct peer_memory *memory);

/* Copies all bytes there, after a kernel of so many milliseconds, for which this does not wait (0:
 * none; then it waits); and back from there. */
void peer_push(const struct peer_memory *memory, unsigned milliseconds);
void peer_pull(const struct peer_memory *memory);

/* --- Requests -------------------------------------------------------------------------------- */

/* Lets the tensor lie there, by its handle, at an offset of the test's choice; an input's bytes go
 * into the copy and have still to be pushed. Strides are to be set before. peer_use_all: the
 * tensors whose bit is set, 64 bytes apart. */
void peer_use(struct wire_forward *forward, enum fad_tensor tensor,
              const struct peer_memory *memory, uint64_t offset);
void peer_use_all(struct wire_forward *forward, unsigned tensors, const struct peer_memory *memory);

/* Sends no payload any more once no input lies there; peer_use does it. */
void peer_drop_payload(struct wire_forward *forward);

/* Bytes that peer_use_all needs. */
uint64_t peer_bytes(const struct wire_forward *forward, unsigned tensors);

/* A request with all its tensors in one new allocation, pushed. */
void peer_forward_make(struct wire_forward *forward, struct peer *peer, struct peer_memory *memory,
                       struct wire_shape shape);

/* Lets the request wait for the event; the handle must stay. */
void peer_await(struct wire_forward *forward, enum fad_tensor tensor, uint8_t handle[64]);

/* Makes a frame that registers the memory as a region; or sends it and awaits the reply, after
 * which wire_forward_use_region and the like work with memory->region. */
void peer_append_register(struct wire_bytes *bytes, uint64_t id, const struct peer_memory *memory,
                          bool writable);
void peer_register(struct peer_memory *memory, int fd, bool writable);

/* Sends a request whose outputs lie in the memory, awaits the reply, pulls and checks. */
void peer_run(int fd, const struct wire_forward *forward, uint64_t id,
              const struct peer_memory *memory);

/* The next reply is this one, whatever field it names. */
void peer_expect(int fd, uint64_t id, enum fa_status status);

/* --- What the daemon holds ------------------------------------------------------------------- */

/* Mapped bytes of all clients, as its statistics have them. */
uint64_t peer_mapped(int fd);

#endif
