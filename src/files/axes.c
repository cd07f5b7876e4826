#include "files/own.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* ---- the order of axes in a file ---- */

/* What desc.axes says of a parameter of this shape. 0: no order of all its axes. */
GCKPTI_FN int gckpti_turn_ask(gckpti_turn *t, const gckpt_file_desc *d, const char *name,
                              const gckpt_shape *shape)
{
    int axes[GCKPT_MAX_DIMS], seen = 0;
    memset(t, 0, sizeof *t);
    memset(axes, -1, sizeof axes);
    if (!GCKPTI_ASKS_AXES || !d->axes)
        return 1;
    t->given = d->axes(d->user, name, *shape, axes);
    for (int i = 0; t->given == shape->n && i < shape->n; i++) {
        if (axes[i] < 0 || axes[i] >= shape->n || seen >> axes[i] & 1)
            return t->turned = 0;
        seen |= 1 << axes[i];
        t->axes[i] = (unsigned char)axes[i];
        t->turned |= axes[i] != i;
    }
    return !t->given || t->given == shape->n;
}

/* Where element k of the file's tensor stands in the parameter, which has this shape. */
GCKPTI_FN int64_t gckpti_turn_place(const gckpti_turn *t, const gckpt_shape *shape, int64_t k)
{
    int64_t step[GCKPT_MAX_DIMS], n = 1, at = 0;
    for (int i = shape->n; i-- > 0; n *= shape->d[i])
        step[i] = n;
    for (int i = shape->n; i-- > 0; k /= shape->d[t->axes[i]])
        at += k % shape->d[t->axes[i]] * step[t->axes[i]];
    return at;
}

/* The shape in the file of what has this one here; or (not to_file) the other way. */
GCKPTI_FN gckpt_shape gckpti_turned_shape(const gckpti_turn *t, gckpt_shape shape, int to_file)
{
    gckpt_shape out = shape;
    for (int i = 0; i < shape.n; i++)
        out.d[to_file ? i : t->axes[i]] = shape.d[to_file ? t->axes[i] : i];
    return out;
}
#endif
