#include "files/internal.h"
#include "store/store.h"

#ifndef GCKPT_NO_FILES
/* Gets the order of axes from desc.axes; returns 0 if that is no permutation of all axes. */
GCKPTI_FN int gckpti_get_axis_order(gckpti_axis_order *order, const gckpt_file_desc *d,
                                    const char *name, const gckpt_shape *shape)
{
    int axes[GCKPT_MAX_DIMS], seen = 0;
    memset(order, 0, sizeof *order);
    memset(axes, -1, sizeof axes);
    if (!GCKPTI_USES_AXES || !d->axes)
        return 1;
    order->count = d->axes(d->user, name, *shape, axes);
    for (int i = 0; order->count == shape->n && i < shape->n; i++) {
        if (axes[i] < 0 || axes[i] >= shape->n || seen >> axes[i] & 1)
            return order->permuted = 0;
        seen |= 1 << axes[i];
        order->axes[i] = (unsigned char)axes[i];
        order->permuted |= axes[i] != i;
    }
    return !order->count || order->count == shape->n;
}

/* Returns the index in the parameter (of shape `shape`) of element k of the file's tensor. */
GCKPTI_FN int64_t gckpti_permuted_index(const gckpti_axis_order *order, const gckpt_shape *shape,
                                        int64_t k)
{
    int64_t step[GCKPT_MAX_DIMS], n = 1, index = 0;
    for (int i = shape->n; i-- > 0; n *= shape->d[i])
        step[i] = n;
    for (int i = shape->n; i-- > 0; k /= shape->d[order->axes[i]])
        index += k % shape->d[order->axes[i]] * step[order->axes[i]];
    return index;
}

/* Converts a shape from the store's order of axes to the file's (to_file 1), or the reverse (0). */
GCKPTI_FN gckpt_shape gckpti_permuted_shape(const gckpti_axis_order *order, gckpt_shape shape,
                                            int to_file)
{
    gckpt_shape out = shape;
    for (int i = 0; i < shape.n; i++)
        out.d[to_file ? i : order->axes[i]] = shape.d[to_file ? order->axes[i] : i];
    return out;
}
#endif
