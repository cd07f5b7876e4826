/* The implementation in a translation unit of its own, as an embedding project has it. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
