#include "plan/own.h"
#include "graph/graph.h"

/* ---- live bytes of a draft ---- */
GCKPTI_FN int gckpti_bytes_kind(gckpt_buffer_kind kind)
{
    return kind == GCKPT_BUFFER_WORKSPACE            ? GCKPT_BYTES_WORKSPACE
           : kind == GCKPT_BUFFER_PARAMETER_GRADIENT ? GCKPT_BYTES_GRADIENTS
           : kind == GCKPT_BUFFER_TREE               ? GCKPT_BYTES_TREE
                                                     : GCKPT_BYTES_ACTIVATIONS;
}

/* What a rank holds of so many bytes above its part, if they were cut anywhere. */
GCKPTI_FN size_t gckpti_padding(const gckpti_planner *p, size_t held, size_t bytes)
{
    return held - bytes / (size_t)p->g->store->ranks;
}

/* Live bytes at each instruction; the bound: the greatest of these sums, and what it is made of.
 * From a difference array, by kind; exact in double below 2^53. */
GCKPTI_FN gckpt_result gckpti_sum_live(gckpti_planner *p, gckpti_draft *d)
{
    typedef double kinds[GCKPT_BYTES_KINDS];
    size_t slots = d->length + 2;
    gckpti_scratch_clear(&p->pass);
    kinds *change = (kinds *)gckpti_scratch_take(&p->pass, slots, sizeof *change), live;
    if (!change)
        return GCKPT_E_MEMORY;
    for (size_t i = 0; i < d->buffer_count; i++) {
        const gckpt_buffer *b = &d->buffers[i];
        const gckpt_tensor *t = p->tensors[b->id];
        size_t whole = gckpti_bytes(p, t, 0);
        int kind = gckpti_bytes_kind(b->kind),
            shard = kind == GCKPT_BYTES_GRADIENTS && b->size < whole;
        double padding = shard ? (double)gckpti_padding(p, b->size, whole) : 0;
        if (b->kind == GCKPT_BUFFER_VALUE && gckpti_is_gathered(p, t))
            kind = GCKPT_BYTES_GATHERED;
        change[b->start][kind] += (double)b->size;
        change[b->end + 1][kind] -= (double)b->size;
        change[b->start][GCKPT_BYTES_PADDING] += padding;
        change[b->end + 1][GCKPT_BYTES_PADDING] -= padding;
    }
    memset(live, 0, sizeof live);
    memset(d->kind_bytes, 0, sizeof d->kind_bytes);
    d->most = 0;
    for (size_t x = 0; x < slots; x++) {
        double sum = 0, before = d->most;
        for (int k = 0; k < GCKPT_BYTES_KINDS; k++) {
            live[k] += change[x][k];
            sum += k == GCKPT_BYTES_PADDING ? 0 : live[k];
        }
        d->most = sum > d->most ? sum : d->most;
        if (d->most > (double)GCKPTI_ADDRESSABLE)
            continue;
        if (x < d->length)
            d->live[x] = (size_t)sum;
        for (int k = 0; k < GCKPT_BYTES_KINDS && sum > before; k++)
            d->kind_bytes[k] = (size_t)live[k];
    }
    d->bound = d->most > (double)GCKPTI_ADDRESSABLE ? SIZE_MAX : (size_t)d->most;
    if (d->bound < SIZE_MAX)
        return GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_MEMORY,
                        "plan: the step arena would need %g bytes, more than "
                        "this machine can address; use fewer rows or another mode",
                        d->most);
}
