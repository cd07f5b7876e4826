#include "files/files.h"
#include "run/run.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- one file of all ranks: each array's owners send it to all, and rank 0 writes it ---- */
/* Runs a status barrier; returns the failure of the first rank that has one. */
static gckpt_result gckpti_rank_save_agree(void *context, gckpt_result result)
{
    gckpt_exec *e = (gckpt_exec *)context;
    if (e->group && e->group->call_ended) /* by a failure: no barrier follows */
        return result;
    if (result != GCKPT_OK)
        gckpti_error(e, result, "%s", gckpt_error_text(e->store));
    return gckpti_agree_on_call(e, GCKPTI_CALL_SAVE, 0, result);
}

static const float *gckpti_rank_save_gather(void *context, const gckpti_param *q, int slot,
                                            int64_t at, float buf[GCKPTI_CHUNK], int64_t *n)
{
    return gckpti_gather_chunk((gckpt_exec *)context, q, slot, at, buf, n);
}

static gckpt_result gckpti_rank_save_check(void *context)
{
    return gckpti_defer_error((gckpt_exec *)context, GCKPT_OK);
}

GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path)
{
    const gckpti_group_save group = { exec, gckpti_rank_save_agree, gckpti_rank_save_gather,
                                      gckpti_rank_save_check };
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    const gckpti_save_spec spec = { exec->store, &gckpti_file_plain, &group };
    gckpt_result result =
        path ? GCKPT_OK : gckpti_error(exec, GCKPT_E_ARG, "save: the path is NULL");
    result = gckpti_agree_on_call(exec, GCKPTI_CALL_SAVE, 0, result);
    if (result == GCKPT_OK)
        result = exec->store->rank ? gckpti_write(&spec, NULL, NULL) : gckpti_save(&spec, path);
    result = gckpti_rank_save_agree(exec, result);
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}
#endif
