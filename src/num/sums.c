#include "num/num.h"
#include "base/base.h"
