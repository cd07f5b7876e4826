#pragma once
#include "plan/plan.h"
#ifndef GCKPT_SMALL
#include "graph/graph.h"
#endif

/* ---- several ranks and virtual ranks in plans and planners ---- */
/* ---- dist/rows.c ---- */
/* Returns the first row of a virtual rank in a step of `rows` rows: the least r with
 * floor(r * vranks / batch) >= vrank, at most `rows`. In inference, `rows` is the batch. */
GCKPTI_FN int64_t gckpti_vrank_begin(const gckpt_plan *p, int64_t rows, int64_t vrank);

/* Returns 1 if rows are divided among ranks, 0 if every rank runs all rows (text generation). */
#define gckpti_is_data_parallel(p) ((p)->ranks > 1 && (p)->virtual_ranks >= (p)->ranks)

#ifndef GCKPT_NO_RANKS
/* For errors: whether a plan was made for several processes, and what its micro-batches divide. */
#define gckpti_needs_peers(p) ((p)->ranks > 1)
#define gckpti_split_scope(p) ((p)->virtual_ranks > 1 ? " in each virtual rank" : "")

/* Returns how many virtual ranks this rank runs: its part, or all if every rank runs all rows. */
static inline int gckpti_local_vranks(const gckpt_plan *p)
{
    return p->virtual_ranks < p->ranks ? p->virtual_ranks : p->virtual_ranks / p->ranks;
}

/* Returns how many rows, or micro-batches, a virtual rank has in a step of `rows` rows. */
static inline int64_t gckpti_vrank_rows(const gckpt_plan *p, int64_t rows, int64_t vrank)
{
    return gckpti_vrank_begin(p, rows, vrank + 1) - gckpti_vrank_begin(p, rows, vrank);
}
static inline int64_t gckpti_vrank_micro_batches(const gckpt_plan *p, int64_t rows, int64_t vrank)
{
    return (gckpti_vrank_rows(p, rows, vrank) + p->rows - 1) / p->rows;
}

/* Returns the fewest rows, above 0, that a micro-batch has which is not full in a step of `rows`
 * rows: the rows that are left over in a virtual rank. Returns 0 if all micro-batches are full. */
GCKPTI_FN int64_t gckpti_rows_left(const gckpt_plan *p, int64_t rows);

/* Returns the rows of a rank in a step; the only micro-batch of a virtual rank counts as full. */
GCKPTI_FN uint64_t gckpti_counted_rows(const gckpt_plan *p);

/* If instruction i gathers a parameter in each micro-batch, multiplies its cost by their number. */
GCKPTI_FN void gckpti_price_gather(const gckpt_plan *p, int i, gckpt_usage *u);

/* Returns the elements of values (slot < 0) or a state for which a store has memory. */
#define gckpti_planned_capacity(p, n, slot)                                                        \
    gckpti_shard_from(n, 0, (p)->ranks, (p)->shard,                                                \
                      (slot) < 0 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE)                         \
        .capacity
#else
#define gckpti_needs_peers(p)               0
#define gckpti_split_scope(p)               ""
#define gckpti_rows_left(p, rows)           ((rows) % (p)->rows)
#define gckpti_counted_rows(p)              ((uint64_t)(p)->batch)
#define gckpti_price_gather(p, i, u)        ((void)0)
#define gckpti_planned_capacity(p, n, slot) (n)
#endif

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
    return t->kind == GCKPTI_PARAM && gckpti_is_part(s, &s->params[t->index], GCKPTI_VALUES);
}

/* Returns the cost of the communication that gathers a parameter, or 0 if t is not gathered. */
static inline uint64_t gckpti_gather_transfer(const gckpti_planner *p, const gckpt_tensor *t)
{
    if (!gckpti_is_gathered(p, t))
        return 0;
    const size_t shard = sizeof(float) * (size_t)gckpti_update_shard(p, t).capacity;
    return gckpti_transfer_cost(p->desc->ranks.link_cost,
                                (int64_t)(gckpti_value_bytes(p, t) - shard));
}
#else
#define gckpti_is_gathered(p, t)     0
#define gckpti_gather_transfer(p, t) 0
#endif
#endif /* GCKPT_SMALL */
