/* twice.c - includes gradckpt.h for its declarations, then with the implementation, then again: function bodies must be
 * compiled only once. */
#include "gradckpt.h"
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "gradckpt.h"
#ifndef GRADCKPT_IMPLEMENTATION
#define GRADCKPT_IMPLEMENTATION
#endif
#include "gradckpt.h"
