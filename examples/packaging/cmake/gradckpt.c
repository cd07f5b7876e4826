/* The implementation, which the package compiles once. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
