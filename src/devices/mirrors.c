#ifndef GCKPT_NO_DEVICES
#include "store/store.h"

/* ---- copies of parameters in the own memory of backends, and which copy is the newest ---- */
static gckpti_mirror *gckpti_mirror_of(const gckpt_store *s, const gckpti_param *q)
{
    size_t i = (size_t)(q - s->params);
    return i < s->mirror_count && s->mirrors[i].backend ? &s->mirrors[i] : NULL;
}

GCKPTI_FN void gckpti_mark_changed(const gckpt_store *s, gckpti_param *q, int newest)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    gckpti_count_change(q);
    if (m)
        m->newest = newest;
}

GCKPTI_FN void gckpti_pull(const gckpt_store *s, const gckpti_param *q)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    if (!m || m->newest != GCKPTI_MIRROR)
        return;
    for (int i = 0; i <= gckpti_state_slots(q); i++)
        if (m->array[i])
            m->backend->copy_out(m->backend->context, gckpti_array(q, i - 1), m->array[i],
                                 gckpti_array_bytes(s, q, i));
    m->newest = GCKPTI_BOTH;
}

/* Copies the newest values to the host, then frees the mirror. */
static void gckpti_free_mirror(const gckpt_store *s, const gckpti_param *q)
{
    gckpti_mirror *m = gckpti_mirror_of(s, q);
    gckpti_pull(s, q);
    for (int i = 0; m && i < 5; i++)
        if (m->array[i])
            m->backend->release(m->backend->context, m->array[i], gckpti_array_bytes(s, q, i));
    if (m)
        memset(m, 0, sizeof *m);
}

GCKPTI_FN int gckpti_push(const gckpt_store *s, const gckpti_param *q, const gckpt_backend *b)
{
    gckpti_mirror *m = &s->mirrors[q - s->params];
    size_t scales = gckpti_scale_bytes(&q->p);
    if (m->backend != b)
        gckpti_free_mirror(s, q);
    m->backend = b;
    for (int i = q->p.quantised && !b->dequantise; i <= gckpti_state_slots(q); i++) {
        size_t bytes = gckpti_array_bytes(s, q, i);
        int fresh = !m->array[i];
        if (fresh)
            m->array[i] = (float *)b->allocate(b->context, bytes, 64);
        if (!m->array[i])
            return 0;
        if (!fresh && m->newest != GCKPTI_HOST)
            continue;
        if (i || !q->p.quantised) {
            b->copy_in(b->context, m->array[i], gckpti_array(q, i - 1), bytes);
            continue;
        }
        if (scales) /* scales come before the values, as in an owned block */
            b->copy_in(b->context, m->array[0], q->p.scales, scales);
        b->copy_in(b->context, (unsigned char *)(void *)m->array[0] + scales, q->p.quantised,
                   bytes - scales);
    }
    if (m->newest == GCKPTI_HOST)
        m->newest = GCKPTI_BOTH;
    return 1;
}

GCKPTI_FN float *gckpti_mirror_array(const gckpt_store *s, const gckpti_param *q, int slot)
{
    return s->mirrors[q - s->params].array[1 + slot];
}

/* Makes room for a mirror of each parameter; returns 0 without memory. */
static int gckpti_open_mirrors(gckpt_store *s)
{
    const size_t size = sizeof *s->mirrors;
    size_t old_bytes = s->mirror_count * size, bytes = s->count * size;
    if (s->mirror_count >= s->count)
        return 1;
    void *more = gckpti_resize(&s->memory, s->mirrors, old_bytes, bytes);
    if (!more)
        return 0;
    memset((char *)more + old_bytes, 0, bytes - old_bytes);
    s->mirrors = (gckpti_mirror *)more;
    s->mirror_count = s->count;
    return 1;
}

/* Frees a backend's mirrors unless another executor uses that backend. */
static void gckpti_close_mirrors(gckpt_store *s, const gckpt_backend *b)
{
    int others = 0;
    for (const gckpti_binding *binding = s->bindings; binding; binding = binding->next)
        others += binding->backend == b;
    for (size_t i = 0; i < s->mirror_count && !others; i++)
        if (s->mirrors[i].backend == b)
            gckpti_free_mirror(s, &s->params[i]);
    if (!s->bindings) {
        gckpti_delete(&s->memory, s->mirrors, s->mirror_count, sizeof *s->mirrors);
        s->mirrors = NULL;
        s->mirror_count = 0;
    }
}
#endif
