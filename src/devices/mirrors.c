#ifndef GCKPT_NO_DEVICES
#include "store/store.h"

/* ---- copies of parameters in the own memory of backends, and which copy is the newest ---- */
GCKPTI_FN void gckpti_mark_changed(gckpti_param *q, int newest)
{
    q->mirror.newest = q->mirror.backend ? newest : GCKPTI_BOTH;
}

GCKPTI_FN void gckpti_pull(const gckpt_store *s, const gckpti_param *q)
{
    if (q->mirror.newest != GCKPTI_MIRROR)
        return;
    gckpti_mirror *m = &s->params[q - s->params].mirror;
    for (int i = 0; i <= gckpti_state_slots(q); i++)
        if (m->array[i])
            m->backend->copy_out(m->backend->context, gckpti_array(q, i - 1), m->array[i],
                                 gckpti_array_bytes(s, q, i));
    m->newest = GCKPTI_BOTH;
}

/* Copies the newest values to the host, then frees the mirror. */
static void gckpti_free_mirror(const gckpt_store *s, gckpti_param *q)
{
    gckpti_mirror *m = &q->mirror;
    gckpti_pull(s, q);
    for (int i = 0; i < 5; i++)
        if (m->array[i])
            m->backend->release(m->backend->context, m->array[i], gckpti_array_bytes(s, q, i));
    memset(m, 0, sizeof *m);
}

GCKPTI_FN int gckpti_push(const gckpt_store *s, gckpti_param *q, const gckpt_backend *b, int states)
{
    gckpti_mirror *m = &q->mirror;
    if (m->backend != b || (m->array[1] && states < 0))
        gckpti_free_mirror(s, q);
    m->backend = b;
    const int on_host = gckpti_is_compressed((int)q->p.storage) && !b->dequantise;
    for (int i = on_host; i <= gckpti_state_slots(q); i++) {
        size_t bytes = gckpti_array_bytes(s, q, i);
        int fresh = !m->array[i];
        if (fresh && i && i > states)
            break;
        if (fresh)
            m->array[i] = (float *)b->allocate(b->context, bytes, 64);
        if (!m->array[i])
            return 0;
        if (!fresh && m->newest != GCKPTI_HOST)
            continue;
        const void *from = i ? q->p.state[i - 1] : gckpti_stored(&q->p);
        b->copy_in(b->context, m->array[i], from, bytes);
    }
    if (m->newest == GCKPTI_HOST)
        m->newest = GCKPTI_BOTH;
    return 1;
}

/* Frees a backend's mirrors unless another executor uses that backend. */
static void gckpti_close_mirrors(const gckpt_store *s, const gckpt_backend *b)
{
    int others = 0;
    for (const gckpti_binding *binding = s->bindings; binding; binding = binding->next)
        others += binding->backend == b;
    for (size_t i = 0; i < s->count && b && !others; i++)
        if (s->params[i].mirror.backend == b)
            gckpti_free_mirror(s, &s->params[i]);
}
#endif
