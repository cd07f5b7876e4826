#include "plan/own.h"
#include "num/num.h"

/* ---- leaves: equal parts of a step's rows, as far as they go ---- */
GCKPTI_FN int64_t gckpti_leaf_row(int64_t batch, int leaves, int64_t leaf)
{
    return batch / leaves * leaf + (batch % leaves * leaf + leaves - 1) / leaves;
}

GCKPTI_FN int64_t gckpti_leaf_batch(const gckpt_plan *p, int64_t rows)
{
    return p->mode == GCKPT_INFERENCE ? rows : p->batch;
}

GCKPTI_FN int64_t gckpti_leaf_rows(const gckpt_plan *p, int64_t rows, int64_t leaf)
{
    int64_t batch = gckpti_leaf_batch(p, rows);
    return gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf + 1), rows) -
           gckpti_min(gckpti_leaf_row(batch, p->leaves, leaf), rows);
}

GCKPT_API int64_t gckpt_plan_share(const gckpt_plan *plan, int64_t rows, int rank, int64_t *first)
{
    int64_t begin = 0, end = rows > 0 ? rows : 0;
    if (plan && plan->ranks > 1 && plan->leaves >= plan->ranks && rank >= 0 && rank < plan->ranks) {
        int64_t own = plan->leaves / plan->ranks, batch = gckpti_leaf_batch(plan, end);
        begin = gckpti_min(gckpti_leaf_row(batch, plan->leaves, rank * own), end);
        end = gckpti_min(gckpti_leaf_row(batch, plan->leaves, (rank + 1) * own), end);
    }
    if (first)
        *first = begin;
    return plan ? end - begin : 0;
}
