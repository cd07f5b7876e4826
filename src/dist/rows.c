#include "plan/internal.h"
#include "num/num.h"

/* ---- which rows of a batch a virtual rank has ---- */
GCKPTI_FN int64_t gckpti_vrank_begin(const gckpt_plan *p, int64_t rows, int64_t vrank)
{
    const int64_t batch = p->mode == GCKPT_INFERENCE ? rows : p->batch, n = p->virtual_ranks;
    return gckpti_min(batch / n * vrank + (batch % n * vrank + n - 1) / n, rows);
}

GCKPT_API int64_t gckpt_plan_rank_rows(const gckpt_plan *p, int64_t rows, int rank, int64_t *first)
{
    int64_t begin = 0, end = rows > 0 ? rows : 0;
    if (p && gckpti_is_data_parallel(p) && rank >= 0 && rank < p->ranks) {
        const int64_t n = p->virtual_ranks / p->ranks;
        begin = gckpti_vrank_begin(p, end, rank * n);
        end = gckpti_vrank_begin(p, end, (rank + 1) * n);
    }
    if (first)
        *first = begin;
    return p ? end - begin : 0;
}
