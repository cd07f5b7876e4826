/* start.c - the start-up code of this board, which is the board of examples/mcu. */
#include "cortex_m.c"
#include "semihosting.c"
