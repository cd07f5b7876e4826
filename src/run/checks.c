#include "run/own.h"
#include "num/num.h"

GCKPTI_FN gckpt_result gckpti_check_plan(gckpt_store *s, const gckpt_plan *p)
{
    uint64_t hash = GCKPTI_FNV_START;
    if (p->format != GCKPT_PLAN_FORMAT || p->contract != GCKPT_CONTRACT)
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: printed by another version of gradckpt.h (format %i, contract "
                            "%i; here %i, %i): print it again with gckpt_plan_c",
                            p->format, p->contract, GCKPT_PLAN_FORMAT, GCKPT_CONTRACT);
    for (size_t i = 0; i < p->node_count && GCKPTI_RUNS_MADE; i++)
        hash = gckpti_hash_planned(hash, p, i);
    hash = gckpti_hash_leaves(hash, p->leaves);
    if (GCKPTI_RUNS_MADE &&
        (hash != p->check || (p->node_count && gckpti_hash_leaves(p->told[p->node_count - 1].hash,
                                                                  p->leaves) != p->hash)))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: the graph's hash is not what it was made with: an op or the "
                            "table was changed; print it again with gckpt_plan_c");
    if (p->threads < 1 || p->threads > 1024 || p->alignment < sizeof(float) ||
        p->alignment & (p->alignment - 1))
        return gckpti_error(s, GCKPT_E_ARG,
                            "plan: %i threads, alignment %z: the table is damaged; print it again "
                            "with gckpt_plan_c",
                            p->threads, p->alignment);
    if (GCKPTI_ALWAYS_PLAIN && p->made_for == GCKPTI_FOR_CPU)
        return gckpti_error(
            s, GCKPT_E_ARG,
            "plan: its workspace is that of the fast kernels, which this build "
            "(GCKPT_NO_FAST) does not have; make it with gckpt_plan_desc.plain = 1");
    return GCKPT_OK;
}

/* A plan's workspace and bytes are those of what it was made for. */
GCKPTI_FN gckpt_result gckpti_check_backend(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_backend *backend)
{
    if (p->made_for > GCKPTI_FOR_PLAIN ? !backend || gckpti_made_for(backend, 0) != p->made_for
                                       : backend != NULL)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan was made for %s, desc.backend is %s; plan with "
                            "gckpt_plan_desc.backend = the one that runs it",
                            p->made_for > GCKPTI_FOR_PLAIN ? "another backend" : "the processor",
                            backend ? backend->name : "NULL");
    return GCKPT_OK;
}

/* What can be refused before there is an executor. */
GCKPTI_FN gckpt_result gckpti_check_binding(gckpt_store *s, const gckpt_plan *p,
                                            const gckpt_exec_desc *desc)
{
    gckpt_exec_desc d;
    memset(&d, 0, sizeof d);
    d = desc ? *desc : d;
    if (!p)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan is NULL (see gckpt_error_text of its graph)");
    const gckpti_range ranges[] = { { "isa", (int)d.isa, 0, GCKPT_ISA_COUNT - 1 },
                                    { "debug", (int64_t)d.debug, 0, 2 * GCKPT_DEBUG_FINITE - 1 } };
    if (!gckpti_in_range(s, "exec", ranges, sizeof ranges / sizeof *ranges))
        return GCKPT_E_ARG;
    if (gckpti_check_plan(s, p) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (p->ranks != s->ranks || (p->ranks > 1 && p->shard != s->shard))
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: the plan was made for %i ranks and shard %i, the store is for "
                            "%i and %i (gckpt_store_ranks): make a new plan",
                            p->ranks, (int)p->shard, s->ranks, (int)s->shard);
    if (gckpti_check_backend(s, p, d.backend) != GCKPT_OK)
        return GCKPT_E_ARG;
    if (p->optimiser == GCKPT_OWN_OPTIMISER && p->mode != GCKPT_INFERENCE && !d.own_optimiser)
        return gckpti_error(
            s, GCKPT_E_ARG,
            "exec: the plan has GCKPT_OWN_OPTIMISER; desc.own_optimiser is missing");
    if (d.skip_nonfinite && p->update_in_backward)
        return gckpti_error(
            s, GCKPT_E_ARG,
            "exec: skip_nonfinite needs all gradients before the first update; this plan updates "
            "in the backward (desc.update_in_backward)");
    if (!GCKPTI_RUNS_BACKENDS && (d.copy_feeds || d.own_optimiser || d.parallel_for))
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: GCKPT_SMALL has no copy_feeds, own_optimiser, parallel_for");
    if (d.debug && !GCKPTI_RUNS_DEBUG)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: desc.debug: this build leaves out debug modes (GCKPT_NO_DEBUG)");
    if (d.caches_of && !GCKPTI_RUNS_CACHES)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: desc.caches_of: this build leaves out caches (GCKPT_NO_CACHES)");
    if (!d.offload != !d.reload)
        return gckpti_error(s, GCKPT_E_ARG,
                            "exec: desc.offload and desc.reload come together, or not at all");
    return GCKPT_OK;
}
