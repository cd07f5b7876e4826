/* start.c - the board is that of examples/mcu. */
#include "cortex_m.c"
#include "semihosting.c"
