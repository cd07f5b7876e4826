#ifndef GCKPT_NO_RANKS
#include "store/store.h"

/* ---- shards of parameters, and the call that divides a store ---- */
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

GCKPT_API gckpt_result gckpt_store_ranks(gckpt_store *store, int rank, int ranks, gckpt_shard shard)
{
    if (ranks < 1 || (ranks & (ranks - 1)) || rank < 0 || rank >= ranks ||
        (unsigned)shard > GCKPT_SHARD_VALUES)
        return gckpti_error(
            store, GCKPT_E_ARG,
            "ranks: rank %i of %i, shard %i: the number of ranks must be a power of two, the rank "
            "less than it and not negative, and shard a gckpt_shard",
            rank, ranks, (int)shard);
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        if ((gckpti_has_values(q) && (!q->external || store->bound)) || gckpti_state_slots(q))
            return gckpti_error(store, GCKPT_E_ARG,
                                "ranks: \"%s\" has values or state already; call gckpt_store_ranks "
                                "before gckpt_exec_new, gckpt_store_get and loading make them",
                                q->p.name);
    }
    if (!store)
        return GCKPT_E_ARG;
    store->rank = rank;
    store->peers = ranks - 1;
    store->shard = ranks > 1 ? shard : GCKPT_SHARD_NONE;
    for (size_t i = 0; i < store->count; i++) {
        gckpti_param *q = &store->params[i];
        q->p.count = gckpti_part_of(store, q, 0, &q->p.first);
    }
    return gckpti_ok(store);
}
#endif
