#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL

/* ---- copies of results to slower memory and back: their part of schedules and costs ---- */
/* Returns whether an entry is a reload. With n = p->nodes, u + n is a reload of u, and u + 2n an
 * offload_done. An offload has no entry: it follows the last forward before a reload. With 3 nodes,
 *     0 1 2 ~2 4 ~1 ~0    offloads the results of node 1 and reloads them (4 = 1 + 3) */
static inline int gckpti_is_copy_back(const gckpti_planner *p, int entry)
{
    return entry >= p->nodes && entry < 2 * p->nodes;
}

static inline gckpt_kind gckpti_entry_kind(const gckpti_planner *p, int entry)
{
    static const gckpt_kind kinds[] = { GCKPT_FORWARD, GCKPT_RELOAD, GCKPT_OFFLOAD_DONE };
    return entry < 0 ? GCKPT_BACKWARD : kinds[entry / p->nodes];
}

/* Return the parts of a definition that are used (last use not -1), as bits; the bytes of parts. */
enum { GCKPTI_VALUE = 1, GCKPTI_SAVED = 2 };
static inline int gckpti_parts(int value_end, int saved_end)
{
    return (value_end < 0 ? 0 : GCKPTI_VALUE) | (saved_end < 0 ? 0 : GCKPTI_SAVED);
}
static inline int64_t gckpti_parts_bytes(const gckpti_node *u, int parts)
{
    return (parts & GCKPTI_VALUE ? u->out : 0) + (parts & GCKPTI_SAVED ? u->saved : 0);
}

static inline uint64_t gckpti_parts_cost(const gckpti_planner *p, int node, int parts)
{
    return gckpti_transfer_cost(p->desc->offload.cost, gckpti_parts_bytes(&p->node[node], parts));
}

/* Returns a cost of copies as a search weighs it: times a / (8 - a), where a is copy_cost. */
enum { GCKPTI_FULL_COPY_COST = 4, GCKPTI_COPY_COSTS };
enum { GCKPTI_STRATEGIES = 6 }; /* searches of a model if p->overlap */
static inline uint64_t gckpti_scaled_cost(int copy_cost, uint64_t cost)
{
    uint64_t divisor = 8 - (uint64_t)copy_cost, factor = (uint64_t)copy_cost;
    return cost / divisor * factor + cost % divisor * factor / divisor;
}
#endif

/* ---- offload/time.c ---- */
#ifndef GCKPT_NO_OFFLOAD
/* Part of a scan from the end (gckpti_find_live_ranges), for the entry at position x: makes the
 * parts that a later reload copies back live at the forward after which they are offloaded, or at
 * an offload_done, and adds the cost of copies. Returns the bytes that have no other use there. */
GCKPTI_FN int64_t gckpti_scan_copies(gckpti_planner *p, gckpti_schedule *s, int entry, int x);

/* Returns the time, in units of cost, of a schedule whose live ranges are known. If `out` is not
 * NULL (length 0, space for twice the entries), copies the schedule there and adds offload_done
 * entries, which keep buffers of unfinished offloads live as far as `limit` live bytes allow. */
GCKPTI_FN uint64_t gckpti_schedule_time(gckpti_planner *p, gckpti_schedule *s, int64_t limit,
                                        gckpti_schedule *out);

/* ---- offload/plan.c ---- */
/* Sets the bytes and the cost of an instruction that is an offload or a reload. */
GCKPTI_FN void gckpti_price_copy(const gckpt_plan *p, const gckpti_ins *ins, gckpt_usage *u);
#else
#define gckpti_scan_copies(p, s, entry, x) 0
#define gckpti_price_copy(p, ins, u)       ((void)0)
#endif
