#include "base/base.h"

/* ---- sorts without recursion: heap sort (not stable), and merge sort by key (stable) ---- */
static void gckpti_swap(unsigned char *a, unsigned char *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const unsigned char byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

GCKPTI_FN void gckpti_sort(void *items, size_t n, size_t size, gckpti_less_fn before,
                           const void *context)
{
    unsigned char *v = (unsigned char *)items;
    for (size_t built = n / 2, end = n; end > 1;) {
        size_t parent = 0;
        if (built > 0)
            parent = --built; /* the heap is still being built */
        else
            gckpti_swap(v, v + --end * size, size);
        for (size_t child; end > 1 && (child = 2 * parent + 1) < end; parent = child) {
            if (child + 1 < end && before(v + child * size, v + (child + 1) * size, context))
                child++;
            if (!before(v + parent * size, v + child * size, context))
                break;
            gckpti_swap(v + parent * size, v + child * size, size);
        }
    }
}

GCKPTI_FN void gckpti_sort_keys(gckpti_keyed *v, gckpti_keyed *spare, size_t n)
{
    for (size_t i = 1; i < n; i++) { /* runs of 8 by insertion */
        const gckpti_keyed item = v[i];
        size_t k = i;
        for (; k % 8 > 0 && item.key < v[k - 1].key; k--)
            v[k] = v[k - 1];
        v[k] = item;
    }
    for (size_t width = 8; width < n; width *= 2)
        for (size_t low = 0; low + width < n; low += 2 * width) {
            size_t middle = low + width, high = middle + width < n ? middle + width : n;
            if (v[middle - 1].key <= v[middle].key)
                continue;
            memcpy(spare, v + low, width * sizeof *v);
            for (size_t i = 0, j = middle, k = low; i < width; k++)
                v[k] = j < high && v[j].key < spare[i].key ? v[j++] : spare[i++];
        }
}
