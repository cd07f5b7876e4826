#include "store/store.h"
#include "num/num.h"

/* ---- the arrays of a parameter: values (in any storage) and state ---- */
GCKPTI_FN size_t gckpti_array_bytes(const gckpt_store *s, const gckpti_param *q, int i)
{
    return i && q->p.state_bytes                      ? q->p.state_bytes
           : i || gckpti_is_part(s, q, GCKPTI_VALUES) ? gckpti_part_bytes(s, q, i - 1)
                                                      : gckpti_values_bytes(&q->p);
}

GCKPTI_FN void gckpti_values_free(gckpt_store *s, gckpti_param *q)
{
    gckpti_delete(&s->memory, gckpti_values_block(q), gckpti_array_bytes(s, q, 0), 1);
    const void *none = NULL;
    gckpti_set_stored(q, none);
}

GCKPTI_FN void gckpti_state_shrink(gckpt_store *s, gckpti_param *q, int slots)
{
    for (int i = gckpti_state_slots(q); i-- > slots; q->p.state[i] = NULL)
        gckpti_delete(&s->memory, q->p.state[i], gckpti_array_bytes(s, q, 1), 1);
    q->p.state_bytes = slots ? q->p.state_bytes : 0;
}

GCKPTI_FN int gckpti_ensure_state(gckpt_store *s, gckpti_param *q, int slots)
{
    int old_slots = gckpti_state_slots(q);
    for (int i = old_slots; i < slots; i++) {
        q->p.state[i] = (float *)gckpti_new(&s->memory, gckpti_array_bytes(s, q, 1), 1);
        if (!q->p.state[i]) {
            gckpti_state_shrink(s, q, old_slots);
            return 0;
        }
    }
    return 1;
}
