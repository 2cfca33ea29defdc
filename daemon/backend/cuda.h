/* cuda.h: the backend that computes on NVIDIA GPUs. */
#ifndef FAD_BACKEND_CUDA_H
#define FAD_BACKEND_CUDA_H

#include "daemon/backend/backend.h"

/* In builds with CUDA. */
extern const struct fad_backend_ops fad_backend_cuda;

#endif
