#if !defined(GCKPT_NO_CACHES) && !defined(GCKPT_SMALL)
#include "graph/graph.h"
#include "plan/internal.h"

GCKPTI_PASSES(cache)
{
    if (stage == GCKPTI_PASS_ENCODED) {
        size_t *bytes = ((gckpti_encoder *)arg)->plan.kind_bytes;
        bytes[GCKPT_BYTES_CACHES] = gckpti_resident_bytes(p, NULL) - bytes[GCKPT_BYTES_PARAMETERS] -
                                    bytes[GCKPT_BYTES_STATE];
    }
    if (stage != GCKPTI_PASS_START || !p->g->variable || p->inference)
        return GCKPT_OK;
    return gckpti_error(p->g, GCKPT_E_ARG,
                        "plan: gckpt_cache is for GCKPT_INFERENCE; build the graph that is "
                        "trained without it");
}
#endif
