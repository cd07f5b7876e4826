#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL

/* ---- copies of results to slower memory and back: their part of schedules and costs ---- */
/* Return whether an entry is an offload_done, and whether it is a reload. */
static inline int gckpti_is_offload_done(const gckpti_planner *p, int entry)
{
    return entry >= 2 * p->nodes;
}
static inline int gckpti_is_reload(const gckpti_planner *p, int entry)
{
    return entry >= p->nodes && entry < 2 * p->nodes;
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

/* Returns the cost of an offload or a reload of these parts of a node. */
static inline uint64_t gckpti_parts_cost(const gckpti_planner *p, int node, int parts)
{
    return gckpti_transfer_cost(p->desc->offload.cost, gckpti_parts_bytes(&p->node[node], parts));
}

/* Returns a cost of copies as a search weighs it: times a / (8 - a), where a is copy_cost. */
enum { GCKPTI_FULL_COPY_COST = 4, GCKPTI_COPY_COSTS };
static inline uint64_t gckpti_scaled_cost(int copy_cost, uint64_t cost)
{
    uint64_t divisor = 8 - (uint64_t)copy_cost, factor = (uint64_t)copy_cost;
    return cost / divisor * factor + cost % divisor * factor / divisor;
}

/* Returns the least copy_cost for which a bound is proven: 0 if copies overlap computation. */
static inline int gckpti_lowest_copy_cost(const gckpti_planner *p)
{
    return p->overlap ? 0 : GCKPTI_FULL_COPY_COST;
}

/* ---- offload/time.c ---- */
#ifndef GCKPT_NO_OFFLOAD
/* Returns the time, in units of cost, of a schedule whose live ranges are known. If `out` is not
 * NULL (length 0, space for twice the entries), copies the schedule there and adds offload_done
 * entries, which keep buffers of unfinished offloads live as far as `limit` live bytes allow. */
GCKPTI_FN uint64_t gckpti_schedule_time(gckpti_planner *p, gckpti_schedule *s, int64_t limit,
                                        gckpti_schedule *out);
#else
#define gckpti_extend_offload(p, s, u, x)      0
#define gckpti_count_reload(p, s, u)           ((void)0)
#define gckpti_schedule_time(p, s, limit, out) 0
#endif
#endif
