/* cpu.h: the backend that computes on the host's processors. */
#ifndef FAD_BACKEND_CPU_H
#define FAD_BACKEND_CPU_H

#include "daemon/backend/backend.h"

/* One device whose streams are worker threads. Kernels read and write clients' memfds in place. */
extern const struct fad_backend_ops fad_backend_cpu;

#endif
