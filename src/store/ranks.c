#ifndef GCKPT_NO_RANKS
#include "store/own.h"
#include "num/num.h"

/* ---- shares of ranks ---- */
GCKPTI_FN int64_t gckpti_share(int64_t elements, int rank, int ranks, int64_t *first)
{
    int64_t low = 0, high = elements / GCKPT_UPDATE_BLOCK + (elements % GCKPT_UPDATE_BLOCK > 0);
    for (int bit = 1; bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        *(rank & bit ? &low : &high) = middle;
    }
    *first = gckpti_min(low * GCKPT_UPDATE_BLOCK, elements);
    return gckpti_min(high * GCKPT_UPDATE_BLOCK, elements) - *first;
}

GCKPTI_FN int64_t gckpti_in_memory(int ranks, gckpt_shard shard, gckpt_shard least,
                                   int64_t elements)
{
    int64_t first;
    if (ranks < 2 || shard < least || elements <= GCKPT_UPDATE_BLOCK)
        return elements;
    return gckpti_share(elements, 0, ranks, &first);
}

GCKPTI_FN int gckpti_is_cut(const gckpt_store *s, int64_t elements)
{
    return s->ranks > 1 && s->shard != GCKPT_SHARD_NONE && elements > GCKPT_UPDATE_BLOCK;
}

GCKPTI_FN int gckpti_array_cut(const gckpt_store *s, const gckpti_param *q, int slot)
{
    return gckpti_is_cut(s, q->p.elements) &&
           (slot >= 0 ||
            (s->shard == GCKPT_SHARD_VALUES && !q->external && q->p.storage == GCKPT_STORED_F32));
}

GCKPT_API gckpt_result gckpt_store_ranks(gckpt_store *store, int rank, int ranks, gckpt_shard shard)
{
    if (ranks < 1 || (ranks & (ranks - 1)) || rank < 0 || rank >= ranks ||
        (unsigned)shard > GCKPT_SHARD_VALUES)
        return gckpti_error(
            store, GCKPT_E_ARG,
            "rank %i of %i, shard %i: ranks must be a power of two, rank 0 to ranks - "
            "1, shard a gckpt_shard",
            rank, ranks, (int)shard);
    for (size_t i = 0; store && i < store->count; i++) {
        const gckpti_param *q = &store->params[i];
        if ((gckpti_is_made(q) && !q->external) || gckpti_state_slots(q))
            return gckpti_error(store, GCKPT_E_ARG,
                                "ranks: \"%s\" has values or state already; say which rank this is "
                                "before gckpt_exec_new, gckpt_store_get and loading make them",
                                q->p.name);
    }
    if (!store)
        return GCKPT_E_ARG;
    store->rank = rank;
    store->ranks = ranks;
    store->shard = shard;
    for (size_t i = 0; i < store->count; i++)
        gckpti_param_share(store, &store->params[i].p);
    return gckpti_ok(store);
}
#endif
