#ifndef GCKPT_NO_RANKS
#include "store/store.h"

/* ---- shards ---- */
GCKPTI_FN gckpti_shard_range gckpti_shard_of(int64_t elements, int rank, int ranks)
{
    const int64_t block = GCKPT_UPDATE_BLOCK, blocks = (elements + block - 1) / block;
    int64_t low = 0, high = blocks;
    for (int bit = 1; bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        *(rank & bit ? &low : &high) = middle;
    }
    gckpti_shard_range shard = { gckpti_min(low * block, elements), 0, 0, elements };
    shard.count = gckpti_min(high * block, elements) - shard.first;
    shard.capacity = gckpti_min((blocks + ranks - 1) / ranks * block, elements);
    return shard;
}

GCKPTI_FN gckpti_shard_range gckpti_shard_from(int64_t elements, int rank, int ranks,
                                               gckpt_shard shard, gckpt_shard min_level)
{
    const gckpti_shard_range full = { 0, elements, elements, elements };
    if (shard < min_level || elements <= GCKPT_UPDATE_BLOCK)
        return full;
    return gckpti_shard_of(elements, rank, ranks);
}

GCKPTI_FN gckpti_shard_range gckpti_array_shard(const gckpt_store *s, const gckpti_param *q,
                                                int slot)
{
    const int full = slot < 0 && (q->external || gckpti_is_compressed((int)q->p.storage));
    return gckpti_shard_from(q->p.elements, s->rank, gckpti_ranks_of(s),
                             full ? GCKPT_SHARD_NONE : s->shard,
                             slot < 0 ? GCKPT_SHARD_VALUES : GCKPT_SHARD_STATE);
}

/* Returns the bytes of a part of a parameter's values or of a state. */
static size_t gckpti_part_bytes(const gckpt_store *s, const gckpti_param *q)
{
    return (size_t)gckpti_shard_of(q->p.elements, 0, gckpti_ranks_of(s)).capacity * sizeof(float);
}

/* Sets first and count: the elements of a parameter that this rank updates. */
static void gckpti_set_update_part(const gckpt_store *s, gckpt_parameter *p)
{
    const gckpti_shard_range shard =
        gckpti_shard_from(p->elements, s->rank, gckpti_ranks_of(s), s->shard, GCKPT_SHARD_STATE);
    p->first = shard.first;
    p->count = shard.count;
}
#endif
