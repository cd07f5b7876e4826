#ifndef GCKPT_NO_RANKS
#include "run/own.h"
#include "num/num.h"

GCKPTI_FN int gckpti_holder(int64_t elements, int64_t at, int ranks)
{
    int64_t low = 0, high = (elements - 1) / GCKPT_UPDATE_BLOCK + 1;
    int rank = 0;
    for (int bit = 1; bit < ranks; bit *= 2) {
        int64_t middle = low + (high - low + 1) / 2;
        const int second = at / GCKPT_UPDATE_BLOCK >= middle;
        *(second ? &low : &high) = middle;
        rank |= second ? bit : 0;
    }
    return rank;
}

/* The next values of a parameter from element `at` on, *n of them, on all ranks. */
static const float *gckpti_gather_piece(gckpt_exec *e, const gckpti_param *q, int64_t at,
                                        float room[GCKPTI_DRAWN], int64_t *n)
{
    int64_t first, end, some;
    if (!gckpti_array_cut(e->store, q, GCKPTI_VALUES))
        return gckpti_values_at(e->store, q, at, room, n);
    gckpti_peers *s = &e->crew->peers;
    void *out = s->out;
    const int owner = gckpti_holder(q->p.elements, at, e->store->ranks);
    end = gckpti_share(q->p.elements, owner, e->store->ranks, &first) + first;
    *n = gckpti_min(end - at, (int64_t)(e->crew->room / sizeof(float)));
    for (int64_t i = 0; i < *n && owner == s->rank; i += some) {
        const float *x = gckpti_values_at(e->store, q, at + i, room, &some);
        some = gckpti_min(some, *n - i);
        memcpy((float *)out + i, x, (size_t)some * sizeof *x);
    }
    for (int bit = 1; bit < s->ranks && !s->broken; bit *= 2) {
        int has = (s->rank ^ owner) < bit, gets = (s->rank ^ bit ^ owner) < bit;
        gckpti_exchange(s, s->rank ^ bit, out, has ? (size_t)*n * sizeof(float) : 0, out,
                        gets ? (size_t)*n * sizeof(float) : 0);
        gckpti_wait_for(s);
    }
    return (const float *)out;
}

/* All values of parameters first..last, where they are wanted. */
static gckpt_result gckpti_gather_all(gckpt_exec *e, int first, int last, float *to, uint64_t *hash)
{
    float room[GCKPTI_DRAWN];
    gckpt_result result = GCKPT_OK;
    if (gckpti_is_under_way(e))
        return GCKPT_E_ARG;
    if (first < 0 || last >= (int)e->store->count)
        result = gckpti_error(e, GCKPT_E_ARG, "gather: no parameter has index %i", first);
    result = gckpti_crew_call(e, GCKPTI_CALL_GATHER, first, result);
    for (int i = first; i <= last && result == GCKPT_OK; i++) {
        const gckpti_param *q = &e->store->params[i];
        for (int64_t at = 0, n; at < q->p.elements && result == GCKPT_OK; at += n) {
            const float *x = gckpti_gather_piece(e, q, at, room, &n);
            if (to)
                memcpy(to + at, x, (size_t)n * sizeof *x);
            if (hash)
                *hash = gckpti_hash_floats(*hash, x, n);
            result = gckpti_drain(e, GCKPT_OK);
        }
    }
    return result == GCKPT_OK ? gckpti_ok(e) : result;
}

GCKPT_API gckpt_result gckpt_gather_values(gckpt_exec *exec, int index, float *to)
{
    return exec ? gckpti_gather_all(exec, index, index, to, NULL) : GCKPT_E_ARG;
}

GCKPT_API gckpt_result gckpt_gather_hash(gckpt_exec *exec, uint64_t *hash)
{
    uint64_t all = GCKPTI_FNV_START;
    if (!exec)
        return GCKPT_E_ARG;
    gckpt_result result = gckpti_gather_all(exec, 0, (int)exec->store->count - 1, NULL, &all);
    if (hash)
        *hash = result == GCKPT_OK ? all : 0;
    return result;
}
#endif
