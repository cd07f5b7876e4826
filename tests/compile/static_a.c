/* static_a.c, static_b.c - two translation units with private copies of the library: no symbols may
 * collide. */
#define GCKPT_STATIC
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
const char *name_b(void);
int main(void)
{
    return name_b()[0] == 0 || gckpt_result_text(GCKPT_OK)[0] == 0;
}
