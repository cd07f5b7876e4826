#ifndef GCKPT_NO_RANKS
#include "store/store.h"

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
    for (size_t i = 0; i < store->count; i++)
        gckpti_set_update_part(store, &store->params[i].p);
    return gckpti_ok(store);
}
#endif
