/* Begins loops that are compiled for plain floats (num/isa.h), if files are compiled one by one. */
#pragma push_macro("GCKPTI_ISA")
#undef GCKPTI_ISA
#define GCKPTI_ISA (-1)
#include "num/isa.h"
