/* cuda_runtime_api.h - replaces CUDA's header of that name, which examples/nccl.h includes, by the shim. */
#include "cuda_shim.h"
