#include "base/base.h"

/* ---- shapes ---- */
GCKPTI_FN gckpt_shape gckpti_shape(int n, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const gckpt_shape s = { n, { a, b, c, d } };
    return s;
}

GCKPT_API gckpt_shape gckpt_shape1(int64_t a) { return gckpti_shape(1, a, 0, 0, 0); }
GCKPT_API gckpt_shape gckpt_shape2(int64_t a, int64_t b) { return gckpti_shape(2, a, b, 0, 0); }
GCKPT_API gckpt_shape gckpt_shape3(int64_t a, int64_t b, int64_t c)
{
    return gckpti_shape(3, a, b, c, 0);
}
GCKPT_API gckpt_shape gckpt_shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return gckpti_shape(4, a, b, c, d);
}

GCKPTI_FN int gckpti_same_shape(const gckpt_shape *a, const gckpt_shape *b)
{
    int same = a->n == b->n; /* without memcmp, which firmware would link for this only */
    for (int i = 0; same && i < a->n; i++)
        same = a->d[i] == b->d[i];
    return same;
}

GCKPTI_FN const char *gckpti_shape_problem(const gckpt_shape *s)
{
    const uint64_t most = SIZE_MAX / 64 < INT64_MAX / 64 ? SIZE_MAX / 64 : INT64_MAX / 64;
    const size_t limit = (size_t)most; /* a 64-bit division takes 700 bytes of a device's flash */
    int large = s->n < 0 || s->n > GCKPT_MAX_DIMS;
    size_t n = 1;
    for (int i = 0; i < s->n && i < GCKPT_MAX_DIMS; i++) {
        if (s->d[i] <= 0)
            return "sizes must be positive";
        large |= (uint64_t)s->d[i] > limit / n;
        n *= large ? 1 : (size_t)s->d[i];
    }
    return large ? "too many axes or elements for this machine" : NULL;
}

GCKPT_API void gckpt_sum_add(float *sum, float *comp, float x) { gckpti_sum_add(sum, comp, x); }
