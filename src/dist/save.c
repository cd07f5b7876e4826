#include "files/internal.h"
#include "run/run.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- one file of all ranks: each array's owners send it to all, and rank 0 writes it ---- */
typedef struct {
    gckpt_exec *exec;
    int barriers; /* number of status barriers so far */
    int ended;    /* nonzero: a status barrier found a failure, so that none follows */
} gckpti_rank_save;

/* Runs a status barrier; returns the failure of the first rank that has one. */
static gckpt_result gckpti_rank_save_agree(void *context, gckpt_result result)
{
    gckpti_rank_save *save = (gckpti_rank_save *)context;
    gckpt_exec *e = save->exec;
    if (save->ended)
        return result;
    if (result != GCKPT_OK)
        gckpti_error(e, result, "%s", gckpt_error_text(e->store));
    result = gckpti_agree_on_call(e, GCKPTI_CALL_SAVE, ++save->barriers, result);
    save->ended = result != GCKPT_OK;
    return result;
}

static const float *gckpti_rank_save_gather(void *context, const gckpti_param *q, int slot,
                                            int64_t at, float buf[GCKPTI_CHUNK], int64_t *n)
{
    return gckpti_gather_chunk(((gckpti_rank_save *)context)->exec, q, slot, at, buf, n);
}

static gckpt_result gckpti_rank_save_check(void *context)
{
    return gckpti_defer_error(((gckpti_rank_save *)context)->exec, GCKPT_OK);
}

GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path)
{
    gckpti_rank_save save = { exec, 0, 0 };
    const gckpti_group_save group = { &save, gckpti_rank_save_agree, gckpti_rank_save_gather,
                                      gckpti_rank_save_check };
    gckpt_result result;
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    gckpt_store *s = exec->store;
    const gckpti_save_spec spec = { s, &gckpti_file_plain, NULL, &group };
    if (!path)
        result = gckpti_error(s, GCKPT_E_ARG, "save: the path is NULL");
    else
        result = s->rank ? gckpti_write(&spec, NULL, NULL) : gckpti_save(&spec, path);
    result = gckpti_rank_save_agree(&save, result);
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}
#endif
