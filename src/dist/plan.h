#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL
#include "graph/graph.h"
#endif

/* ---- several ranks and virtual ranks in plans and planners ---- */
enum { GCKPTI_MAX_VRANKS = 32768 }; /* its square fits into 32 bits */

/* ---- dist/rows.c ---- */
/* Returns the first row of a virtual rank: the least r with floor(r * vranks / batch) >= vrank. */
GCKPTI_FN int64_t gckpti_vrank_first_row(int64_t batch, int vranks, int64_t vrank);

/* Returns the batch that virtual ranks divide in a step of `rows` rows. */
GCKPTI_FN int64_t gckpti_vrank_batch(const gckpt_plan *p, int64_t rows);

/* Returns how many rows of a step a virtual rank has. */
GCKPTI_FN int64_t gckpti_vrank_rows(const gckpt_plan *p, int64_t rows, int64_t vrank);

/* Returns whether plan->mixer would normalise one value per channel in a step of `rows` rows. */
GCKPTI_FN int gckpti_has_single_norm(const gckpt_plan *p, int64_t rows);

/* Returns a hash extended by the number of virtual ranks, on which the bits of results depend. */
static inline uint64_t gckpti_hash_vranks(uint64_t hash, int vranks)
{
    return vranks > 1 ? gckpti_fnv_number(hash, (uint64_t)vranks) : hash;
}

#ifndef GCKPT_SMALL
#ifndef GCKPT_NO_RANKS
/* Returns this rank's shard of a parameter's update. Plans use its capacity, equal on all ranks. */
static inline gckpti_shard_range gckpti_update_shard(const gckpti_planner *p, const gckpt_tensor *t)
{
    return gckpti_array_shard(p->g->store, &p->g->store->params[t->index], 0);
}

/* Returns whether t is a sharded parameter, whose values are gathered in the arena. */
static inline int gckpti_is_gathered(const gckpti_planner *p, const gckpt_tensor *t)
{
    const gckpt_store *s = p->g->store;
    return t->kind == GCKPTI_PARAM &&
           gckpti_is_sharded(gckpti_array_shard(s, &s->params[t->index], GCKPTI_VALUES));
}

/* Checks the numbers of virtual ranks and ranks of a request. */
GCKPTI_FN gckpt_result gckpti_check_vranks(gckpt_graph *g, const gckpt_plan_desc *d);

/* If desc.ranks.overlap is nonzero, replaces p->best by a lowered plan whose gathers begin earlier,
 * to finish before their first readers, if that fits into `arena` bytes. Not for GCKPT_SCHEDULE. */
GCKPTI_FN gckpt_result gckpti_prefetch_gathers(gckpti_planner *p, size_t arena);
#else
#define gckpti_is_gathered(p, t)          0
#define gckpti_prefetch_gathers(p, arena) ((void)(arena), GCKPT_OK)
static inline gckpt_result gckpti_check_vranks(gckpt_graph *g, const gckpt_plan_desc *d)
{
    return d->ranks.virtual_ranks <= 1
               ? GCKPT_OK
               : gckpti_error(g, GCKPT_E_ARG,
                              "plan: desc.ranks.virtual_ranks is %i; this build has no virtual "
                              "ranks (GCKPT_NO_RANKS)",
                              d->ranks.virtual_ranks);
}
#endif
#endif /* GCKPT_SMALL */
