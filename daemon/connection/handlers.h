/* handlers.h: what each type of message does. */
#ifndef FAD_HANDLERS_H
#define FAD_HANDLERS_H

#include "daemon/connection/connection.h"
#include "proto/fa_arena.h"

/* A handler replies or puts a request in flight, and returns FA_OK; or it fills *error, and the
 * caller refuses the request. The payload of the frame is dropped unless connection->receiving is
 * set. The descriptor stays the caller's unless the handler sets message->fd to -1. */
typedef enum fa_status fad_handler(struct fad_connection *connection, struct fad_message *message,
                                   struct fa_error *error);

fad_handler fad_handle_forward;         /* handle_forward.c */
fad_handler fad_handle_register_region; /* handle_region.c, as the next four */
fad_handler fad_handle_alloc_region;
fad_handler fad_handle_write_region;
fad_handler fad_handle_read_region;
fad_handler fad_handle_release_region;
fad_handler fad_handle_stats; /* handle_stats.c */

/* Answers a frame's message, and tells the reader what to do with its payload. Takes the message's
 * descriptor. */
void fad_handle_message(struct fad_connection *connection, const struct fad_message *message);

/* --- For the handlers ------------------------------------------------------------------------ */

/* An empty arena's allocator: one message is unpacked at a time, on the one loop thread. */
ProtobufCAllocator *fad_message_allocator(void);

/* Refuse a payload, a descriptor, or either, where the type has none. */
enum fa_status fad_expect_no_payload(const struct fad_message *message, struct fa_error *error);
enum fa_status fad_expect_no_descriptor(const struct fad_message *message, struct fa_error *error);
enum fa_status fad_expect_bare(const struct fad_message *message, struct fa_error *error);

/* A Forward is answered without having reached its handler. */
void fad_note_refused_forward(struct fad_connection *connection, enum fa_status status);

#endif
