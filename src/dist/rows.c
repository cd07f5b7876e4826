#include "plan/internal.h"
#include "num/num.h"

/* ---- which rows of a batch a virtual rank has ---- */
/* Returns how many partial sums the reduction tree of a power of two of virtual ranks keeps. */
GCKPTI_FN int gckpti_tree_depth(int vranks)
{
    int n = 0;
    while (vranks >> n > 1)
        n++;
    return n;
}

GCKPTI_FN int64_t gckpti_vrank_first_row(int64_t batch, int vranks, int64_t vrank)
{
    return batch / vranks * vrank + (batch % vranks * vrank + vranks - 1) / vranks;
}

GCKPTI_FN int64_t gckpti_vrank_batch(const gckpt_plan *p, int64_t rows)
{
    return p->mode == GCKPT_INFERENCE ? rows : p->batch;
}

GCKPTI_FN int64_t gckpti_vrank_rows(const gckpt_plan *p, int64_t rows, int64_t vrank)
{
    int64_t batch = gckpti_vrank_batch(p, rows);
    return gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, vrank + 1), rows) -
           gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, vrank), rows);
}

GCKPT_API int64_t gckpt_plan_rank_rows(const gckpt_plan *p, int64_t rows, int rank, int64_t *first)
{
    int64_t begin = 0, end = rows > 0 ? rows : 0;
    if (p && p->ranks > 1 && p->virtual_ranks >= p->ranks && rank >= 0 && rank < p->ranks) {
        int64_t n = p->virtual_ranks / p->ranks, batch = gckpti_vrank_batch(p, end);
        begin = gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, rank * n), end);
        end = gckpti_min(gckpti_vrank_first_row(batch, p->virtual_ranks, (rank + 1) * n), end);
    }
    if (first)
        *first = begin;
    return p ? end - begin : 0;
}
