#include "plan/own.h"
#include "graph/graph.h"

/* ---- schedules: what a maker wrote becomes one; its spans ---- */
GCKPTI_FN int gckpti_reloads(const gckpti_planner *p, int item) { return item >= p->units; }

GCKPTI_FN int gckpti_schedule_room(gckpti_scratch *scratch, gckpti_schedule *s, int length)
{
    size_t n = (size_t)length + 1;
    gckpti_want(scratch, &s->item, n, sizeof *s->item);
    gckpti_want(scratch, &s->value_end, n, sizeof *s->value_end);
    gckpti_want(scratch, &s->aux_end, n, sizeof *s->aux_end);
    gckpti_want(scratch, &s->leaves, n, 1);
    return gckpti_want(scratch, &s->live, n, sizeof *s->live) && !*scratch->failed;
}

/* Appends to s what an item reads and gckpt_recompute has let go. Such values may read one another,
 * so they are walked with a list: first the request, then its stale inputs, ... */
static void gckpti_refresh(gckpti_planner *p, int item, gckpti_schedule *s)
{
    int count = 0, reads;
    if (item < 0 && p->unit[~item].reads_aux && p->note[~item].stale) {
        p->note[~item].stale = 0;
        p->queue[count++] = ~item;
    }
    for (int i = -1; i < count; i++) {
        const int *links = gckpti_reads(p, i < 0 ? item : p->queue[i], &reads);
        for (int k = 0; k < reads; k++)
            if (p->note[links[k]].stale) {
                p->note[links[k]].stale = 0;
                p->queue[count++] = links[k];
            }
    }
    for (int i = 1; i < count; i++) /* inputs before users */
        for (int j = i; j > 0 && p->queue[j] < p->queue[j - 1]; j--) {
            int swap = p->queue[j];
            p->queue[j] = p->queue[j - 1];
            p->queue[j - 1] = swap;
        }
    for (int i = 0; i < count; i++)
        s->item[s->length++] = p->queue[i];
}

/* Prologue, body without what pins forbid and with what they demand, epilogue. What gckpt_recompute
 * lets go is there again when it has run anew behind all that runs for the first time. */
static void gckpti_add_pins(gckpti_planner *p, const int *made, int length, gckpti_schedule *s)
{
    int backward_seen = 0, firsts = 0;
    gckpti_begin_pass(p);
    s->length = 0;
    for (int u = 0; u < p->prologue; u++)
        s->item[s->length++] = u;
    for (int x = 0; x < length; x++) {
        int i = made[x], u = gckpti_unit_of(p, i);
        if (u < p->prologue || (i == u && p->unit[u].fixed && p->note[u].start >= 0))
            continue;
        if (i < 0 && !backward_seen++)
            for (int k = p->prologue; k < p->units; k++)
                p->note[k].stale = p->unit[k].recompute && p->note[k].start < firsts;
        if (backward_seen)
            gckpti_refresh(p, i, s);
        if (i >= 0) {
            firsts = p->note[u].start < 0 ? s->length + 1 : firsts;
            p->note[u].start = s->length;
            p->note[u].stale = 0;
        }
        s->item[s->length++] = i;
    }
    for (int r = p->body_backwards; r < p->backwards; r++)
        s->item[s->length++] = ~p->backward[r];
}

GCKPTI_FN int gckpti_finish(gckpti_planner *p, const int *made, int length, gckpti_scratch *scratch,
                            gckpti_schedule *s)
{
    int most = length + p->pinned + p->prologue + p->backwards - p->body_backwards;
    if (p->failed || !gckpti_schedule_room(scratch, s, most))
        return 0;
    gckpti_add_pins(p, made, length, s);
    gckpti_find_lives(p, s);
    return 1;
}

/* Whether all that a schedule reads was made before (by the user's it may not be). */
GCKPTI_FN gckpt_result gckpti_check_reads(gckpti_planner *p, const gckpti_schedule *s)
{
    memset(p->computed, 0, (size_t)p->units);
    for (int x = 0; x < s->length; x++) {
        int i = s->item[x], self = gckpti_unit_of(p, i), count;
        int own = gckpti_reloads(p, i) || (i < 0 && p->unit[self].reads_aux);
        int missing = own && !p->computed[self] ? self : -1;
        for (const int *links = gckpti_reads(p, i, &count); count-- > 0;)
            missing = p->computed[links[count]] ? missing : links[count];
        if (missing >= 0)
            return gckpti_graph_error(p->g, GCKPT_E_ARG,
                                      "schedule: %s of %T before any forward of %T",
                                      i < 0                  ? "backward"
                                      : gckpti_reloads(p, i) ? "reload"
                                                             : "forward",
                                      p->tensors[p->unit[self].id],
                                      p->tensors[p->unit[missing].id]);
        p->computed[self] |= i == self;
    }
    return GCKPT_OK;
}
