/* once.c - src/store/params.c with a test of numbers that is made once a process, not for each store. A target
 * that includes once.h is linked with this; the library's own stays out then. */
#include "num/num.h"
#include "store/internal.h"

static int once_tested(void)
{
    static int broken = -1;
    if (broken < 0)
        broken = gckpti_self_test();
    return broken;
}
#define gckpti_self_test once_tested
#include "store/params.c"
