#include "num/isa_end.h"
#undef GCKPTI_ISA
#pragma pop_macro("GCKPTI_ISA")
