#include "run/own.h"

/* A picked value or gradient, as floats. */
GCKPTI_FN size_t gckpti_pick_bytes(const gckpt_plan *p, const gckpti_plan_pick *pick)
{
    return (size_t)gckpti_elements(&p->nodes[pick->id].shape) * sizeof(float);
}

/* Bytes of an executor's own copy of its plan; a constant of the program is not copied. */
GCKPTI_FN size_t gckpti_copied_bytes(const gckpt_plan *p)
{
    return !GCKPTI_LEAN && p->block ? gckpti_plan_copy(NULL, p) : 0;
}
