/* gradckpt.c - compiles the library's implementation, for the CMake package. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
