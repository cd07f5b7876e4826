/* The runtime API, as examples/nccl.h includes it: the shim. */
#include "cuda_shim.h"
