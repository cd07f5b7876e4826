/* cuda_runtime_api.h - replaces CUDA's header of this name, which examples/nccl.h includes, by the
 * shim. */
#include "cuda_shim.h"
