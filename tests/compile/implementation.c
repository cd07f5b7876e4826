/* implementation.c - the implementation as a separate translation unit, as in a user's project. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
