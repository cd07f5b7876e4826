#include "num/num.h"
#include "base/base.h"

GCKPTI_FN double gckpti_size(double x) { return x < 0 ? -x : x; }
