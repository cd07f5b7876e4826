#ifndef GCKPT_NO_DEBUG
#include "run/own.h"

/* ---- GCKPT_DEBUG_PAINT, GCKPT_DEBUG_MEASURE: what is written ---- */
enum { GCKPTI_PAINT = 0x7fc07fc0 }; /* NaN, two of them as bf16 */

/* What died with instruction e->step.pc. What began before a loop's body outlives each round. */
GCKPTI_FN void gckpti_paint_dead(gckpt_exec *e)
{
    const gckpt_plan *p = e->plan;
    size_t *next = &e->debug.next_death;
    if (*next && p->lives[*next - 1].end >= e->step.pc) /* another micro-batch, or step */
        *next = 0;
    while (*next < p->life_count && p->lives[*next].end <= e->step.pc) {
        const gckpt_buffer *life = &p->lives[(*next)++];
        if (life->end == e->step.pc && !(p->looped && life->start < p->body &&
                                         e->step.pc >= p->body && e->step.pc < p->epilogue))
            gckpti_fill(e, e->blocks.arena + life->offset, GCKPTI_PAINT, life->size / 4 * 4);
    }
}

static int gckpti_measures(const gckpt_exec *e)
{
    return gckpti_debug(e) & GCKPT_DEBUG_MEASURE && e->debug.painted_steps < 2;
}

/* Before a step: the arena is all paint; each step that measures has another. */
GCKPTI_FN void gckpti_measure_start(gckpt_exec *e)
{
    if (gckpti_measures(e))
        gckpti_fill(e, e->blocks.arena, e->debug.painted_steps ? 0x5a5a5a5au : 0xa5a5a5a5u,
                    e->plan->arena);
    else if (gckpti_debug(e) & GCKPT_DEBUG_PAINT)
        gckpti_fill(e, e->blocks.arena, GCKPTI_PAINT, e->plan->arena / 4 * 4);
}

/* Where the arena's last byte that is not `paint` ends; `low`: not below this. */
static size_t gckpti_highest_touched(const gckpt_exec *e, size_t low, unsigned char paint)
{
    unsigned char piece[256];
    for (size_t top = e->plan->arena, n; top > low; top -= n) {
        size_t left;
        n = top - low < sizeof piece ? top - low : sizeof piece;
        gckpti_on(e)->copy_out(gckpti_on(e)->context, piece, e->blocks.arena + top - n, n);
        for (left = n; left > 0 && piece[left - 1] == paint;)
            left--;
        if (left > 0)
            return top - n + left;
    }
    return low;
}

/* GCKPT_DEBUG_MEASURE: how far the arena was touched. */
GCKPTI_FN void gckpti_measure_end(gckpt_exec *e)
{
    if (!gckpti_measures(e))
        return;
    e->debug.touched =
        gckpti_highest_touched(e, e->debug.touched, e->debug.painted_steps ? 0x5a : 0xa5);
    for (size_t i = 0; i < e->plan->life_count; i++) { /* what kernels use of it differs */
        const gckpt_buffer *life = &e->plan->lives[i];
        if (life->kind == GCKPT_BUFFER_WORKSPACE && life->offset + life->size > e->debug.touched)
            e->debug.touched = life->offset + life->size;
    }
    e->debug.painted_steps++;
}

GCKPT_API size_t gckpt_bytes_measured(const gckpt_exec *exec)
{
    return exec ? gckpt_store_bytes(exec->store) + exec->plan->kind_bytes[GCKPT_BYTES_CACHES] +
                      exec->debug.touched
                : 0;
}
#endif
