#pragma once
#include "store/store.h"

/* ---- the part of an array that a store has: all or, with several ranks, a shard ---- */
/* For errors of calls that a single process makes, about a plan or store of several. */
#define GCKPTI_IS_OF_SEVERAL "was made for several processes (gckpt_store_ranks)"
/* The numbers of a plan that REDUCE and gathers need; those of a single process: 1, 1, NONE. */
#define GCKPTI_DIST_NUMBERS(X)          X(int, virtual_ranks) X(int, ranks) X(gckpt_shard, shard)
#define gckpti_set_single_process(plan) ((plan)->virtual_ranks = (plan)->ranks = 1)
#ifndef GCKPT_NO_RANKS
/* A rank's shard of an array of `total` elements: `count` elements from `first`, in whole blocks of
 * GCKPT_UPDATE_BLOCK. Each rank has memory for `capacity` elements, those of the largest shard. */
typedef struct {
    int64_t first, count, capacity, total;
} gckpti_shard_range;

/* Divides the blocks in two halves, for ranks whose bit 0 is 0 and 1; divides each half by bit 1,
 * and so on; the first half is the larger one, so rank 0 has the largest shard. This is the order
 * in which ranks' sums are added (dist/exchange), so that each sum ends on its owner. */
GCKPTI_FN gckpti_shard_range gckpti_shard_of(int64_t elements, int rank, int ranks);

/* Returns the shard of an array that is sharded if `shard` is min_level or a higher level. */
GCKPTI_FN gckpti_shard_range gckpti_shard_from(int64_t elements, int rank, int ranks,
                                               gckpt_shard shard, gckpt_shard min_level);

/* Returns the shard of a parameter's values (slot < 0) or of its state `slot`. External values,
 * and those that are not F32, are not sharded. Updates are sharded as states are. */
GCKPTI_FN gckpti_shard_range gckpti_array_shard(const gckpt_store *s, const gckpti_param *q,
                                                int slot);
static inline int gckpti_is_sharded(gckpti_shard_range shard)
{
    return shard.capacity < shard.total;
}
/* Returns 1 if the store has only a part of values (slot < 0) or of a state. */
#define gckpti_is_part(s, q, slot) gckpti_is_sharded(gckpti_array_shard(s, q, slot))
/* Returns the bytes that the store has for a float array. */
#define gckpti_part_bytes(s, q, slot)                                                              \
    ((size_t)gckpti_array_shard(s, q, slot).capacity * sizeof(float))
/* Returns the number of elements of an array that the store has; *first is the first of them. */
static inline int64_t gckpti_part_of(const gckpt_store *s, const gckpti_param *q, int slot,
                                     int64_t *first)
{
    const gckpti_shard_range shard = gckpti_array_shard(s, q, slot);
    *first = shard.first;
    return shard.count;
}
static inline int gckpti_ranks_of(const gckpt_store *s) { return s->peers + 1; }
#else
#define gckpti_is_part(s, q, slot)        ((void)(s), 0)
#define gckpti_part_of(s, q, slot, first) ((void)(s), *(first) = 0, (q)->p.elements)
#define gckpti_part_bytes(s, q, slot)     ((size_t)(q)->p.elements * sizeof(float))
#endif
