#ifndef GCKPT_NO_DEBUG
#include "run/own.h"
#include "num/num.h"

/* GCKPT_DEBUG_RECOMPUTE: the hash of n floats, or of as many bf16, widened; never 0. */
static uint64_t gckpti_hash_value(const gckpt_exec *e, const void *at, int64_t n, int narrow)
{
    uint64_t hash = GCKPTI_FNV_START;
    const unsigned char *next = (const unsigned char *)at;
    int64_t size = narrow ? 2 : 4;
    for (int64_t left = n, piece; left > 0; left -= piece, next += piece * size) {
        float wide[64];
        uint16_t half[64];
        piece = gckpti_min(left, 64);
        gckpti_on(e)->copy_out(gckpti_on(e)->context, narrow ? (void *)half : (void *)wide, next,
                               (size_t)(piece * size));
        for (int64_t i = 0; i < piece && narrow; i++)
            wide[i] = gckpti_from_bf16(half[i]);
        hash = gckpti_hash_floats(hash, wide, piece);
    }
    return hash | 1;
}

/* GCKPT_DEBUG_RECOMPUTE: a recomputed value must be what it was. */
GCKPTI_FN gckpt_result gckpti_compare(gckpt_exec *e, const gckpti_ins *ins, const gckpt_call *c,
                                      const uint16_t *narrow)
{
    const gckpti_node *node = &e->plan->nodes[ins->id];
    const void *data[2] = { NULL, NULL };
    int64_t n[2];
    data[0] = narrow ? (const void *)narrow : c->out;
    data[1] = c->aux;
    n[0] = gckpti_elements(&c->shape);
    n[1] = (int64_t)(node->aux_bytes / 4);
    if (!node->batchless)
        n[1] = n[1] / e->plan->rows * c->rows;
    for (int k = 0; k < 2; k++) {
        uint64_t *seen = &e->debug.hashes[2 * ins->id + k];
        if (ins->first)
            *seen = 0;
        if (!data[k])
            continue;
        uint64_t hash = gckpti_hash_value(e, data[k], n[k], narrow && k == 0);
        if (*seen && *seen != hash)
            return gckpti_error(
                e, GCKPT_E_DATA,
                "recompute: %s of %s (%s #%i) differs from what it was the first time: %s",
                k ? "aux" : "the value", gckpti_node_name(e->plan, ins->id), node->op->name,
                ins->id,
                ins->kind == GCKPT_RELOAD ? "slower memory returned other bytes"
                                          : "the op is not a function of its inputs");
        *seen = hash;
    }
    return GCKPT_OK;
}

GCKPTI_FN void gckpti_hash_tables(gckpt_exec *e, unsigned char *base, size_t *used)
{
    size_t n = gckpti_debug(e) & GCKPT_DEBUG_RECOMPUTE ? 2 * e->plan->node_count : 0;
    e->debug.hashes = (uint64_t *)gckpti_carve(base, used, n, sizeof *e->debug.hashes);
}
#endif
