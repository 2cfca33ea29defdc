/* wire_region.h: regions for the raw client, and what a daemon says that it holds.
 *
 *     struct wire_region region;
 *     wire_region_alloc(&region, fd, 4096);
 *     wire_forward_use_region(&f, FAD_Q, &region, 64);
 *     wire_region_push(&region, fd);
 *     wire_forward_send(fd, &f, 5); ...
 *     wire_region_pull(&region, fd);   where an output lies in it
 *     wire_forward_check(&f, &reply);
 *     wire_region_release(&region, fd);
 *
 * Calls that take a connection and no id send a request, await its reply and assert that it is a
 * success. */
#ifndef TEST_WIRE_REGION_H
#define TEST_WIRE_REGION_H

#include "tests/helpers/wire_forward.h"

/* --- Frames ---------------------------------------------------------------------------------- */

/* A frame with any message, and payload. */
void wire_append_message(struct wire_bytes *bytes, uint16_t type, uint64_t id,
                         const ProtobufCMessage *message, const void *payload, size_t size);

void wire_append_alloc(struct wire_bytes *bytes, uint64_t id, uint64_t size);

/* Announces the descriptor, which is to be sent with it. */
void wire_append_register(struct wire_bytes *bytes, uint64_t id, bool writable);

void wire_append_write(struct wire_bytes *bytes, uint64_t id, uint64_t region, uint64_t offset,
                       const void *data, size_t size);
void wire_append_read(struct wire_bytes *bytes, uint64_t id, uint64_t region, uint64_t offset,
                      uint64_t length);
void wire_append_release(struct wire_bytes *bytes, uint64_t id, uint64_t region);
void wire_append_cancel(struct wire_bytes *bytes, uint64_t id, uint64_t request);

/* Sends the bytes and frees them. With descriptors they go in one sendmsg. */
void wire_send_bytes(int fd, struct wire_bytes *bytes);
void wire_send_bytes_fds(int fd, struct wire_bytes *bytes, const int *fds, int count);

/* Sends them, a request of the id 5; it must be refused, and the connection must then serve. */
void wire_bytes_refused(int fd, struct wire_bytes *bytes, enum fa_status status, const char *field,
                        const char *words);

/* --- Regions --------------------------------------------------------------------------------- */

struct wire_region {
    uint64_t id;
    /* Of a registered one the memory itself; of an allocated one the test's copy of its bytes,
     * NaN at first. */
    uint8_t *memory;
    size_t size;
    int memfd; /* -1: an allocated one */
};

void wire_region_alloc(struct wire_region *region, int fd, size_t size);

/* Shared memory, zero, sealed against shrinking; the descriptor stays open. */
void wire_region_register(struct wire_region *region, int fd, size_t size, bool writable);

/* Registers a descriptor; the region's id. */
uint64_t wire_register(int fd, int memfd, bool writable);

/* Copies all of an allocated region there, or back from there. */
void wire_region_push(const struct wire_region *region, int fd);
void wire_region_pull(const struct wire_region *region, int fd);

/* The same for any bytes. */
void wire_write(int fd, uint64_t region, uint64_t offset, const void *data, size_t size);
void wire_read(int fd, uint64_t region, uint64_t offset, void *data, size_t size);

void wire_release_region(int fd, uint64_t region);

/* Releases it and frees what the test holds of it; or only the latter. */
void wire_region_release(struct wire_region *region, int fd);
void wire_region_free(struct wire_region *region);

/* Lets the tensor lie in the region. An input's bytes are copied there (an allocated one's still
 * have to be pushed). Strides are to be set before. */
void wire_forward_use_region(struct wire_forward *forward, enum fad_tensor tensor,
                             const struct wire_region *region, uint64_t offset);

/* The tensors whose bit is set, one behind the other from the region's start, 64 bytes apart. */
void wire_forward_use_regions(struct wire_forward *forward, unsigned tensors,
                              const struct wire_region *region);

/* --- What is held ---------------------------------------------------------------------------- */

/* The daemon's statistics; release the reply. */
void wire_stats(int fd, struct wire_reply *reply);

/* Cancels; whether it was found. */
bool wire_cancel(int fd, uint64_t request);

/* Waits until the daemon holds no job, no staged or mapped byte, no region, and no connection but
 * this one. */
void wire_expect_idle(int fd);

#endif
