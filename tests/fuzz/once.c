/* once.c - src/store/params.c with the self-test of numbers run once in a process instead of for
 * each store. A target that includes once.h is linked with this file instead of the library's. */
#include "num/num.h"
#include "store/store.h"

static int once_tested(void)
{
    static int broken = -1;
    if (broken < 0)
        broken = gckpti_self_test();
    return broken;
}
#define gckpti_self_test once_tested
#include "store/params.c"
