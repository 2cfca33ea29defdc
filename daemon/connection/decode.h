/* decode.h: what several types of message are decoded with. */
#ifndef FAD_DECODE_H
#define FAD_DECODE_H

#include "daemon/connection/request.h"
#include "fad.pb-c.h"

/* All of a location by CUDA IPC but its offset. field is the location's name, as "q.cuda_ipc".
 * FA_INVALID_ARGUMENT names what of it is at fault. */
enum fa_status fad_ipc_decode(const Fad__CudaIpcLocation *in, const char *field,
                              struct fad_ipc *out, struct fa_error *error);

#endif
