/* The bodies, which a package compiles once. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
