/* backends.h: the backends by their names. */
#ifndef FAD_BACKENDS_H
#define FAD_BACKENDS_H

#include "daemon/backend/backend.h"

/* "cuda" and "cpu" are those; of "auto" only probe is there, which finds one of them. In a build
 * without CUDA the probe of "cuda" says so. Any other name: NULL. */
const struct fad_backend_ops *fad_backend_named(const char *name);

#endif
