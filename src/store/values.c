#include "store/internal.h"
#include "num/num.h"

/* ---- where the newest copy of a parameter is ---- */
static gckpti_mirror *gckpti_mirror_of(const gckpt_store *s, const gckpti_param *q)
{
    size_t i = (size_t)(q - s->params);
    return GCKPTI_HAS_MIRRORS && i < s->mirror_count && s->mirrors[i].backend ? &s->mirrors[i]
                                                                              : NULL;
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
GCKPTI_FN void gckpti_free_mirror(const gckpt_store *s, const gckpti_param *q)
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

GCKPTI_FN int gckpti_bind(gckpt_store *s, gckpti_binding *binding, const gckpt_backend *b)
{
    if (b && s->mirror_count < s->count) {
        const size_t size = sizeof *s->mirrors;
        size_t old_bytes = s->mirror_count * size, bytes = s->count * size;
        void *more = gckpti_resize(&s->memory, s->mirrors, old_bytes, bytes);
        if (!more)
            return 0;
        memset((char *)more + old_bytes, 0, bytes - old_bytes);
        s->mirrors = (gckpti_mirror *)more;
        s->mirror_count = s->count;
    }
    binding->store = s;
    binding->backend = b;
    binding->next = s->bindings;
    s->bindings = binding;
    return 1;
}

GCKPTI_FN void gckpti_unbind(gckpti_binding *binding)
{
    gckpt_store *s = binding->store;
    int others = 0;
    if (!s)
        return;
    for (gckpti_binding **link = &s->bindings; *link;) {
        others += *link != binding && (*link)->backend == binding->backend;
        if (*link == binding)
            *link = binding->next;
        else
            link = &(*link)->next;
    }
    for (size_t i = 0; i < s->mirror_count && !others; i++)
        if (s->mirrors[i].backend == binding->backend)
            gckpti_free_mirror(s, &s->params[i]);
    if (!s->bindings) {
        gckpti_delete(&s->memory, s->mirrors, s->mirror_count, sizeof *s->mirrors);
        s->mirrors = NULL;
        s->mirror_count = 0;
    }
}

/* ---- values: a parameter has none until a call needs them ---- */

GCKPTI_FN const float *gckpti_values_at(const gckpt_store *s, const gckpti_param *q, int64_t at,
                                        float buf[GCKPTI_CHUNK], int64_t *n)
{
    const gckpti_shard_range shard = gckpti_array_shard(s, q, GCKPTI_VALUES);
    *n = q->p.elements - at;
    if (!gckpti_has_values(q) || q->uninitialised) {
        *n = gckpti_min(*n, GCKPTI_CHUNK);
        gckpti_init_span d = { { 0, 0, 0 }, q->init, at, *n, buf };
        gckpti_init_values(s, q, &d, NULL);
        if (!q->uninitialised && gckpti_is_quantised((int)q->p.storage))
            gckpti_init_quantised(s, q, at, n, buf);
        return buf;
    }
    const gckpti_mirror *m = gckpti_mirror_of(s, q);
    const int on_device = m && m->newest == GCKPTI_MIRROR;
    at -= shard.first;
    *n = shard.count - at;
    if (!gckpti_is_quantised((int)q->p.storage) && !on_device)
        return q->p.values + at;
    *n = gckpti_min(*n, GCKPTI_CHUNK);
    if (on_device)
        m->backend->copy_out(m->backend->context, buf, m->array[0] + at, (size_t)*n * sizeof *buf);
    else
        gckpti_dequantise_at(q, at, *n, buf);
    return buf;
}

GCKPTI_FN gckpt_result gckpti_values_new(gckpt_store *s, gckpti_param *q, const char *who)
{
    size_t bytes = gckpti_array_bytes(s, q, 0);
    if (gckpti_has_values(q))
        return GCKPT_OK;
    gckpti_set_block(q, (unsigned char *)gckpti_resize(&s->memory, NULL, 0, bytes));
    if (!gckpti_has_values(q))
        return gckpti_error(s, GCKPT_E_MEMORY, "%s: no memory for the values of \"%s\": %z bytes",
                            who, q->p.name, bytes);
    const gckpti_shard_range shard = gckpti_array_shard(s, q, GCKPTI_VALUES);
    for (int64_t k = shard.count; k < shard.capacity; k++)
        q->p.values[k] = 0; /* end of a shard that is not the largest */
    q->uninitialised = 1;
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_values_undo(gckpt_store *s)
{
    for (size_t i = s->count; i-- > 0;) {
        gckpti_param *q = &s->params[i];
        if (q->uninitialised)
            gckpti_values_free(s, q);
        q->uninitialised = 0;
    }
}
