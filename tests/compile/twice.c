/* twice.c - includes the declarations, then the implementation, then both again: the bodies must
 * appear once. */
#include "gradckpt.h"
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "gradckpt.h"
#ifndef GRADCKPT_IMPLEMENTATION
#define GRADCKPT_IMPLEMENTATION
#endif
#include "gradckpt.h"
