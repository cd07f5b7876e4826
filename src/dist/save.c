#include "files/files.h"
#include "run/run.h"

#if !defined(GCKPT_NO_STDIO) && !defined(GCKPT_NO_RANKS)
/* ---- one file of all ranks: each array's owners send it to all, and rank 0 writes it ---- */
GCKPT_API gckpt_result gckpt_ranks_save(gckpt_exec *exec, const char *path)
{
    if (!exec || gckpti_is_under_way(exec))
        return GCKPT_E_ARG;
    const gckpti_save_spec spec = { exec->store, &gckpti_file_plain, exec };
    gckpt_result result =
        path ? GCKPT_OK : gckpti_error(exec, GCKPT_E_ARG, "save: the path is NULL");
    result = gckpti_agree_on_call(exec, GCKPTI_CALL_SAVE, 0, result);
    if (result == GCKPT_OK)
        result = exec->store->rank ? gckpti_write(&spec, NULL, NULL) : gckpti_save(&spec, path);
    result = gckpti_agree_on_save(exec, result);
    return result == GCKPT_OK ? gckpti_ok(exec) : result;
}
#endif
