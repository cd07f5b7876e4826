#ifndef GCKPT_NO_TILES
#include "plan/internal.h"
#include "graph/graph.h"
#include "ops/ops.h"

/* ---- fused groups: ops without gradients that run together, a tile of rows at a time ----
 * Only the last op's result is read outside the group. When a step computes new rows, old rows that
 * readers still need move to the front of its buffer, so no row is computed twice. Padding rows are
 * stored as rows with indices below 0, or `height` and above. */
GCKPTI_FN void gckpti_next_tile(const gckpti_fused *group, const gckpti_fused_step *step,
                                const gckpti_fused_edge *edges, gckpti_row_range *ranges,
                                int32_t end)
{
    for (int i = 0; i < group->steps; i++) {
        if (end <= group->tile_rows) /* the first tile */
            ranges[i].low = ranges[i].high = i + 1 < group->steps ? INT32_MIN : 0;
        ranges[i].drop = INT32_MAX, ranges[i].need = i + 1 < group->steps ? ranges[i].high : end;
    }
    for (int i = group->steps; i-- > 0;) {
        gckpti_row_range *q = &ranges[i];
        q->drop = q->drop == INT32_MAX ? q->high : q->drop; /* nobody reads its rows any more */
        q->high = q->high < q->drop ? q->drop : q->high;    /* nobody reads the rows in between */
        q->need = q->need < q->high ? q->high : q->need;
        const int32_t first = gckpti_tile_first(q), stop = gckpti_tile_end(&step[i], q);
        for (int k = step[i].edge; k < step[i].edge + step[i].edges && first < step[i].height;
             k++) {
            const gckpti_fused_edge *in = &edges[k];
            if (in->from < 0)
                continue;
            const int32_t drop = first * in->stride - in->before;
            const int32_t need = (stop - 1) * in->stride - in->before + in->reach;
            gckpti_row_range *from = &ranges[in->from];
            from->drop = drop < from->drop ? drop : from->drop;
            from->need = first < stop && need > from->need ? need : from->need;
        }
    }
}

/* run/layout.c binds its kernel. */
GCKPTI_DATA const gckpt_op gckpti_op_fused = { "fused", NULL, NULL,  NULL,
                                               NULL,    NULL, { 0 }, GCKPTI_BUILTIN_OP,
                                               NULL,    NULL };
#endif
