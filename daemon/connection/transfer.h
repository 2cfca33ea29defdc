/* transfer.h: one WriteRegion or ReadRegion: a copy between a region and staging memory. */
#ifndef FAD_TRANSFER_H
#define FAD_TRANSFER_H

#include "daemon/connection/region.h"

/* Begins to copy size bytes (> 0) between staging memory and offset of a region, inside which they
 * are. type is the request's: WRITE_REGION, then the payload is received and goes into the region;
 * or READ_REGION, then the reply's payload has the bytes. The copy starts when the frame is
 * complete. Any status but FA_OK: nothing is held. */
enum fa_status fad_transfer_begin(struct fad_connection *connection, uint16_t type, uint64_t id,
                                  struct fad_client_region *region, uint64_t offset, uint64_t size,
                                  struct fa_error *error);

#endif
