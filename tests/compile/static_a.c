/* static_a.c, static_b.c - two source files, each with its private copy of the library (GCKPT_STATIC), linked into one
 * program: their symbols must not collide. */
#define GCKPT_STATIC
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
const char *name_b(void);
int main(void)
{
    return name_b()[0] == 0 || gckpt_result_text(GCKPT_OK)[0] == 0;
}
