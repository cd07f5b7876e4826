/* sets.c - prints the instruction sets whose kernels run on this machine (gckpt_isa). */
#include "gradckpt.h"
#include "../names.h"
#include <stdio.h>

int main(void)
{
    for (int isa = GCKPT_ISA_PLAIN; isa < GCKPT_ISA_COUNT; isa++)
        if (gckpt_isa_available((gckpt_isa)isa))
            printf(" %s", isa_name((gckpt_isa)isa));
    printf("\n");
    return 0;
}
